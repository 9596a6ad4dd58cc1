package fleet_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// What init writes with nothing known is filled in by taking away comment signs, and editors agree.
func TestBeginningIsFilledIn(t *testing.T) {
	files, err := fleet.Beginning{Name: "acme"}.Files()
	if err != nil {
		t.Fatal(err)
	}
	text := string(files[0].Data)
	schema := schemaOf(t, fleet.Schema())
	for _, line := range []string{"", "  # line-monitor: {package", "  # line-monitor: {application", "  # - {id: press-07"} {
		text = strings.Replace(text, line, strings.Replace(line, "# ", "", 1), 1)
		written := strings.Replace(text, ", capabilities: capabilities/press-07.json", "", 1)
		var doc any
		if err := yaml.Unmarshal([]byte(written), &doc); err != nil {
			t.Fatal(err)
		}
		if _, err := fleet.Read(fstest.MapFS{fleet.File: {Data: []byte(written)}}); err != nil && line != "  # line-monitor: {application" || schema.Validate(doc) != nil {
			t.Errorf("%q: Read = %v, schema: %v\n%s", line, err, schema.Validate(doc), written)
		}
	}
}

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

// What changes no line is left out, and what one device has and nobody can read keeps no other one's lines.
func TestDiffsOfSome(t *testing.T) {
	m, files := stocked(t), plant()
	publish(t, plan(t, files, m, options()), m)
	o := options()
	o.Now = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	o.Expires = o.Now.AddDate(0, 1, 0)
	p := plan(t, files, m, o)
	if diffs, err := p.Diffs(t.Context(), m); err != nil || p.Count(fleet.Publish) != 3 || diffs == nil || len(diffs) != 0 {
		t.Errorf("%d get an end, and differ in %v, %v", p.Count(fleet.Publish), diffs, err)
	}
	x, err := artifacts.OpenState(m.Manifests[m.Named[base+"/state/graz:press-07"]])
	if err != nil {
		t.Fatal(err)
	}
	m.Uncarry(m.Named[base+"/state/graz:press-07"])
	delete(m.Blobs, x.Deployments[0].Digest)
	delete(m.Blobs, x.Deployments[1].Digest)
	diffs, err := plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, options()).Diffs(t.Context(), m)
	if err != nil || len(diffs) != 2 || !strings.Contains(diffs[0].Lines[0], "could not be read") || diffs[1].Devices[0] != "press-08" {
		t.Errorf("%+v, %v", diffs, err)
	}
}

// The name of a fleet is a tag where its rollouts are kept, and lists of signatures are tags there, too.
func TestFleetIsNotCalledLikeSignatures(t *testing.T) {
	const name = "sha256-plant"
	_, err := fleet.Beginning{Name: name}.Files()
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "what begins with sha256- is a list of signatures") {
		t.Errorf("begin: %v", err)
	}
	_, err = fleet.Read(with(plant(), fleet.File, "fleet: acme", "fleet: "+name))
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), `fleet.yaml:1:8: fleet: "sha256-plant`) {
		t.Errorf("read: %v", err)
	}
	if fleet.ValidName(name) || !fleet.ValidName("sha256") {
		t.Error("the names are not told apart")
	}
}
