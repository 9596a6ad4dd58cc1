package fleet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// memory is a registry of maps.
type memory struct {
	mu        sync.Mutex
	tags      map[string]digest.Digest // "host/path:tag"
	manifests map[digest.Digest][]byte
	blobs     map[digest.Digest][]byte
	asked     map[string]int
	fail      error // what every call answers; nil: none
	published []string
	conflict  map[string]bool // tags that cannot be published
	torn      string          // "host/path:tag" under which half of a manifest is
	away      map[string]int  // how many calls of a kind find it away
	before    func()          // is called before something is published
	// cut is called before each write of a publication, with the tag that it sets ("": blobs and manifest), and after the last
	// one, with NextTag. Its error ends the publication there. nil: all are done.
	cut func(repository, tag string) error
}

func newMemory() *memory {
	return &memory{tags: map[string]digest.Digest{}, manifests: map[digest.Digest][]byte{}, blobs: map[digest.Digest][]byte{}, asked: map[string]int{}, conflict: map[string]bool{}}
}

func (m *memory) push(repository, tag string, a *artifacts.Artifact) digest.Digest {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range a.Blobs {
		m.blobs[b.Descriptor.Digest] = b.Data
	}
	m.manifests[a.Descriptor.Digest] = a.Manifest
	if tag != "" {
		m.tags[repository+":"+tag] = a.Descriptor.Digest
	}
	return a.Descriptor.Digest
}

func (m *memory) ask(what string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[what]++
	if m.away[what] > 0 {
		m.away[what]--
		return fmt.Errorf("%s: connection refused: %w", what, fault.ErrTemporary)
	}
	return m.fail
}

// leave lets so many calls of a kind find the registry away.
func (m *memory) leave(what string, calls int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = map[string]int{what: calls}
}

func (m *memory) Tags(_ context.Context, repository string) ([]string, error) {
	if err := m.ask("tags"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for t := range m.tags {
		if tag, ok := strings.CutPrefix(t, repository+":"); ok {
			out = append(out, tag)
		}
	}
	if out == nil {
		return nil, fmt.Errorf("list tags of %s: %w", repository, fault.ErrNotFound)
	}
	slices.Sort(out)
	return out, nil
}

func (m *memory) Resolve(_ context.Context, repository, tag string) (ocispec.Descriptor, error) {
	if err := m.ask("resolve"); err != nil {
		return ocispec.Descriptor{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.tags[repository+":"+tag]
	if m.torn == repository+":"+tag {
		return ocispec.Descriptor{}, fmt.Errorf("resolve %s:%s: %w", repository, tag, fault.ErrInvalid)
	}
	if !ok {
		return ocispec.Descriptor{}, fmt.Errorf("resolve %s:%s: %w", repository, tag, fault.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(m.manifests[d]))}, nil
}

func (m *memory) Manifest(_ context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if err := m.ask("manifest"); err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.manifests[d]
	if !ok {
		return ocispec.Descriptor{}, nil, fmt.Errorf("fetch %s@%s: %w", repository, d, fault.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}, data, nil
}

func (m *memory) Blob(_ context.Context, repository string, d ocispec.Descriptor, _ int64) ([]byte, error) {
	if err := m.ask("blob"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.blobs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("fetch %s@%s: %w", repository, d.Digest, fault.ErrNotFound)
	}
	return data, nil
}

// images of the component, by version.
func lockOf(version string) *artifacts.Lock {
	image := func(name, content string) artifacts.LockedImage {
		return artifacts.LockedImage{Reference: name, Digest: digest.FromString(name + content), Platforms: []artifacts.LockedPlatform{
			{Platform: "linux/amd64", Digest: digest.FromString(name + content + "amd64"), Size: 10_000_000},
			{Platform: "linux/arm64", Digest: digest.FromString(name + content + "arm64"), Size: 9_000_000},
		}}
	}
	return &artifacts.Lock{Images: []artifacts.LockedImage{image("caddy:2.10", version), image("nats:2.12", "same")}}
}

const base = "harbor.acme.example/plant"

// addComponent pushes a component of a version.
func (m *memory) addComponent(t testing.TB, name, version string) {
	t.Helper()
	a, err := artifacts.PackComponent(fstest.MapFS{"compose.yaml": {Data: []byte(
		"services:\n  web: {image: \"caddy:2.10\", environment: {POLL: \"${POLL:-1}\"}}\n  broker: {image: \"nats:2.12\"}\n")}},
		artifacts.ComponentOptions{Name: name, Version: version, Lock: lockOf(version)})
	if err != nil {
		t.Fatal(err)
	}
	m.push(base+"/components/"+name, version, a)
}

// addPackage pushes the application "line" of a version, with one parameter of every kind.
func (m *memory) addPackage(t testing.TB, version string) {
	t.Helper()
	a, _, err := artifacts.PackPackage(fstest.MapFS{"margo.yaml": {Data: []byte(fmt.Sprintf(description, version))}}, artifacts.PackageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.push(base+"/apps/line", version, a)
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

const capabilitiesOf = `{"properties": {"id": "template", "vendor": "Acme", "modelNumber": "P", "serialNumber": "1",
"cpus": [{"cores": %s, "architecture": %q}], "memory": %q, "storage": "64Gi", "peripherals": [], "interfaces": [{"type": "ethernet"}],
"otelCollector": true, "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"]}, "labels": {"class": "press"}}`

// stocked is a registry with two versions of everything.
func stocked(t testing.TB) *memory {
	t.Helper()
	m := newMemory()
	for _, v := range []string{"1.4.0", "1.4.1"} {
		m.addComponent(t, "line-monitor", v)
		m.addComponent(t, "sensor", v)
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

// compiled reads, resolves and compiles.
func compiled(t testing.TB, files fstest.MapFS, from fleet.Registry) *fleet.Compiled {
	t.Helper()
	c, err := compile(files, from)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func compile(files fstest.MapFS, from fleet.Registry) (*fleet.Compiled, error) {
	f, err := fleet.Read(files)
	if err != nil {
		return nil, err
	}
	releases, err := fleet.Resolve(context.Background(), f, from)
	if err != nil {
		return nil, err
	}
	return fleet.Compile(f, releases)
}

// with is a copy of files in which a text of one is another.
func with(files fstest.MapFS, name, from, to string) fstest.MapFS {
	out := fstest.MapFS{}
	for k, v := range files {
		out[k] = v
	}
	old := string(out[name].Data)
	if !strings.Contains(old, from) {
		panic("no " + from + " in " + name)
	}
	out[name] = &fstest.MapFile{Data: []byte(strings.Replace(old, from, to, 1))}
	return out
}
