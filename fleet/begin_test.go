package fleet_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// What init writes is a fleet that checks.
func TestBeginning(t *testing.T) {
	m := stocked(t)
	for name, b := range map[string]fleet.Beginning{
		"nothing known":         {Name: "acme"},
		"a component":           {Name: "acme", Registry: base, Component: "components/line-monitor:1.4.0", Devices: []string{"press-07", "007"}},
		"a component in full":   {Name: "acme", Registry: "oci://" + base, Component: "oci://" + base + "/components/line-monitor:1.4.0", Devices: []string{"press-07"}},
		"a package":             {Name: "acme", Registry: base, Package: "apps/line:~1.4"},
		"a component elsewhere": {Name: "acme", Registry: "harbor.acme.example/other", Component: "oci://" + base + "/components/sensor:1.4.1", Devices: []string{"a"}},
	} {
		files, err := b.Files()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		dir := fstest.MapFS{}
		for _, f := range files {
			dir[f.Name] = &fstest.MapFile{Data: f.Data}
		}
		f, err := fleet.Read(dir)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, files[0].Data)
			continue
		}
		if len(f.Devices) == 0 {
			continue // selectors have nothing to select yet
		}
		c := compiled(t, dir, m)
		if len(c.Assignments) != len(b.Devices) || len(c.Assignments[0].Placements) != 1 {
			t.Errorf("%s: %+v", name, c.Assignments)
		}
	}
	for name, b := range map[string]fleet.Beginning{
		"name": {Name: "Acme GmbH"}, "registry": {Name: "a", Registry: "https://x"}, "component": {Name: "a", Component: "web"},
		"device": {Name: "a", Devices: []string{"a b"}}, "version": {Name: "a", Package: "web:"},
	} {
		if _, err := b.Files(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("bad %s: %v", name, err)
		}
	}
}

func TestDiffs(t *testing.T) {
	m, files := stocked(t), with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0")
	files = with(files, "devices/b.yaml", "capabilities: unchecked", "capabilities: capabilities/press.json")
	publish(t, plan(t, files, m, options()), m)
	var b strings.Builder
	for _, change := range [][2]string{{"poll: 10", "poll: 11"}, {"select: group in (line-a)", "select: device=press-08"}, {"exclude: device=spare-*", "exclude: device=press-08"}} {
		diffs, err := plan(t, with(files, "fleet.yaml", change[0], change[1]), m, options()).Diffs(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range diffs {
			b.WriteString("== " + strings.Join(d.Devices, " ") + "\n" + strings.Join(d.Lines, "\n") + "\n")
		}
	}
	golden(t, "diff.golden", b.String())
}
