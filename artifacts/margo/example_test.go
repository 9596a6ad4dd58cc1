package margo_test

import (
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

func ExampleParseApplicationDeployment() {
	_, err := margo.ParseApplicationDeployment("app.yaml", []byte(`id: ad9b614e-8912-45f4-a523-372358765def
metadata: {name: line-monitor, namespace: plant, deviceId: press-07}
spec:
  applicationId: line-monitor
  deploymentProfil:
    type: compose
`))
	fmt.Println(err)
	// Output:
	// app.yaml:5:3: spec.deploymentProfil: unknown key, did you mean "deploymentProfile"?
}

func ExampleParseApplicationDescription() {
	d, err := margo.ParseApplicationDescription("margo.yaml", []byte(`apiVersion: v1
id: line-monitor
metadata:
  name: Line monitor
  version: 1.4.0
  catalog: {organization: [{name: Acme}]}
deploymentProfiles:
  - type: compose
    id: compose
    components:
      - {name: web, properties: {repository: oci://registry.example/web, revision: 1.4.0}}
`))
	fmt.Println(d.ID, d.Metadata.Version, d.DeploymentProfiles[0].Components[0].Properties.Wait, err)
	// Output: line-monitor 1.4.0 true <nil>
}

func ExampleParseStateManifest() {
	m, err := margo.ParseStateManifest("state.json", []byte(`{"manifestVersion": 18446744073709551615, "bundle": null, "deployments": []}`))
	fmt.Println(m.ManifestVersion, m.Bundle == nil, err)
	// Output: 18446744073709551615 true <nil>
}

func ExampleParseDeviceCapabilities() {
	_, err := margo.ParseDeviceCapabilities("press-07.json", []byte(`{"properties": {"id": "press-07", "vendor": "Acme", "modelNumber": "M1", "serialNumber": 7}}`))
	fmt.Println(err)
	// Output: press-07.json:1:90: properties.serialNumber: must be a string, is a number
}

func ExampleParseDeploymentStatus() {
	s, err := margo.ParseDeploymentStatus("body", []byte(`{"deploymentId": "ad9b614e-8912-45f4-a523-372358765def", "adoptedManifestVersion": 7,
  "status": {"state": "installing"}, "components": [{"name": "web", "state": "installed"}, {"name": "broker", "state": "installing"}]}`))
	fmt.Println(s.Status.State == margo.Overall(s.Components), err)
	// Output: true <nil>
}

func ExampleParseProblem() {
	p, err := margo.ParseProblem("answer", []byte(`{"type": "about:blank", "title": "Too Many Requests", "status": 429, "retryable": true}`))
	fmt.Println(p.Status, *p.Retryable, err)
	// Output: 429 true <nil>
}

func ExampleDeviceConstraints_Check() {
	c := &margo.DeviceConstraints{CapacityRequirements: &margo.CapacityRequirements{Memory: "2048Mi"}}
	fmt.Println(c.Check(&margo.DeviceCapabilities{Properties: margo.DeviceProperties{ID: "press-19", Memory: "1.9Gi"}}))
	// Output: device does not fit: needs memory 2048Mi, device has 1.9Gi (capacityRequirements.memory)
}

func ExamplePin() {
	pinned, err := margo.Pin("app.yaml", []byte(`id: ad9b614e-8912-45f4-a523-372358765def
metadata: {name: line-monitor, namespace: plant, deviceId: press-07}
spec:
  applicationId: line-monitor
  deploymentProfile:
    type: compose
    components:
      - name: web # the front
        properties: {repository: "oci://registry.example/web", revision: 1.4.0}
`), map[string]digest.Digest{"web": digest.FromString("")})
	fmt.Print(string(pinned), err)
	// Output:
	// id: ad9b614e-8912-45f4-a523-372358765def
	// metadata: {name: line-monitor, namespace: plant, deviceId: press-07}
	// spec:
	//   applicationId: line-monitor
	//   deploymentProfile:
	//     type: compose
	//     components:
	//       - name: web # the front
	//         x-longshore-extensions:
	//           digest: "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	//         properties: {repository: "oci://registry.example/web", revision: 1.4.0}
	// <nil>
}

func ExampleStateManifest_Encode() {
	b, err := (&margo.StateManifest{ManifestVersion: 1}).Encode()
	fmt.Println(string(b), err)
	// Output: {"bundle":null,"deployments":[],"manifestVersion":1} <nil>
}

func ExampleOverall() {
	fmt.Println(margo.Overall([]margo.ComponentStatus{{Name: "web", State: margo.StateInstalled}, {Name: "broker", State: margo.StateFailed}}))
	// Output: failed
}

func ExampleParameter_EnvironmentValue() {
	fmt.Println(margo.Parameter{Value: int64(30)}.EnvironmentValue())
	// Output: 30 <nil>
}
