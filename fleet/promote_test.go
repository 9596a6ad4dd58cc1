package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// Carry copies within the memory.
func (m *memory) Carry(_ context.Context, from, to string, d digest.Digest, tag string) error {
	if err := m.Ask("carry " + from + " " + to + ":" + tag); err != nil {
		return err
	}
	m.Lock()
	defer m.Unlock()
	if there := m.Named[to+":"+tag]; there != "" && there != d {
		return fmt.Errorf("%s:%s: %w", to, tag, fault.ErrConflict)
	}
	m.Named[to+":"+tag] = d
	return nil
}

// versions finds out what a fleet has.
func versions(t *testing.T, files fstest.MapFS, m *memory) ([]*fleet.Promoted, error) {
	t.Helper()
	return compiled(t, files, m).Published(t.Context(), m, options(), nil, nil)
}

func TestPromote(t *testing.T) {
	m := stocked(t)
	staging := with(plant(), "fleet.yaml", "line: {package: apps/line, version: \"~1.4\"}", "line: {package: apps/line, channel: stable}")
	m.Named[base+"/apps/line:stable"] = m.Named[base+"/apps/line:1.4.0"]
	publish(t, plan(t, staging, m, options()), m)
	// The channel moves, and a component's version is pushed anew: nothing of that runs in staging.
	m.Named[base+"/apps/line:stable"] = m.Named[base+"/apps/line:1.4.1"]
	component := base + "/components/line-monitor:1.4.0"
	was := m.Named[component]
	m.AddComponent(t, "moved", "1.4.0")
	m.Named[component] = m.Named[base+"/components/moved:1.4.0"]
	found, err := versions(t, staging, m)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || found[0].Version != "1.4.0" || found[0].Digest != m.Named[base+"/apps/line:1.4.0"] || found[0].Components[component].Digest != was || found[0].Devices != 3 {
		t.Fatalf("found %+v, want line 1.4.0 with the component as it was", found[0])
	}
	if found[1].Version != "1.4.0" || found[1].Digest != m.Named[base+"/components/sensor:1.4.0"] || found[1].Devices != 2 {
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
		if m.Named[want] == "" {
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

// States say where their packages are; one that moved to another repository meanwhile is still one version, and looked at once.
func TestPromoteMovedPackage(t *testing.T) {
	m := stocked(t)
	publish(t, plan(t, plant(), m, options()), m)
	moved := with(plant(), "fleet.yaml", "package: apps/line", "package: oci://other.example/line")
	for _, v := range []string{"1.4.0", "1.4.1"} {
		if err := m.Carry(t.Context(), base+"/apps/line", "other.example/line", m.Named[base+"/apps/line:"+v], v); err != nil {
			t.Fatal(err)
		}
	}
	if p := plan(t, moved, m, options()); p.Count(fleet.Same) != 4 {
		t.Errorf("only the package moved: %s Want that nothing is published for it", p.Summary())
	}
	count := func(files fstest.MapFS) int {
		t.Helper()
		c := compiled(t, files, m)
		m.Asked = map[string]int{}
		if _, err := c.Published(t.Context(), m, options(), nil, nil); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("what is published is not what the files make: %v", err)
		}
		return m.Asked["resolve"]
	}
	once := count(with(moved, "fleet.yaml", "poll: 10", "poll: 11"))
	files := with(moved, "devices/a.yaml", "level: debug", "level: info")
	publish(t, plan(t, files, m, options()), m)
	for device, where := range map[string]string{"press-07": "other.example/line", "press-08": base + "/apps/line"} {
		x, err := artifacts.OpenState(m.Manifests[m.Named[graz+":"+device]])
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]artifacts.ApplicationVersion{"line": {Repository: where, Version: "1.4.1", Digest: m.Named[base+"/apps/line:1.4.1"]}}
		if diff := cmp.Diff(want, x.Applications); diff != "" { // the sensor is a component without a package
			t.Errorf("%s (-want +got):\n%s", device, diff)
		}
	}
	found, err := versions(t, files, m)
	if err != nil || len(found) != 2 || found[0].Version != "1.4.1" || found[0].Repository != "other.example/line" {
		t.Errorf("%+v, %v, want line 1.4.1 where the files say", found, err)
	}
	if n := count(with(files, "fleet.yaml", "poll: 10", "poll: 11")); n != once {
		t.Errorf("%d tags were resolved to promote, %d before a device named the new repository", n, once)
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
		{"nothing published", func(m *memory) fstest.MapFS { delete(m.Named, graz+":press-08"); return plant() }, "read the state of press-08: nothing is published for it", fault.ErrNotFound},
		{"other parameters", func(*memory) fstest.MapFS { return with(plant(), "fleet.yaml", "poll: 10", "poll: 11") }, "press-07 has another line than 1.4.1 makes", fault.ErrConflict},
		{"a device more", func(*memory) fstest.MapFS {
			return with(plant(), "fleet.yaml", "select: group in (line-a)", "select: site=graz, device!=spare-1")
		}, "has nothing of sensor published", fault.ErrConflict},
		{"two versions", func(m *memory) fstest.MapFS {
			o := options()
			o.Devices = func(d *fleet.Device) bool { return d.ID == "press-08" }
			m.addPackage(t, "1.4.2")
			m.AddComponent(t, "line-monitor", "1.4.2")
			publish(t, plan(t, plant(), m, o), m)
			return plant()
		}, "no version makes what is published", fault.ErrConflict},
		{"pushed anew between devices", func(m *memory) fstest.MapFS {
			m.AddComponent(t, "other", "1.4.0")
			m.Named[base+"/components/sensor:1.4.0"] = m.Named[base+"/components/other:1.4.0"]
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
	found, err := versions(t, plant(), m)
	if err != nil {
		t.Fatal(err)
	}
	o := options()
	o.Verify = func(context.Context, string, digest.Digest) error { return fault.ErrUnsigned }
	if _, err := compiled(t, plant(), m).Published(t.Context(), m, o, nil, nil); !errors.Is(err, fault.ErrUnsigned) {
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

// With what devices report only what runs is promoted; each deployment that does not is told with its devices.
func TestPromoteWhatRuns(t *testing.T) {
	m := stocked(t)
	publish(t, plan(t, plant(), m, options()), m)
	all := compiled(t, plant(), m)
	seen := map[artifacts.DeviceID]*rollout.DeviceReport{}
	report := func(id artifacts.DeviceID, agent string, generation uint64, states map[string]margo.State) {
		tag := m.Named[graz+":"+id.Tag()]
		s := &rollout.DeviceReport{Agent: agent, Accepted: generation, Committed: generation, Digest: tag}
		for name, state := range states {
			s.Deployments = append(s.Deployments, rollout.DeploymentReport{ID: strings.ToUpper(artifacts.DeploymentID(id, name)), Generation: generation, State: state})
		}
		seen[id] = s
	}
	runs := func(x artifacts.RolloutTarget, deployment string) string { return seen[x.Device].Lacks(x, deployment) }
	well := map[string]margo.State{"line": margo.StateInstalled, "sensor": margo.StateInstalled}
	promote := func(only ...string) error {
		found, err := all.Published(t.Context(), m, options(), only, runs)
		if err == nil && len(found) == 0 {
			t.Errorf("nothing is found, and no error")
		}
		return err
	}
	report("press-07", "1.0", 1, well)
	report("gateway-1/press-19", "", 1, well) // another agent
	for _, c := range []struct {
		name       string
		do         func()
		line, both string // of the error with --application line, and of that without; "": none
	}{
		{"silent", func() {}, "line: deployment line does not run as it is published: conflict: press-08: it has reported nothing", "sensor: deployment sensor"},
		{"behind", func() { report("press-08", "1.0", 0, well) }, "press-08: it has generation 0, and 1 is published", "sensor: deployment sensor"},
		{"another state", func() { report("press-08", "1.0", 1, well); seen["press-08"].Digest = "sha256:beef" }, "it has another state as generation 1", "sensor"},
		{"refused", func() {
			report("press-08", "1.0", 0, nil)
			seen["press-08"].Refused = &artifacts.CurrentRefusal{Digest: m.Named[graz+":press-08"], Code: "no-space", Message: "disk full"}
		}, "it refuses generation 1: no-space: disk full", "sensor"},
		{"one of two failed", func() {
			report("press-08", "1.0", 1, map[string]margo.State{"line": margo.StateInstalled, "sensor": margo.StateFailed})
		}, "", "sensor: deployment sensor does not run as it is published: conflict: press-08: deployment "},
		{"at work", func() {
			report("press-08", "1.0", 1, map[string]margo.State{"line": margo.StateInstalling, "sensor": margo.StateInstalled})
		}, "press-08: it is installing", "press-08: it is installing"},
		{"tells of one", func() { report("press-08", "1.0", 1, map[string]margo.State{"sensor": margo.StateInstalled}) }, "it has not reported it", "it has not reported it"},
		{"not committed", func() {
			report("press-08", "1.0", 1, well)
			seen["press-08"].Committed, seen["press-08"].Deployments[0].Generation, seen["press-08"].Deployments[1].Generation = 0, 0, 0
		}, "it is reported for generation 0, and 1 is published", "sensor"},
		{"well", func() { report("press-08", "1.0", 1, well) }, "", ""},
	} {
		c.do()
		for only, want := range map[string]string{"line": c.line, "": c.both} {
			names := []string{only}
			if only == "" {
				names = nil
			}
			err := promote(names...)
			if (err == nil) != (want == "") || err != nil && (!errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, only %q: %v, want %q", c.name, only, err, want)
			}
		}
	}
}

// What no device of the one environment has is not promoted by its tags: a device of the other that would get it is told.
func TestPromoteUntried(t *testing.T) {
	m := stocked(t)
	text := strings.Replace(description, `id: small
    components:
      - {name: line-monitor, properties: {repository: "oci://harbor.acme.example/plant/components/line-monitor"`, `id: small
    components:
      - {name: line-monitor, properties: {repository: "oci://harbor.acme.example/plant/components/sensor"`, 1)
	if text == description {
		t.Fatal("no profile small")
	}
	a, _, err := artifacts.PackPackage(fstest.MapFS{"margo.yaml": {Data: []byte(fmt.Sprintf(text, "1.4.1"))}}, artifacts.PackageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Push(base+"/apps/line", "1.4.1", a)
	large := with(plant(), "fleet.yaml", "exclude: device=spare-*", `exclude: "line=b"`)
	large = with(large, "devices/b.yaml", "  - {id: spare-1, labels: {site: graz}, capabilities: unchecked}\n", "")
	publish(t, plan(t, large, m, options()), m)
	found, err := versions(t, large, m)
	if err != nil {
		t.Fatal(err)
	}
	for key := range found[0].Components {
		if key != base+"/components/line-monitor:1.4.1" {
			t.Errorf("%s is to be locked, which no device has", key)
		}
	}
	source, err := fleet.Read(large)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := source.Promote(source, found, []string{"line"}); err != nil || len(all[0].Now.Components) != 1 {
		t.Errorf("to devices of the same profile: %+v, %v", all, err)
	}
	both, err := fleet.Read(plant())
	if err != nil {
		t.Fatal(err)
	}
	_, err = both.Promote(source, found, []string{"line"})
	want := "application line: gateway-1/press-19 gets profile small, and no device of acme-plant has " + base + "/components/sensor:1.4.1 of it published"
	if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), want) || fault.Hint(err) == "" {
		t.Errorf("to a device of another profile: %v, want %q", err, want)
	}
}
