package margo_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// parse reads any document, by kind.
var parsers = map[string]func(file string, data []byte) (any, error){
	"ApplicationDeployment": func(f string, b []byte) (any, error) { return margo.ParseApplicationDeployment(f, b) },
	"ApplicationDescription": func(f string, b []byte) (any, error) {
		return margo.ParseApplicationDescription(f, b)
	},
	"DeploymentStatus":   func(f string, b []byte) (any, error) { return margo.ParseDeploymentStatus(f, b) },
	"DesiredState":       func(f string, b []byte) (any, error) { return margo.ParseStateManifest(f, b) },
	"DeviceCapabilities": func(f string, b []byte) (any, error) { return margo.ParseDeviceCapabilities(f, b) },
	"ProblemDetail": func(f string, b []byte) (any, error) {
		if strings.HasSuffix(f, ".yaml") { // the specification shows it as YAML
			n, err := strict.YAML(f, b)
			if err != nil {
				return nil, err
			}
			if b, err = margo.PlainJSON(n.Value()); err != nil {
				return nil, err
			}
		}
		return margo.ParseProblem(f, b)
	},
}

func parserFor(t *testing.T, name string) func(file string, data []byte) (any, error) {
	t.Helper()
	for kind, p := range parsers {
		if strings.HasPrefix(name, kind) {
			return p
		}
	}
	t.Fatalf("no parser for %s", name)
	return nil
}

// TestSpecificationExamples reads every example document of the specification and those that its defects lead to, and
// asks for exact faults where one is invalid or, in the shape of an older version, not what rc.3 asks for.
func TestSpecificationExamples(t *testing.T) {
	want := map[string]string{
		"older/invalid/ApplicationDeployment-001.yaml":  `:5:7: kind: "SomethingErroneous" is none of ApplicationDeployment`,
		"older/invalid/ApplicationDeployment-002.yaml":  `:9:20: metadata.annotations.applicationId: "com_northstartida.Digitron-Orchestrator" is not an application id (lower-case letters, digits, dashes, at most 200)`,
		"older/invalid/ApplicationDescription-001.yaml": `:5:7: kind: "SomethingErroneous" is none of ApplicationDescription, application`,
		"older/invalid/DeploymentStatusManifest-002.json": `:1:1: adoptedManifestVersion is missing
:6:18: status.state: "running" is none of pending, installing, installed, failed, removing, removed`,
		"older/invalid/DesiredStateManifest-001-invalid_manifest_version.json": `:2:24: manifestVersion: must be 1 or more`,
		"older/invalid/DesiredStateManifest-003-invalid_digest.json":           `:5:19: bundle.digest: "invalid-digest" is not a digest of the form "sha256:" and 64 lower-case hexadecimal digits`,
		"older/invalid/DeviceCapabilitiesManifest-002.json": `:2:5: apiVersion: unknown key
:3:5: kind: unknown key`,
		"older/valid/DeviceCapabilitiesManifest-001-standalone_cluster.json": `:2:5: apiVersion: unknown key
:3:5: kind: unknown key`,
	}
	var files []string
	for _, pattern := range []string{"testdata/rc3/*", "testdata/older/*/*", "testdata/deviating/*"} {
		f, err := filepath.Glob(pattern)
		if err != nil || len(f) == 0 {
			t.Fatalf("glob %s: %v, %v", pattern, f, err)
		}
		files = append(files, f...)
	}
	if len(files) != 24 {
		t.Errorf("%d examples, want 24", len(files))
	}
	for _, file := range files {
		name := strings.TrimPrefix(filepath.ToSlash(file), "testdata/")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = parserFor(t, filepath.Base(file))(filepath.Base(file), data)
			got := ""
			if err != nil {
				got = strings.ReplaceAll(err.Error(), filepath.Base(file), "")
				if !errors.Is(err, fault.ErrInvalid) {
					t.Errorf("%v is no fault.ErrInvalid", err)
				}
			}
			if diff := cmp.Diff(want[name], got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBadBytes holds every parser against input that no document may be.
func TestBadBytes(t *testing.T) {
	valid := map[string]string{
		"ApplicationDeployment": "rc3/ApplicationDeployment-helm.yaml", "ApplicationDescription": "rc3/ApplicationDescription-hello-world.yaml",
		"DeploymentStatus": "rc3/DeploymentStatus-pending.json", "DesiredState": "rc3/DesiredStateManifest.json",
		"DeviceCapabilities": "rc3/DeviceCapabilities-hosting.json", "ProblemDetail": "",
	}
	for kind, parse := range parsers {
		data := []byte(`{"type":"about:blank","title":"x","status":404}`)
		if valid[kind] != "" {
			var err error
			if data, err = os.ReadFile(filepath.Join("testdata", valid[kind])); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := parse("f", data); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		key, _, _ := bytes.Cut(bytes.TrimLeft(data, "{ \n"), []byte(":"))
		isJSON := data[0] == '{'
		duplicate := append(append([]byte{}, data...), append(append([]byte{}, key...), ": x\n"...)...)
		truncated := data[:len(data)*2/3]
		if isJSON {
			duplicate = append([]byte("{"+string(key)+": 1,"), bytes.TrimLeft(data, "{")...)
		} else {
			truncated = data[:bytes.Index(data, []byte("components:"))+len("components:")-3]
		}
		for name, tt := range map[string]struct {
			data []byte
			want string
		}{
			"missing":      {nil, "f: is empty"},
			"empty":        {[]byte(" \n"), "f: is empty"},
			"wrong type":   {[]byte(`["x"]`), "f:1:1: must be an object, is a list"},
			"empty object": {[]byte(`{}`), "is missing"},
			"too large":    {bytes.Repeat([]byte(" "), strict.MaxJSON+1), "are allowed"},
			"truncated":    {truncated, "f:"},
			"not UTF-8":    {append(append([]byte{}, data...), 0xff), "is not UTF-8 text"},
			"duplicate":    {duplicate, "duplicate key"},
			"twice":        {append(append([]byte{}, data...), append([]byte("\n---\n"), data...)...), "f:"},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				_, err := parse("f", tt.data)
				if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, fault.ErrInvalid) {
					t.Errorf("parse = %v, want an error with %q", err, tt.want)
				}
			})
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*")
	if err != nil {
		f.Fatal(err)
	}
	more, err := filepath.Glob("testdata/older/*/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, more...) {
		if data, err := os.ReadFile(file); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, err := margo.ParseApplicationDeployment("f", data); err == nil {
			for _, c := range d.Spec.DeploymentProfile.Components {
				if _, _, err := c.Pinned(); err != nil {
					t.Errorf("Pinned of a parsed component: %v", err)
				}
			}
			for _, p := range d.Spec.Parameters {
				if _, err := p.EnvironmentValue(); err != nil && !errors.Is(err, fault.ErrInvalid) {
					t.Errorf("EnvironmentValue: %v", err)
				}
			}
			if err := d.Spec.DeploymentProfile.DeviceConstraints.Check(&margo.DeviceCapabilities{}); err != nil && !errors.Is(err, fault.ErrUnfit) {
				t.Errorf("Check: %v", err)
			}
		}
		_, _ = margo.ParseApplicationDescription("f", data)
		_, _ = margo.ParseProblem("f", data)
		again(t, data, margo.ParseStateManifest, (*margo.StateManifest).Encode)
		again(t, data, margo.ParseDeploymentStatus, (*margo.DeploymentStatus).Encode)
		again(t, data, margo.ParseDeviceCapabilities, (*margo.DeviceCapabilities).Encode)
		again(t, data, margo.ParseProblem, (*margo.Problem).Encode)
	})
}

// again: what parses can be encoded, parses again to the same, and encodes to the same bytes.
func again[T any](t *testing.T, data []byte, parse func(string, []byte) (T, error), encode func(T) ([]byte, error)) {
	t.Helper()
	one, err := parse("f", data)
	if err != nil {
		return
	}
	b, err := encode(one)
	if err != nil {
		t.Fatalf("encode what was parsed: %v", err)
	}
	two, err := parse("f", b)
	if err != nil {
		t.Fatalf("parse what was encoded: %v", err)
	}
	b2, err := encode(two)
	if err != nil || !bytes.Equal(b, b2) {
		t.Fatalf("encode = %s, %v, want %s", b2, err, b)
	}
}
