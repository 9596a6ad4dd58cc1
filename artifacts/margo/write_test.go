package margo_test

import (
	"errors"
	"math"
	"os"
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
