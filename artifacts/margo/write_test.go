package margo_test

import (
	"errors"
	"maps"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// What is written reads back as what it was: with the fixtures of the specification, and with values that are hard.
func TestEncodeDeployment(t *testing.T) {
	for name, text := range writable(t) {
		t.Run(name, func(t *testing.T) {
			want, err := margo.ParseApplicationDeployment(name, []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			data, err := want.Encode()
			if err != nil {
				t.Fatal(err)
			}
			got, err := margo.ParseApplicationDeployment(name, data)
			if err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("read back (-want +got):\n%s\n%s", diff, data)
			}
			again, err := got.Encode()
			if err != nil || string(again) != string(data) {
				t.Errorf("written twice, %v (-first +second):\n%s", err, cmp.Diff(string(data), string(again)))
			}
		})
	}
}

func writable(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{"hard": `id: 0d7b6b5e-1d43-4d0a-9c67-0c64a8a4b2f1
metadata: {name: "1", namespace: "yes", deviceId: gateway/press-07, labels: {a: "", "b: c": "# no comment"}}
spec:
  applicationId: hard
  x-spec-extensions: {list: [[1, {a: []}], {}, null], deep: {a: {b: {c: 1.5}}}}
  deploymentProfile:
    type: compose
    x-profile-extensions: {empty: {}}
    deviceConstraints:
      capacityRequirements: {cpu: {cores: 1.5, architectures: [amd64, arm64]}, memory: 512Mi, storage: 1Gi}
      eligibilityRules:
        - propertySelector:
            matchExpressions:
              - {key: /peripherals, operator: ContainsAll, itemSelector: {matchExpressions: [{key: /type, operator: In, values: [gpu]}]}}
              - {key: /vendor, operator: Exists}
          labelSelector: {matchExpressions: [{key: rack, operator: Gt, values: [3]}, {key: site, operator: NotIn, values: [a, b]}]}
        - labelSelector: {matchExpressions: [{key: spare, operator: In, values: [true]}]}
    components:
      - {name: web, properties: {repository: "oci://r.example:5000/web", revision: 1.0.0_b1, wait: false, timeout: 61m5s}}
      - {name: db, properties: {repository: "oci://r.example/db", revision: 2.0.0}, x-longshore-extensions: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}}
  parameters:
    list: {value: [a, "", "1", 2, 3.5, true], targets: [{pointer: LIST, components: [web, db]}]}
    large: {value: 18446744073709551615, targets: [{pointer: LARGE, components: [web]}]}
    small: {value: 1e-9, targets: []}
    none: {value: null, targets: []}
    text: {value: "line\n\ttwo: 'x' \"y\" \u0000 \u2028 ä", targets: []}
    "12": {value: "0x1f", targets: []}
    object: {value: {b: 1, a: {c: d}}, targets: []}
`, "gateway": `id: 0d7b6b5e-1d43-4d0a-9c67-0c64a8a4b2f1
metadata: {name: n, namespace: n, deviceId: "gateway/*"}
spec: {applicationId: a, deploymentProfile: {type: helm, components: []}}
`}
}

func TestEncodeDeploymentRefuses(t *testing.T) {
	for name, d := range map[string]*margo.ApplicationDeployment{
		"annotations": {Metadata: margo.DeploymentMetadata{Annotations: map[string]string{"a": "b"}}},
		"a package location": {Spec: margo.DeploymentSpec{DeploymentProfile: margo.DeploymentProfile{
			Components: []margo.Component{{Name: "web", Properties: margo.ComponentProperties{PackageLocation: "https://x"}}},
		}}},
		"no number":    {Spec: margo.DeploymentSpec{Parameters: map[string]margo.Parameter{"a": {Value: math.Inf(1)}}}},
		"some Go type": {Spec: margo.DeploymentSpec{Parameters: map[string]margo.Parameter{"a": {Value: os.Stdin}}}},
	} {
		if data, err := d.Encode(); !errors.Is(err, fault.ErrUnsupported) && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v\n%s", name, err, data)
		}
	}
}

// A variable is changed where it is set, whatever the parameter is called; one that says more stays as it is.
func TestVariables(t *testing.T) {
	to := func(pointers ...string) (all []margo.ParameterTarget) {
		for _, p := range pointers {
			all = append(all, margo.ParameterTarget{Pointer: p, Components: []string{"web"}})
		}
		return all
	}
	d := &margo.ApplicationDeployment{Spec: margo.DeploymentSpec{Parameters: map[string]margo.Parameter{
		"poll": {Value: int64(30), Targets: to("ENV.POLL_SECONDS")}, "both": {Value: "x", Targets: to("A", "B")},
	}}}
	if got := d.Variables(); !slices.Equal(got, []string{"A", "B", "POLL_SECONDS"}) {
		t.Errorf("Variables = %v", got)
	}
	if err := d.SetVariable("POLL_SECONDS", "60", []string{"other"}); err != nil {
		t.Fatal(err)
	}
	if err := d.SetVariable("LEVEL", "debug", []string{"web"}); err != nil {
		t.Fatal(err)
	}
	if err := d.SetVariable("A", "y", []string{"web"}); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("SetVariable of a parameter that also sets another = %v", err)
	}
	d.UnsetVariable("B")
	d.UnsetVariable("B")
	env, err := margo.Environment(d.Spec.Parameters, "web")
	if want := map[string]string{"POLL_SECONDS": "60", "LEVEL": "debug", "A": "x"}; err != nil || !maps.Equal(env, want) {
		t.Errorf("Environment = %v, %v, want %v", env, err, want)
	}
	d.UnsetVariable("A")
	if len(d.Spec.Parameters) != 2 {
		t.Errorf("parameters = %v", d.Spec.Parameters)
	}
}
