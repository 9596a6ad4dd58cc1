package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// Carry copies within the memory.
func (m *memory) Carry(_ context.Context, from, to string, d digest.Digest, tag string) error {
	if err := m.ask("carry " + from + " " + to + ":" + tag); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if there := m.tags[to+":"+tag]; there != "" && there != d {
		return fmt.Errorf("%s:%s: %w", to, tag, fault.ErrConflict)
	}
	m.tags[to+":"+tag] = d
	return nil
}

// versions finds out what a fleet has.
func versions(t *testing.T, files fstest.MapFS, m *memory) ([]*fleet.Promoted, error) {
	t.Helper()
	return compiled(t, files, m).Published(t.Context(), m, options(), nil)
}

func TestPromote(t *testing.T) {
	m := stocked(t)
	staging := with(plant(), "fleet.yaml", "line: {package: apps/line, version: \"~1.4\"}", "line: {package: apps/line, channel: stable}")
	m.tags[base+"/apps/line:stable"] = m.tags[base+"/apps/line:1.4.0"]
	publish(t, plan(t, staging, m, options()), m)
	// The channel moves, and a component's version is pushed anew: nothing of that runs in staging.
	m.tags[base+"/apps/line:stable"] = m.tags[base+"/apps/line:1.4.1"]
	component := base + "/components/line-monitor:1.4.0"
	was := m.tags[component]
	m.addComponent(t, "moved", "1.4.0")
	m.tags[component] = m.tags[base+"/components/moved:1.4.0"]
	found, err := versions(t, staging, m)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || found[0].Version != "1.4.0" || found[0].Digest != m.tags[base+"/apps/line:1.4.0"] || found[0].Components[component].Digest != was || found[0].Devices != 3 {
		t.Fatalf("found %+v, want line 1.4.0 with the component as it was", found[0])
	}
	if found[1].Version != "1.4.0" || found[1].Digest != m.tags[base+"/components/sensor:1.4.0"] || found[1].Devices != 2 {
		t.Errorf("found %+v, want sensor 1.4.0", found[1])
	}
	// A version of which only the package is another makes the same documents: it was never there.
	m.addPackage(t, "1.4.9")
	// Production has a registry of its own.
	production := with(with(plant(), "fleet.yaml", "registry: harbor.acme.example/plant", "registry: prod.example/plant"), "fleet.yaml", "version: 1.4.0", `version: "^1"`)
	source, err := fleet.Read(staging)
	if err != nil {
		t.Fatal(err)
	}
	target, err := fleet.Read(production)
	if err != nil {
		t.Fatal(err)
	}
	all, err := target.Promote(source, found, nil)
	if err != nil || len(all) != 2 {
		t.Fatalf("Promote = %v, %v", all, err)
	}
	for _, p := range all {
		if err := p.Carry(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"prod.example/plant/apps/line:1.4.0", "prod.example/plant/components/line-monitor:1.4.0", "prod.example/plant/components/sensor:1.4.0"} {
		if m.tags[want] == "" {
			t.Errorf("%s is not there", want)
		}
	}
	files := locked(production, target.Locks(all))
	publish(t, plan(t, files, m, options()), m)
	again, err := versions(t, files, m)
	if err != nil || again[0].Digest != found[0].Digest || again[0].Components[component].Digest != was || again[0].Components[component].Repository != "prod.example/plant/components/line-monitor" {
		t.Errorf("production has %+v, %v, want what staging has", again[0], err)
	}
	// Once more there is nothing new.
	target, err = fleet.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	if all, err = target.Promote(source, found, nil); err != nil || !all[0].Same || !all[1].Same || all[0].Was != "1.4.0" {
		t.Errorf("again: %+v, %v", all, err)
	}
	// From there into a third one, whose registry is staging's: the package names its own component again.
	third, err := fleet.Read(with(plant(), "fleet.yaml", "version: 1.4.0", `version: "^1"`))
	if err != nil {
		t.Fatal(err)
	}
	if all, err = third.Promote(target, again, []string{"line"}); err != nil || len(all) != 1 || all[0].Now.Components[component].Repository != "" {
		t.Errorf("a third: %+v, %v", all, err)
	}
}

// What is not exactly one version on every device is not promoted.
func TestPromoteRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(m *memory) fstest.MapFS // after everything of 1.4.1 is published
		want string
		kind error
	}{
		{"nothing published", func(m *memory) fstest.MapFS { delete(m.tags, graz+":press-08"); return plant() }, "what press-08 has: nothing is published for it", fault.ErrNotFound},
		{"other parameters", func(*memory) fstest.MapFS { return with(plant(), "fleet.yaml", "poll: 10", "poll: 11") }, "press-07 has another line than 1.4.1 makes", fault.ErrConflict},
		{"a device more", func(*memory) fstest.MapFS {
			return with(plant(), "fleet.yaml", "select: group in (line-a)", "select: site=graz, device!=spare-1")
		}, "has nothing of sensor published", fault.ErrConflict},
		{"two versions", func(m *memory) fstest.MapFS {
			o := options()
			o.Devices = func(d *fleet.Device) bool { return d.ID == "press-08" }
			m.addPackage(t, "1.4.2")
			m.addComponent(t, "line-monitor", "1.4.2")
			publish(t, plan(t, plant(), m, o), m)
			return plant()
		}, "no version makes what is published", fault.ErrConflict},
		{"pushed anew between devices", func(m *memory) fstest.MapFS {
			m.addComponent(t, "other", "1.4.0")
			m.tags[base+"/components/sensor:1.4.0"] = m.tags[base+"/components/other:1.4.0"]
			o := options()
			o.Devices = func(d *fleet.Device) bool { return d.ID == "press-08" }
			publish(t, plan(t, plant(), m, o), m)
			return plant()
		}, "on press-07, and", fault.ErrConflict},
	} {
		m := stocked(t)
		publish(t, plan(t, plant(), m, options()), m)
		_, err := versions(t, c.do(m), m)
		if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	m := stocked(t)
	publish(t, plan(t, plant(), m, options()), m)
	behind := func(_ context.Context, id artifacts.DeviceID, d digest.Digest) error {
		if id == "press-08" {
			return fmt.Errorf("it runs generation 0, not %s: %w", d, fault.ErrConflict)
		}
		return nil
	}
	if _, err := compiled(t, plant(), m).Published(t.Context(), m, options(), behind); !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "what press-08 has: it runs generation 0") {
		t.Errorf("a device that does not run it: %v", err)
	}
	o := options()
	o.Devices = func(d *fleet.Device) bool { return d.ID != "press-08" }
	found, err := compiled(t, plant(), m).Published(t.Context(), m, o, behind)
	if err != nil || found[0].Devices != 2 {
		t.Fatalf("the others: %+v, %v", found, err)
	}
	o.Verify = func(context.Context, string, digest.Digest) error { return fault.ErrUnsigned }
	if _, err := compiled(t, plant(), m).Published(t.Context(), m, o, nil); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("unsigned: %v", err)
	}
	source, err := fleet.Read(plant())
	if err != nil {
		t.Fatal(err)
	}
	for want, files := range map[string]fstest.MapFS{
		"allows 1.4.0 only":                 with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0"),
		"fleet acme-plant has none of this": with(with(plant(), "fleet.yaml", "line: {package", "lane: {package"), "fleet.yaml", "application: line", "application: lane"),
		"a component in one of the fleets":  with(plant(), "fleet.yaml", "package: apps/line", "component: apps/line"),
	} {
		target, err := fleet.Read(files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := target.Promote(source, found, []string{"line"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := source.Promote(source, found, []string{"lime"}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an application that is not there: %v", err)
	}
}
