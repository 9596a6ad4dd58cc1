package fleet_test

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
)

// memory is a registry of maps.
type memory struct{ *fleettest.Registry }

const (
	base           = fleettest.Base
	capabilitiesOf = fleettest.Capabilities
)

var (
	compile = fleettest.Compile
	with    = fleettest.With
	staged  = fleettest.Staged
)

func compiled(t testing.TB, files fstest.MapFS, from fleet.Registry) *fleet.Compiled {
	t.Helper()
	return fleettest.Compiled(t, files, from)
}

func newMemory() *memory { return &memory{fleettest.New()} }

// addPackage pushes the application "line" of a version, with one parameter of every kind.
func (m *memory) addPackage(t testing.TB, version string) {
	t.Helper()
	a, _, err := artifacts.PackPackage(fstest.MapFS{"margo.yaml": {Data: []byte(fmt.Sprintf(description, version))}}, artifacts.PackageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Push(base+"/apps/line", version, a)
}

const description = `apiVersion: v1
id: acme-line
metadata: {name: Line monitor, version: %[1]q, catalog: {organization: [{name: Acme}]}}
deploymentProfiles:
  - type: helm
    id: cluster
    components: [{name: chart, properties: {repository: "oci://harbor.acme.example/plant/charts/line", revision: 1.0.0}}]
  - type: compose
    id: large
    components:
      - {name: line-monitor, properties: {repository: "oci://harbor.acme.example/plant/components/line-monitor", revision: %[1]q, timeout: 5m0s}}
    deviceConstraints:
      capacityRequirements: {memory: 2048Mi, cpu: {cores: 2, architectures: [amd64]}}
  - type: compose
    id: small
    components:
      - {name: line-monitor, properties: {repository: "oci://harbor.acme.example/plant/components/line-monitor", revision: %[1]q}}
    deviceConstraints:
      capacityRequirements: {memory: 512Mi}
      eligibilityRules: [{labelSelector: {matchExpressions: [{key: class, operator: In, values: [press]}]}}]
parameters:
  poll: {value: 30, targets: [{pointer: POLL, components: [line-monitor, chart]}]}
  level: {value: info, targets: [{pointer: LEVEL, components: [line-monitor]}]}
  scale: {value: 1.5, targets: [{pointer: SCALE, components: [line-monitor]}]}
  debug: {value: false, targets: [{pointer: DEBUG, components: [line-monitor]}]}
  name: {targets: [{pointer: LINE_NAME, components: [line-monitor]}]}
  outputs: {value: [opcua], targets: [{pointer: OUTPUTS, components: [line-monitor]}]}
  ports: {targets: [{pointer: PORTS, components: [line-monitor]}]}
  license: {targets: [{pointer: LICENSE, components: [line-monitor]}]}
configuration:
  sections:
    - name: All
      settings:
        - {parameter: poll, name: Poll, schema: seconds}
        - {parameter: level, name: Level, schema: level}
        - {parameter: scale, name: Scale, schema: scale}
        - {parameter: debug, name: Debug, schema: switch}
        - {parameter: name, name: Name, schema: name, immutable: true}
        - {parameter: outputs, name: Outputs, schema: outputs}
        - {parameter: ports, name: Ports, schema: ports}
  schema:
    - {name: seconds, dataType: integer, minValue: 1, maxValue: 3600}
    - {name: level, dataType: string, options: [debug, info, warn]}
    - {name: scale, dataType: double, minValue: 0, maxValue: 10, maxPrecision: 2}
    - {name: switch, dataType: boolean}
    - {name: name, dataType: string, minLength: 2, maxLength: 12, regexMatch: "^[A-Z][A-Za-z0-9 ]*$"}
    - {name: outputs, dataType: string, options: [opcua, mqtt], multiselect: true}
    - {name: ports, dataType: "array[integer]", minValue: 1024, maxValue: 65535, allowEmpty: true}
`

// stocked is a registry with two versions of everything.
func stocked(t testing.TB) *memory {
	t.Helper()
	m := newMemory()
	for _, v := range []string{"1.4.0", "1.4.1"} {
		m.AddComponent(t, "line-monitor", v)
		m.AddComponent(t, "sensor", v)
		m.addPackage(t, v)
	}
	return m
}

// plant is a small fleet.
func plant() fstest.MapFS {
	return fstest.MapFS{
		"fleet.yaml": {Data: []byte(`fleet: acme-plant
registry: harbor.acme.example/plant
states: state/{labels.site}
include: [devices/*.yaml]
rollout:
  onFailure: rollback
  waves:
    - {name: canary, select: "device=press-07", soak: 30m}
    - {name: half, percent: 50, soak: 1h, success: 95}
    - {name: rest, percent: 100}
applications:
  line: {package: apps/line, version: "~1.4"}
  sensor: {component: components/sensor, version: 1.4.0}
groups:
  line-a:
    select: site=graz, line=a
    capabilities: capabilities/press.json
    parameters: {line: {poll: 10}}
  line-b: {select: "site=graz, line=b", capabilities: capabilities/small.json}
deployments:
  line:
    application: line
    select: site=graz
    exclude: device=spare-*
    parameters: {name: Graz, ports: [8080, 8443]}
  sensor:
    application: sensor
    select: group in (line-a)
    parameters: {RATE: 5}
`)},
		"devices/a.yaml": {Data: []byte(`devices:
  - {id: press-07, labels: {site: graz, line: a}, parameters: {line: {level: debug}}}
  - {id: press-08, labels: {site: graz, line: a}}
`)},
		"devices/b.yaml": {Data: []byte(`devices:
  - {id: gateway-1/press-19, labels: {site: graz, line: b}}
  - {id: spare-1, labels: {site: graz}, capabilities: unchecked}
`)},
		"capabilities/press.json": {Data: []byte(fmt.Sprintf(capabilitiesOf, "4", "amd64", "4Gi"))},
		"capabilities/small.json": {Data: []byte(fmt.Sprintf(capabilitiesOf, "1", "arm64", "1Gi"))},
	}
}
