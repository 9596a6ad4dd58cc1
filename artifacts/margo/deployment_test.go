package margo_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const deployment = `# written by hand
id: ad9b614e-8912-45f4-a523-372358765def
metadata:
  name: line-monitor
  namespace: plant
  deviceId: press-07
  labels: {line: a}
spec:
  applicationId: line-monitor
  deploymentProfile:
    type: compose
    components:
      - name: web # the front
        properties:
          repository: oci://registry.example/components/web
          revision: 1.4.0-rc.1_build.5
          wait: false
          timeout: 8m30s
          future: kept open by the specification
        x-acme-extensions: {site: graz}
      - properties: {repository: "oci://registry.example/components/broker", revision: 2.0.0}
        name: broker
    x-acme-extensions:
      keep: [1, 2.5, 18446744073709551615]
  parameters:
    poll:
      value: 30
      targets:
        - {pointer: ENV.POLL_SECONDS, components: [web, broker]}
    title:
      value: "Hall 3"
      targets:
        - {pointer: TITLE, components: [web]}
  x-acme-extensions:
    deep: {er: true}
`

func TestParseApplicationDeployment(t *testing.T) {
	got, err := margo.ParseApplicationDeployment("f", []byte(deployment))
	if err != nil {
		t.Fatal(err)
	}
	want := &margo.ApplicationDeployment{
		ID:       "ad9b614e-8912-45f4-a523-372358765def",
		Metadata: margo.DeploymentMetadata{Name: "line-monitor", Namespace: "plant", DeviceID: "press-07", Labels: map[string]string{"line": "a"}},
		Spec: margo.DeploymentSpec{
			ApplicationID: "line-monitor",
			DeploymentProfile: margo.DeploymentProfile{
				Type: "compose",
				Components: []margo.Component{
					{
						Name:       "web",
						Properties: margo.ComponentProperties{Repository: "oci://registry.example/components/web", Revision: "1.4.0-rc.1_build.5", Timeout: 510 * time.Second},
						Extensions: margo.Extensions{"x-acme-extensions": map[string]any{"site": "graz"}},
					},
					{
						Name:       "broker",
						Properties: margo.ComponentProperties{Repository: "oci://registry.example/components/broker", Revision: "2.0.0", Wait: true},
					},
				},
				Extensions: margo.Extensions{"x-acme-extensions": map[string]any{"keep": []any{int64(1), 2.5, uint64(18446744073709551615)}}},
			},
			Parameters: map[string]margo.Parameter{
				"poll":  {Value: int64(30), Targets: []margo.ParameterTarget{{Pointer: "POLL_SECONDS", Components: []string{"web", "broker"}}}},
				"title": {Value: "Hall 3", Targets: []margo.ParameterTarget{{Pointer: "TITLE", Components: []string{"web"}}}},
			},
			Extensions: margo.Extensions{"x-acme-extensions": map[string]any{"deep": map[string]any{"er": true}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ParseApplicationDeployment (-want +got):\n%s", diff)
	}
}

func TestDeploymentFaults(t *testing.T) {
	tests := []struct{ name, old, new, want string }{
		{"no id", "id: ad9b614e-8912-45f4-a523-372358765def\n", "", "f:2:1: id is missing"},
		{"id no UUID", "ad9b614e-8912-45f4-a523-372358765def", "7", "f:2:5: id: must be a string, is a number"},
		{"no device", "  deviceId: press-07\n", "", "f:4:3: metadata: deviceId is missing"},
		{"device", "press-07", "press 07", `f:6:13: metadata.deviceId: "press 07" is not a device id`},
		{"label type", "{line: a}", "{line: 1}", "f:7:18: metadata.labels.line: must be a string, is a number"},
		{"unknown in spec", "  applicationId:", "  aplicationId:", "f:9:3: spec.aplicationId: unknown key, did you mean \"applicationId\"?"},
		{"unknown in profile", "    type: compose", "    type: compose\n    id: x", "f:12:5: spec.deploymentProfile.id: unknown key"},
		{"unknown in component", "        name: broker", "        name: broker\n        version: x", "f:23:9: spec.deploymentProfile.components[1].version: unknown key"},
		{"extension name", "x-acme-extensions: {site: graz}", "x-Acme-extensions: {site: graz}", `f:20:9: spec.deploymentProfile.components[0].x-Acme-extensions: unknown key`},
		{"extension type", "x-acme-extensions: {site: graz}", "x-acme-extensions: graz", "f:20:28: spec.deploymentProfile.components[0].x-acme-extensions: must be an object, is a string"},
		{"type", "type: compose", "type: docker-compose", `f:11:11: spec.deploymentProfile.type: "docker-compose" is none of compose, helm, custom`},
		{"component name", "name: broker", "name: Broker", `f:22:15: spec.deploymentProfile.components[1].name: "Broker" is not a component name (lower-case letters, digits, dashes)`},
		{"component twice", "name: broker", "name: web", `f:22:15: spec.deploymentProfile.components[1].name: the component "web" is there already, at line 13`},
		{"repository", "oci://registry.example/components/web", "https://registry.example/web", `f:15:23: spec.deploymentProfile.components[0].properties.repository: "https://registry.example/web" is not a repository of the form "oci://host/path"`},
		{"revision v", "revision: 2.0.0", "revision: v2.0.0", `f:21:88: spec.deploymentProfile.components[1].properties.revision: "v2.0.0" is not a version like 1.4.0 (SemVer, no leading v, "_" for "+")`},
		{"revision number", "revision: 2.0.0", "revision: 2.0", "f:21:88: spec.deploymentProfile.components[1].properties.revision: must be a string, is a number"},
		{"wait", "wait: false", `wait: "false"`, "f:17:17: spec.deploymentProfile.components[0].properties.wait: must be a boolean, is a string"},
		{"timeout", "8m30s", "90s", `f:18:20: spec.deploymentProfile.components[0].properties.timeout: "90s" is not a time of the form "8m30s"`},
		{"timeout too long", "8m30s", "99999999m0s", `f:18:20: spec.deploymentProfile.components[0].properties.timeout: "99999999m0s" is not a time of the form "8m30s"`},
		{"no value", "value: 30", "valu: 30", "f:27:7: spec.parameters.poll: value is missing"},
		{"pointer", "ENV.POLL_SECONDS", "poll.seconds", `f:29:21: spec.parameters.poll.targets[0].pointer: "poll.seconds" is not the name of an environment variable`},
		{"targets", "components: [web]}", "components: web}", "f:33:40: spec.parameters.title.targets[0].components: must be a list, is a string"},
		{"pin", "x-acme-extensions: {site: graz}", "x-longshore-extensions: {digest: latest}", `f:20:42: spec.deploymentProfile.components[0].x-longshore-extensions.digest: "latest" is not a digest of the form "sha256:" and 64 lower-case hexadecimal digits`},
		{"alone", deployment, "spec: []\nmetadata:\n", `f:1:1: id is missing
f:1:7: spec: must be an object, is a list
f:2:1: metadata: must be an object, is null`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Count(deployment, tt.old) != 1 {
				t.Fatalf("%q is not there once", tt.old)
			}
			_, err := margo.ParseApplicationDeployment("f", []byte(strings.Replace(deployment, tt.old, tt.new, 1)))
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// The schema of rc.3 requires annotations, which its text does not have: they are read, and nothing is taken from them.
func TestAnnotationsOfDeployments(t *testing.T) {
	const member, others = "  labels: {line: a}\n", "  annotations: {id: 0d7b6b5e-1d43-4d0a-9c67-0c64a8a4b2f1, applicationId: another}\n"
	for annotations, want := range map[string]map[string]string{
		others:                {"id": "0d7b6b5e-1d43-4d0a-9c67-0c64a8a4b2f1", "applicationId": "another"},
		"  annotations: {}\n": {},
	} {
		plain, err := margo.ParseApplicationDeployment("f", []byte(deployment))
		if err != nil {
			t.Fatal(err)
		}
		plain.Metadata.Annotations = want
		got, err := margo.ParseApplicationDeployment("f", []byte(strings.Replace(deployment, member, member+annotations, 1)))
		if err != nil {
			t.Errorf("%s: %v", annotations, err)
			continue
		}
		if diff := cmp.Diff(plain, got); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", annotations, diff)
		}
	}
	for name, tt := range map[string]struct{ old, new, want string }{
		"annotations in place of the ids": {"  applicationId: line-monitor\n", "", "applicationId is missing"},
		"a number":                        {"applicationId: another", "applicationId: 7", "metadata.annotations.applicationId: must be a string, is a number"},
	} {
		text := strings.Replace(strings.Replace(deployment, member, member+others, 1), tt.old, tt.new, 1)
		if _, err := margo.ParseApplicationDeployment("f", []byte(text)); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestOlderDeploymentsAreNormalised(t *testing.T) {
	envelope := "apiVersion: application.margo.org/v1alpha1\nkind: ApplicationDeployment\n"
	tests := []struct {
		name, in string
		want     margo.DeploymentSpec
		id       string
	}{
		{
			name: "2024: ids in annotations, helm.v3, wait as text",
			in: envelope + `metadata:
  annotations: {id: a3e2f5dc-912e-494f-8395-52cf3769bc06, applicationId: digitron}
  name: d
  namespace: margo-poc
spec:
  deploymentProfile:
    type: helm.v3
    components:
      - name: db
        properties: {repository: oci://quay.io/charts/db, revision: 2.3.7+b1, wait: "true", timeout: 8m30s}
      - name: ui
        properties: {repository: oci://quay.io/charts/ui, revision: v1, wait: "false"}
  parameters:
    name: {value: x, targets: [{pointer: settings.name, components: [db]}]}
`,
			id: "a3e2f5dc-912e-494f-8395-52cf3769bc06",
			want: margo.DeploymentSpec{
				ApplicationID: "digitron",
				DeploymentProfile: margo.DeploymentProfile{Type: "helm", Components: []margo.Component{
					{Name: "db", Properties: margo.ComponentProperties{Repository: "oci://quay.io/charts/db", Revision: "2.3.7_b1", Wait: true, Timeout: 510 * time.Second}},
					{Name: "ui", Properties: margo.ComponentProperties{Repository: "oci://quay.io/charts/ui", Revision: "v1"}},
				}},
				Parameters: map[string]margo.Parameter{"name": {Value: "x", Targets: []margo.ParameterTarget{{Pointer: "settings.name", Components: []string{"db"}}}}},
			},
		},
		{
			name: "2024: docker-compose by location, ENV.",
			in: envelope + `id: a3e2f5dc-912e-494f-8395-52cf3769bc06
metadata: {name: d, annotations: {applicationId: digitron}}
spec:
  deploymentProfile:
    type: docker-compose
    components:
      - name: ui
        properties: {packageLocation: https://x.example/a.tar.gz, keyLocation: https://x.example/key.asc}
  parameters:
    name: {value: x, targets: [{pointer: ENV.NAME, components: [ui]}]}
`,
			id: "a3e2f5dc-912e-494f-8395-52cf3769bc06",
			want: margo.DeploymentSpec{
				ApplicationID: "digitron",
				DeploymentProfile: margo.DeploymentProfile{Type: "compose", Components: []margo.Component{
					{Name: "ui", Properties: margo.ComponentProperties{Wait: true, PackageLocation: "https://x.example/a.tar.gz", KeyLocation: "https://x.example/key.asc"}},
				}},
				Parameters: map[string]margo.Parameter{"name": {Value: "x", Targets: []margo.ParameterTarget{{Pointer: "NAME", Components: []string{"ui"}}}}},
			},
		},
		{
			name: "1.0.0: ids at the top, open objects",
			in: envelope + `id: a3e2f5dc-912e-494f-8395-52cf3769bc06
metadata: {name: d, deviceId: gateway-1/*}
spec:
  applicationId: digitron
  deploymentProfile: {type: compose, id: kept, components: []}
  unknown: kept
`,
			id: "a3e2f5dc-912e-494f-8395-52cf3769bc06",
			want: margo.DeploymentSpec{
				ApplicationID:     "digitron",
				DeploymentProfile: margo.DeploymentProfile{Type: "compose"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := margo.ParseApplicationDeployment("f", []byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, d.Spec); diff != "" || d.ID != tt.id {
				t.Errorf("id %s, spec (-want +got):\n%s", d.ID, diff)
			}
		})
	}
	_, err := margo.ParseApplicationDeployment("f", []byte("apiVersion: application.margo.org/v7\nkind: ApplicationDeployment\n"))
	if err == nil || !strings.Contains(err.Error(), `f:1:13: apiVersion: "application.margo.org/v7" is none of`) {
		t.Errorf("unknown apiVersion: %v", err)
	}
}

func TestEnvironmentValue(t *testing.T) {
	for _, tt := range []struct {
		value any
		want  string
	}{
		{nil, ""},
		{"a b", "a b"},
		{"", ""},
		{true, "true"},
		{false, "false"},
		{30, "30"},
		{int64(-7), "-7"},
		{uint64(18446744073709551615), "18446744073709551615"},
		{2.5, "2.5"},
		{1e21, "1000000000000000000000"},
		{[]any{"a", int64(1), "<&>"}, `["a",1,"<&>"]`},
		{map[string]any{"b": nil, "a": true}, `{"a":true,"b":null}`},
	} {
		got, err := margo.Parameter{Value: tt.value}.EnvironmentValue()
		if err != nil || got != tt.want {
			t.Errorf("EnvironmentValue(%v) = %q, %v, want %q", tt.value, got, err, tt.want)
		}
	}
	for _, bad := range []any{"a\x00b", struct{}{}, []any{func() {}}} {
		if got, err := (margo.Parameter{Value: bad}).EnvironmentValue(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("EnvironmentValue(%T) = %q, %v, want fault.ErrInvalid", bad, got, err)
		}
	}
}

// Of several pairs that clash the same one is told each time.
func TestEnvironmentClash(t *testing.T) {
	to := func(pointer string) []margo.ParameterTarget {
		return []margo.ParameterTarget{{Pointer: pointer, Components: []string{"web"}}}
	}
	parameters := map[string]margo.Parameter{
		"d": {Value: "1", Targets: to("PORT")}, "c": {Value: int64(1), Targets: to("PORT")}, "b": {Value: "2", Targets: to("ENV.PORT")}, "a": {Value: "1", Targets: to("PORT")},
		"f": {Value: "a\x00b", Targets: to("HOST")}, "e": {Value: "x", Targets: to("HOST")},
	}
	for range 20 {
		_, err := margo.Environment(parameters, "web")
		var clash *margo.ClashError
		if !errors.As(err, &clash) || *clash != (margo.ClashError{First: "a", Second: "b", Variable: "PORT", Component: "web"}) || !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("Environment = %v, want that a and b clash", err)
		}
	}
	delete(parameters, "b")
	delete(parameters, "f")
	if env, err := margo.Environment(parameters, "web"); err != nil || len(env) != 2 || env["PORT"] != "1" {
		t.Errorf("Environment = %v, %v, want the value that all of them give", env, err)
	}
	if env, err := margo.Environment(parameters, "db"); err != nil || len(env) != 0 {
		t.Errorf("Environment of another component = %v, %v, want nothing", env, err)
	}
}

const (
	pinA = digest.Digest("sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	pinB = digest.Digest("sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
)

// frame puts components into a deployment; pinned documents show only them.
func frame(components string) string {
	return "id: ad9b614e-8912-45f4-a523-372358765def\nmetadata: {name: n, namespace: n, deviceId: d} # ä\nspec:\n  applicationId: a\n  deploymentProfile:\n    type: compose\n    components:" + components
}

func TestPin(t *testing.T) {
	const p = "properties: {repository: oci://r/a, revision: 1.0.0}"
	tests := []struct{ name, in, want string }{
		{
			"after the name", "\n    # first\n    - name: web   # the front\n      " + p + "\n    - " + p + "\n      name: \"broker\"\n  # end\n",
			"\n    # first\n    - name: web   # the front\n      x-longshore-extensions:\n        digest: \"" + pinA.String() + "\"\n      " + p + "\n    - " + p + "\n      name: \"broker\"\n" +
				"      x-longshore-extensions:\n        digest: \"" + pinB.String() + "\"\n  # end\n",
		},
		{
			"windows line ends", "\r\n    - name: web\r\n      " + p + "\r\n    - name: broker\r\n      " + p + "\r\n",
			"\r\n    - name: web\r\n      x-longshore-extensions:\r\n        digest: \"" + pinA.String() + "\"\r\n      " + p + "\r\n    - name: broker\r\n      x-longshore-extensions:\r\n        digest: \"" + pinB.String() + "\"\r\n      " + p + "\r\n",
		},
		{
			"no newline at the end", "\n    - name: web\n      " + p + "\n    - " + p + "\n      name: 'broker'",
			"\n    - name: web\n      x-longshore-extensions:\n        digest: \"" + pinA.String() + "\"\n      " + p + "\n    - " + p + "\n      name: 'broker'\n      x-longshore-extensions:\n        digest: \"" + pinB.String() + "\"",
		},
		{
			"name over several lines", "\n    - name:\n        web\n      " + p + "\n    - name: >-\n        broker\n      " + p + "\n",
			"\n    - x-longshore-extensions:\n        digest: \"" + pinA.String() + "\"\n      name:\n        web\n      " + p + "\n    - x-longshore-extensions:\n        digest: \"" + pinB.String() + "\"\n      name: >-\n        broker\n      " + p + "\n",
		},
		{
			"flow", " [{name: web, " + p + "},\n{\"name\": \"broker\", " + p + "}]\n",
			" [{\"x-longshore-extensions\": {\"digest\": \"" + pinA.String() + "\"}, name: web, " + p + "},\n{\"x-longshore-extensions\": {\"digest\": \"" + pinB.String() + "\"}, \"name\": \"broker\", " + p + "}]\n",
		},
		{
			"replaced", "\n    - name: web\n      x-longshore-extensions:\n        digest: " + pinB.String() + " # old\n      " + p + "\n    - {name: broker, x-longshore-extensions: {digest: '" + pinA.String() + "'}, " + p + "}\n",
			"\n    - name: web\n      x-longshore-extensions:\n        digest: " + pinA.String() + " # old\n      " + p + "\n    - {name: broker, x-longshore-extensions: {digest: '" + pinB.String() + "'}, " + p + "}\n",
		},
		{
			"extension without digest", "\n    - name: web\n      x-longshore-extensions:\n        # c\n        order: 1\n      " + p + "\n    - name: broker\n      x-longshore-extensions: {}\n      " + p + "\n",
			"\n    - name: web\n      x-longshore-extensions:\n        # c\n        digest: \"" + pinA.String() + "\"\n        order: 1\n      " + p + "\n    - name: broker\n      x-longshore-extensions: {\"digest\": \"" + pinB.String() + "\"}\n      " + p + "\n",
		},
		{
			"as it is already", "\n    - name: web\n      x-longshore-extensions: {digest: " + pinA.String() + "}\n      " + p + "\n    - {name: broker, x-longshore-extensions: {digest: " + pinB.String() + "}, " + p + "}\n",
			"\n    - name: web\n      x-longshore-extensions: {digest: " + pinA.String() + "}\n      " + p + "\n    - {name: broker, x-longshore-extensions: {digest: " + pinB.String() + "}, " + p + "}\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := margo.Pin("f", []byte(frame(tt.in)), map[string]digest.Digest{"web": pinA, "broker": pinB})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(frame(tt.want), string(got)); diff != "" {
				t.Errorf("Pin (-want +got):\n%s", diff)
			}
			d, err := margo.ParseApplicationDeployment("f", got)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []digest.Digest{pinA, pinB} {
				if pin, ok, err := d.Spec.DeploymentProfile.Components[i].Pinned(); !ok || err != nil || pin != want {
					t.Errorf("Pinned = %s, %v, %v, want %s", pin, ok, err, want)
				}
			}
		})
	}
}

func TestPinTheExamples(t *testing.T) {
	for _, file := range []string{"rc3/ApplicationDeployment-helm.yaml", "rc3/ApplicationDeployment-compose.yaml", "older/valid/ApplicationDeployment-001.yaml"} {
		data, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		d, err := margo.ParseApplicationDeployment(file, data)
		if err != nil {
			t.Fatal(err)
		}
		pins := make(map[string]digest.Digest)
		for _, c := range d.Spec.DeploymentProfile.Components {
			pins[c.Name] = pinA
		}
		got, err := margo.Pin(file, data, pins)
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for line := range strings.Lines(string(got)) {
			if !strings.Contains(line, "x-longshore-extensions:") && !strings.Contains(line, pinA.String()) {
				kept = append(kept, line)
			}
		}
		if strings.Join(kept, "") != string(data) {
			t.Errorf("%s: other lines changed:\n%s", file, got)
		}
	}
}

func TestPinRefuses(t *testing.T) {
	doc := []byte(frame(" []\n"))
	for name, tt := range map[string]struct {
		in   []byte
		pins map[string]digest.Digest
		want string
	}{
		"no such component": {doc, map[string]digest.Digest{"web": pinA}, `pin component "web" in f: there is none of that name`},
		"no digest":         {[]byte(deployment), map[string]digest.Digest{"web": "sha256:x"}, `pin component "web" to "sha256:x"`},
		"invalid document":  {[]byte("a: b"), nil, "f:1:1: id is missing"},
	} {
		if _, err := margo.Pin("f", tt.in, tt.pins); err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func FuzzPin(f *testing.F) {
	f.Add([]byte(deployment))
	f.Add([]byte(frame(" [{name: web, properties: {repository: oci://r/a, revision: 1.0.0}}]\n")))
	f.Add([]byte(frame("\n    - name: >-\n        web\n      properties: {repository: oci://r/a, revision: 1.0.0}\n      x-longshore-extensions: {a: 1}\n")))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := margo.ParseApplicationDeployment("f", data)
		if err != nil || len(d.Spec.DeploymentProfile.Components) == 0 {
			return
		}
		name := d.Spec.DeploymentProfile.Components[0].Name
		got, err := margo.Pin("f", data, map[string]digest.Digest{name: pinA})
		if err != nil {
			if !errors.Is(err, fault.ErrUnsupported) {
				t.Fatalf("Pin: %v", err)
			}
			return
		}
		d, err = margo.ParseApplicationDeployment("f", got)
		if err != nil {
			t.Fatalf("pinned document: %v", err)
		}
		if pin, _, _ := d.Spec.DeploymentProfile.Components[0].Pinned(); pin != pinA {
			t.Fatalf("Pinned = %s", pin)
		}
	})
}
