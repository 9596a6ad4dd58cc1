package fleettest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
)

// lockOf has the images of the component, by version.
func lockOf(version string) *artifacts.Lock {
	image := func(name, content string) artifacts.LockedImage {
		return artifacts.LockedImage{Reference: name, Digest: digest.FromString(name + content), Platforms: []artifacts.LockedPlatform{
			{Platform: "linux/amd64", Digest: digest.FromString(name + content + "amd64"), Size: 10_000_000},
			{Platform: "linux/arm64", Digest: digest.FromString(name + content + "arm64"), Size: 9_000_000},
		}}
	}
	return &artifacts.Lock{Images: []artifacts.LockedImage{image("caddy:2.10", version), image("nats:2.12", "same")}}
}

// Base is below which everything of these fleets is.
const Base = "harbor.acme.example/plant"

// AddComponent pushes a component of a version.
func (r *Registry) AddComponent(t testing.TB, name, version string) {
	t.Helper()
	a, err := artifacts.PackComponent(fstest.MapFS{"compose.yaml": {Data: []byte(
		"services:\n  web: {image: \"caddy:2.10\", environment: {POLL: \"${POLL:-1}\"}}\n  broker: {image: \"nats:2.12\"}\n")}},
		artifacts.ComponentOptions{Name: name, Version: version, Lock: lockOf(version)})
	if err != nil {
		t.Fatal(err)
	}
	r.Push(Base+"/components/"+name, version, a)
}

// Capabilities is what a device can do, to be filled in: cores, architecture, memory.
const Capabilities = `{"properties": {"id": "template", "vendor": "Acme", "modelNumber": "P", "serialNumber": "1",
"cpus": [{"cores": %s, "architecture": %q}], "memory": %q, "storage": "64Gi", "peripherals": [], "interfaces": [{"type": "ethernet"}],
"otelCollector": true, "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"]}, "labels": {"class": "press"}}`

// Staged is a fleet of n devices in four lines, with a rollout, and with one of group line-c's own when own is not empty.
func Staged(n int, waves, own string) fstest.MapFS {
	var b strings.Builder
	fmt.Fprint(&b, "fleet: acme-plant\nregistry: harbor.acme.example/plant\napplications: {sensor: {component: components/sensor, version: 1.4.0}}\n")
	if waves != "" {
		fmt.Fprintf(&b, "rollout: {onFailure: rollback, waves: [%s]}\n", waves)
	}
	fmt.Fprint(&b, "groups:\n  line-a: {select: line=a}\n  line-c:\n    select: line=c\n")
	if own != "" {
		fmt.Fprintf(&b, "    rollout: {waves: [%s]}\n", own)
	}
	fmt.Fprint(&b, "deployments:\n  sensor: {application: sensor, select: \"*\", parameters: {RATE: 5}}\ndevices:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: press-%03d, labels: {line: %c}}\n", i, 'a'+i%4)
	}
	return fstest.MapFS{fleet.File: {Data: []byte(b.String())}}
}

// Compiled reads, resolves and compiles.
func Compiled(t testing.TB, files fstest.MapFS, from fleet.Registry) *fleet.Compiled {
	t.Helper()
	c, err := Compile(files, from)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Compile is Compiled with what is wrong as an error.
func Compile(files fstest.MapFS, from fleet.Registry) (*fleet.Compiled, error) {
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

// With is a copy of files in which a text of one is another.
func With(files fstest.MapFS, name, from, to string) fstest.MapFS {
	out := maps.Clone(files)
	old := string(out[name].Data)
	if !strings.Contains(old, from) {
		panic("no " + from + " in " + name)
	}
	out[name] = &fstest.MapFile{Data: []byte(strings.Replace(old, from, to, 1))}
	return out
}

// Planned is what publishing files would change.
func Planned(t testing.TB, r fleet.Registry, files fstest.MapFS, o fleet.Options) *fleet.Plan {
	t.Helper()
	p, err := Compiled(t, files, r).Plan(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
