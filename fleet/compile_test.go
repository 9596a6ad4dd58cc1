package fleet_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/fleet"
)

var rounds = flag.Int("fleet.rounds", 150, "rounds of property tests")

// golden compares with testdata/NAME, which UPDATE_GOLDEN=1 rewrites.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// The whole of what devices get, byte for byte.
func TestDocuments(t *testing.T) {
	c := compiled(t, plant(), stocked(t))
	var b strings.Builder
	for _, a := range c.Assignments {
		fmt.Fprintf(&b, "==== %s in %s\n", a.Device.ID, a.Repository)
		for _, why := range a.Unfit {
			fmt.Fprintf(&b, "unfit: %s\n", why)
		}
		docs, err := a.Documents(c.Fleet)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			fmt.Fprintf(&b, "---\n%s", d)
			if _, err := artifacts.ReadDeployment("x", d); err != nil {
				t.Error(err)
			}
		}
		if _, err := artifacts.PackState(artifacts.StateOptions{Device: a.Device.ID, Generation: 1, Deployments: docs}); err != nil {
			t.Error(err)
		}
	}
	golden(t, "documents.golden", b.String())
	for _, a := range c.Assignments {
		if len(a.Unfit) > 0 {
			t.Errorf("%s is unfit: %v", a.Device.ID, a.Unfit)
		}
	}
}

func TestPlacement(t *testing.T) {
	for _, c := range []struct {
		name, file, from, to string
		device, want         string // in a.Unfit; "": the profile that follows
		profile              string
	}{
		{"the first profile that fits", "fleet.yaml", "", "", "press-07", "", "5m0s"},
		{"the next one", "fleet.yaml", "", "", "gateway-1/press-19", "", "0s"},
		{"a profile that is asked for", "fleet.yaml", `version: "~1.4"`, `version: "~1.4", profile: small`, "press-07", "", "0s"},
		{"no profile fits", "capabilities/small.json", `"1Gi"`, `"256Mi"`, "gateway-1/press-19", "profile small: needs memory 512Mi, device has 256Mi", ""},
		{"another type", "capabilities/small.json", `["compose"]`, `["custom"]`, "gateway-1/press-19", "needs helm, device runs custom", ""},
		{"nothing is known", "fleet.yaml", "line=b\", capabilities: capabilities/small.json}\ndeployments:\n  line:\n", "line=b\"}\ndeployments:\n  line:\n    profile: small\n", "gateway-1/press-19", "nothing is known of the device", ""},
		{"not checked", "fleet.yaml", `capabilities: capabilities/small.json`, `capabilities: unchecked`, "gateway-1/press-19", "profile cluster: component chart:", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := plant()
			if c.from != "" {
				files = with(files, c.file, c.from, c.to)
			}
			all := compiled(t, files, stocked(t))
			i := slices.IndexFunc(all.Assignments, func(a *fleet.Assignment) bool { return string(a.Device.ID) == c.device })
			a := all.Assignments[i]
			if c.want != "" {
				if len(a.Unfit) != 1 || !strings.Contains(a.Unfit[0], c.want) {
					t.Errorf("unfit = %q, want %q", a.Unfit, c.want)
				}
				return
			}
			if len(a.Unfit) > 0 || a.Placements[0].Profile.Components[0].Properties.Timeout.String() != c.profile {
				t.Errorf("unfit %q, placed %+v", a.Unfit, a.Placements)
			}
		})
	}
}

// A component that is gone from the registry for a while moves no device to another profile.
func TestPlacementStaysWithItsProfile(t *testing.T) {
	m := stocked(t)
	files := with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0")
	line := func() *fleet.Assignment { return compiled(t, files, m).Assignments[1] }
	before := line()
	if len(before.Placements) != 2 || before.Placements[0].Profile.Components[0].Properties.Timeout.String() != "5m0s" {
		t.Fatalf("%s has %+v", before.Device.ID, before.Placements)
	}
	// The small profile is of another component, which stays.
	a, _, err := artifacts.PackPackage(fstest.MapFS{"margo.yaml": {Data: []byte(strings.Replace(fmt.Sprintf(description, "1.4.0"),
		`id: large
    components:
      - {name: line-monitor, properties: {repository: "oci://harbor.acme.example/plant/components/line-monitor"`, `id: large
    components:
      - {name: line-monitor, properties: {repository: "oci://harbor.acme.example/plant/components/gone"`, 1))}}, artifacts.PackageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Push(base+"/apps/line", "1.4.0", a)
	if after := line(); len(after.Unfit) != 1 || len(after.Placements) != 1 || !strings.Contains(after.Unfit[0], "line 1.4.0: profile large: component line-monitor:") {
		t.Errorf("unfit %q, placed %+v, want that the large profile cannot be had", after.Unfit, after.Placements)
	}
}

// Every fault of every file in one go, with its position.
func TestFaults(t *testing.T) {
	files := fstest.MapFS{
		"fleet.yaml": {Data: []byte(`fleet: Acme
registry: https://harbor
states: "state/{labels.size}"
include: [devices/*.yaml]
rollout:
  waves: [{name: one, percent: 50, select: "*"}, {name: two, percent: 120}, {name: three, percent: 20, soak: soon}, {name: one, percent: 10}]
applications:
  line: {package: apps/line, version: 1.x.y.z, channel: stable}
  bare: {version: "1.0.0"}
  both: {package: a, component: b, version: "1", profile: x}
  Bad Name: {package: "apps/line:1.0.0", version: "1.0.0"}
groups:
  empty: {select: "site=wien"}
  nested: {select: "group=empty"}
  broken: {select: "site in (a"}
deployments:
  line:
    application: lin
    select: "device in (press-07, press-99)"
    exclude: "group=lime"
    parameters: {a: {b: c}, d: [[1]]}
  line-2: {application: line}
  nobody: {application: line, select: "site in (linz, wien)"}
  nothing: {application: line, select: "place=graz"}
devices:
  - {id: press-07, labels: {site: graz, group: x, n: 7, "a b": c}, capabilities: gone.json, parameters: {liine: {a: 1}}}
  - {id: "press 07"}
  - {labels: {}}
`)},
		"devices/a.yaml": {Data: []byte("devices: [{id: press-07, capabilities: broken.json}]\nfleet: other\n")},
		"broken.json":    {Data: []byte(`{"properties": {"id": "x"}}`)},
	}
	golden(t, "faults.golden", faultsOf(t, files))
}

func faultsOf(t *testing.T, files fstest.MapFS) string {
	t.Helper()
	_, err := fleet.Read(files)
	var document *strict.Error
	if !errors.As(err, &document) || !errors.Is(err, fault.ErrInvalid) {
		t.Fatalf("Read = %v, want a document's faults", err)
	}
	var b strings.Builder
	for _, f := range document.Faults {
		one := strict.Error{File: document.File, Faults: []strict.Fault{f}}
		fmt.Fprintln(&b, one.Error())
		if f.Hint != "" {
			fmt.Fprintln(&b, "  hint: "+f.Hint)
		}
	}
	return b.String()
}

// What cannot be read may have what the rest asks for: that is not told as missing.
func TestFaultsOfSome(t *testing.T) {
	const rest = `
rollout: {waves: [{name: one, select: "device=press-09"}]}
applications: {line: {package: apps/line, version: "1"}}
groups: {a: {select: "site=linz", parameters: {vision: {a: 1}}}}
deployments: {line: {application: vision, select: "device=press-08", parameters: {a: {b: c}}}}
devices: [{id: press-07, labels: {site: graz}}]
`
	var b strings.Builder
	for _, head := range []string{"", "include: [gone/*.yaml]", "include: [../up]", "include: [fleet.yaml]", "aplications: {}", "include: [torn.yaml, large.yaml, empty.yaml]"} {
		fmt.Fprintf(&b, "# %s\n%s", head, faultsOf(t, fstest.MapFS{
			"fleet.yaml": {Data: []byte("fleet: acme\nregistry: harbor.acme.example/plant\n" + head + rest)},
			"torn.yaml":  {Data: []byte("devices: [\n")},
			"large.yaml": {Data: []byte(strings.Repeat("# a large file\n", 100_000))},
			"empty.yaml": {},
		}))
	}
	golden(t, "some-faults.golden", b.String())
}

// What the files ask of applications and parameters.
func TestReleaseFaults(t *testing.T) {
	for _, c := range []struct{ name, file, from, to, want string }{
		{"no such version", "fleet.yaml", `"~1.4"`, "1.9.9", "fleet.yaml:12:39: applications.line.version: there is no harbor.acme.example/plant/apps/line:1.9.9"},
		{"nothing in the range", "fleet.yaml", `"~1.4"`, `"^2"`, "no version of harbor.acme.example/plant/apps/line is in ^2"},
		{"no such repository", "fleet.yaml", "apps/line", "apps/lime", "no version of harbor.acme.example/plant/apps/lime is in ~1.4"},
		{"a component as a package", "fleet.yaml", `package: apps/line, version: "~1.4"`, "package: components/sensor, version: 1.4.0", "artifact type"},
		{"no such profile", "fleet.yaml", `version: "~1.4"`, `version: "~1.4", profile: huge`, `has no profile "huge"`},
		{"below the least", "fleet.yaml", "poll: 10", "poll: 0", "fleet.yaml:18:31: groups.line-a.parameters.line.poll: 0 is below 1"},
		{"above the most, on a device", "devices/a.yaml", "level: debug", "poll: 3601", "devices/a.yaml:2:77: devices[0].parameters.line.poll: 3601 is above 3600"},
		{"wrong type", "fleet.yaml", "poll: 10", `poll: "10"`, "must be a whole number, is a string"},
		{"none of the options", "devices/a.yaml", "level: debug", "level: loud", `"loud" is none of "debug", "info", "warn"`},
		{"too precise", "devices/a.yaml", "level: debug", "scale: 1.125", "3 digits behind the point"},
		{"no boolean", "devices/a.yaml", "level: debug", "debug: 1", "must be true or false"},
		{"no match", "fleet.yaml", "name: Graz", "name: graz", "does not match"},
		{"too long", "fleet.yaml", "name: Graz", "name: Graz and surroundings", "at most 12"},
		{"needs a value", "fleet.yaml", "name: Graz, ", "", `fleet.yaml:21:3: deployments.line: the parameter "name" of line 1.4.1 needs a value`},
		{"taken away", "devices/a.yaml", "level: debug", "level: null", `the parameter "level" of line 1.4.1 needs a value, on press-07 for one`},
		{"not one of several", "devices/a.yaml", "level: debug", "outputs: [mqtt, fax]", `element 1: "fax" is none of`},
		{"element too small", "fleet.yaml", "[8080, 8443]", "[8080, 80]", "element 1: 80 is below 1024"},
		{"unknown parameter", "fleet.yaml", "poll: 10", "pol: 10", `has no parameter "pol"`},
		{"no environment variable", "fleet.yaml", "RATE: 5", `"RA TE": 5`, "is not the name of an environment variable"},
		{"a device that does not run it", "devices/b.yaml", "spare-1, labels: {site: graz}", "spare-1, labels: {site: graz}, parameters: {line: {poll: 3}}", "spare-1 does not run line"},
		{"a group that does not run it", "fleet.yaml", `line-b: {select: "site=graz, line=b",`, `line-b: {select: "site=graz, line=b", parameters: {sensor: {RATE: 1}},`, "no device of the group runs sensor"},
		{"nothing is selected", "fleet.yaml", "exclude: device=spare-*", `exclude: "*"`, `no device is selected: select "site=graz", exclude "*"`},
		{"groups that say a number and a text", "fleet.yaml", "parameters: {line: {poll: 10}}", "parameters: {line: {poll: 10}, sensor: {RATE: 5}}\n  all: {select: \"*\", parameters: {sensor: {RATE: \"5\"}}}", "press-07 is in the groups line-a and all, which give RATE different values"},
		{"a label that is no part of a repository", "devices/b.yaml", "{id: spare-1, labels: {site: graz}", "{id: spare-1, labels: {site: a._b}", `its states would be in "harbor.acme.example/plant/state/a._b", which is no repository`},
		{"a label of other signs", "devices/b.yaml", "{id: spare-1, labels: {site: graz}", "{id: spare-1, labels: {site: graz~1}", `state/graz~1", which is no repository`},
		{"groups that do not agree", "fleet.yaml", "deployments:", "  all: {select: \"*\", parameters: {line: {poll: 11}}}\ndeployments:", "press-07 is in the groups line-a and all, which give poll different values"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := compile(with(plant(), c.file, c.from, c.to), stocked(t))
			var document *strict.Error
			if !errors.As(err, &document) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v\nwant %q", err, c.want)
			}
		})
	}
	m := stocked(t)
	m.Err = fmt.Errorf("ask: %w", fault.ErrTemporary)
	if _, err := compile(plant(), m); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("a registry that is away: %v", err)
	}
	if _, err := fleet.Read(fstest.MapFS{}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("no fleet: %v", err)
	}
}

// The device decides where groups do not agree.
func TestDeviceDecides(t *testing.T) {
	files := with(plant(), "fleet.yaml", "deployments:", "  seven: {select: \"device=press-07\", parameters: {line: {poll: 11}}}\ndeployments:")
	files = with(files, "devices/a.yaml", "level: debug", "level: debug, poll: 12")
	for _, a := range compiled(t, files, stocked(t)).Assignments {
		if a.Device.ID == "press-07" && a.Placements[0].Parameters["poll"].Value != int64(12) {
			t.Errorf("poll = %v, want the device's own", a.Placements[0].Parameters["poll"])
		}
	}
}

func TestSelectors(t *testing.T) {
	files := with(plant(), "devices/a.yaml", "line: a}}\n", "line: a, tier: \"1\"}}\n")
	f, err := fleet.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"*":                              "gateway-1/press-19 press-07 press-08 spare-1",
		"site=graz":                      "gateway-1/press-19 press-07 press-08 spare-1",
		"site==graz,line = a":            "press-07 press-08",
		"line":                           "gateway-1/press-19 press-07 press-08",
		"!line":                          "spare-1",
		"line!=a":                        "gateway-1/press-19 spare-1",
		"line in (a,b), tier":            "press-08",
		"line notin ( b )":               "press-07 press-08 spare-1",
		"device=press-*":                 "press-07 press-08",
		"device in (*19, spare-1)":       "gateway-1/press-19 spare-1",
		"device=*ess-0*":                 "press-07 press-08",
		"device=gateway-1/*":             "gateway-1/press-19",
		"group=line-a, device!=press-07": "press-08",
		"group!=line-a":                  "gateway-1/press-19 spare-1",
		"site=wien":                      "",
	} {
		s, err := fleet.ParseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var got []string
		for _, d := range f.Devices {
			if d.Matches(s) {
				got = append(got, string(d.ID))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q selects %v, want %s", text, got, want)
		}
	}
	for _, bad := range []string{"", " ", ",", "a,", "a=", "=a", "a in b", "a in (b", "a in ()", "a in (b,)", "a b", "!", "a=b c=d", "a in (b c)", "ä=b"} {
		if s, err := fleet.ParseSelector(bad); err == nil {
			t.Errorf("%q is read as %v", bad, s)
		}
	}
}

// random is a fleet of random devices, groups and levels of one parameter, and what the poll of each device must be.
func random(r *rand.Rand) (files fstest.MapFS, want map[string]int64) {
	var devices, groups strings.Builder
	sites := []string{"graz", "wien", "linz"}
	want = map[string]int64{}
	level := map[string]int64{}
	for _, s := range sites {
		fmt.Fprintf(&groups, "  %s:\n    select: site=%s\n    capabilities: c.json\n", s, s)
		if r.IntN(2) == 0 {
			level[s] = 1 + r.Int64N(3600)
		}
	}
	all := r.IntN(2) == 0
	fleetwide := 1 + r.Int64N(3600)
	counts := map[string]int{}
	for i := range 3 + r.IntN(12) {
		site, id := sites[r.IntN(3)], fmt.Sprintf("d-%d", i)
		if i < 3 {
			site = sites[i] // no group is empty
		}
		fmt.Fprintf(&devices, "  - id: %s\n    labels: {site: %s}\n", id, site)
		excluded := r.IntN(4) == 0 && i >= 3
		if excluded {
			fmt.Fprintf(&devices, "    capabilities: unchecked\n")
			continue
		}
		counts[site]++
		value := int64(30)
		if all {
			value = fleetwide
		}
		if v, ok := level[site]; ok {
			value = v
		}
		if r.IntN(3) == 0 {
			value = 1 + r.Int64N(3600)
			fmt.Fprintf(&devices, "    parameters: {line: {poll: %d}}\n", value)
		}
		want[id] = value
	}
	text := groups.String()
	for s, v := range level {
		text = strings.Replace(text, "  "+s+":\n", fmt.Sprintf("  %s:\n    parameters: {line: {poll: %d}}\n", s, v), 1)
	}
	parameters := "name: Graz"
	if all {
		parameters += fmt.Sprintf(", poll: %d", fleetwide)
	}
	ids := slices.Sorted(maps.Keys(want))
	return fstest.MapFS{
		"fleet.yaml": {Data: []byte("fleet: x\nregistry: " + base + "\napplications: {line: {package: apps/line, version: 1.4.0}}\ngroups:\n" + text +
			"deployments:\n  line:\n    application: line\n    select: device in (" + strings.Join(ids, ",") + ")\n    parameters: {" + parameters + "}\ndevices:\n" + devices.String())},
		"c.json": {Data: []byte(fmt.Sprintf(capabilitiesOf, "4", "amd64", "4Gi"))},
	}, want
}

// Whatever the fleet: a device runs what selects it, nothing else, with the value of the narrowest level.
func TestParametersProperty(t *testing.T) {
	m := stocked(t)
	for seed := range uint64(*rounds) {
		files, want := random(rand.New(rand.NewPCG(seed, 5)))
		c, err := compile(files, m)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, files["fleet.yaml"].Data)
		}
		got := map[string]int64{}
		for _, a := range c.Assignments {
			for _, p := range a.Placements {
				got[string(a.Device.ID)], _ = p.Parameters["poll"].Value.(int64)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s\n%s", seed, diff, files["fleet.yaml"].Data)
		}
	}
}

// Whatever the device: what is placed on it passes the check that the device itself does, and what is not has a reason.
func TestPlacementProperty(t *testing.T) {
	m := stocked(t)
	pick := func(r *rand.Rand, all ...string) string { return all[r.IntN(len(all))] }
	placed := 0
	for seed := range uint64(*rounds) {
		r := rand.New(rand.NewPCG(seed, 7))
		files := plant()
		for _, name := range []string{"capabilities/press.json", "capabilities/small.json"} {
			text := fmt.Sprintf(capabilitiesOf, pick(r, "1", "2", "4"), pick(r, "amd64", "arm64"), pick(r, "256Mi", "512Mi", "2Gi", "2047Mi"))
			text = strings.Replace(text, `["compose"]`, pick(r, `["compose"]`, `["custom"]`, `["compose", "custom"]`), 1)
			files[name] = &fstest.MapFile{Data: []byte(strings.Replace(text, `"press"}`, pick(r, `"press"}`, `"saw"}`), 1))}
		}
		for _, a := range compiled(t, files, m).Assignments {
			if a.Device.Unchecked {
				continue
			}
			own := *a.Device.Capabilities
			own.Properties.ID = string(a.Device.ID)
			for _, p := range a.Placements {
				placed++
				if err := p.Profile.DeviceConstraints.Check(&own); err != nil || !slices.Contains(own.Properties.SupportedDeploymentTypes, p.Profile.Type) {
					t.Fatalf("seed %d: %s is placed on %s: %v", seed, p.Deployment.Name, a.Device.ID, err)
				}
			}
			for _, d := range a.Unfit {
				name, _, _ := strings.Cut(d, " ")
				if fits(a.Device, own, name) {
					t.Fatalf("seed %d: %s could run %s: %s", seed, a.Device.ID, name, d)
				}
			}
			if n := len(a.Placements) + len(a.Unfit); n != 1 && n != 2 {
				t.Fatalf("seed %d: %s has %d placements and %d reasons", seed, a.Device.ID, len(a.Placements), len(a.Unfit))
			}
		}
	}
	if placed == 0 {
		t.Error("nothing was placed anywhere")
	}
}

// fits says again, in other words, which of the fixtures' applications a device can run.
func fits(_ *fleet.Device, c margo.DeviceCapabilities, name string) bool {
	compose := slices.Contains(c.Properties.SupportedDeploymentTypes, "compose")
	if name == "sensor" {
		return compose
	}
	memory := map[string]int{"256Mi": 256, "512Mi": 512, "2Gi": 2048, "2047Mi": 2047}[c.Properties.Memory]
	cpu := c.Properties.CPUs[0]
	return compose && (memory >= 2048 && cpu.Cores >= 2 && cpu.Architecture == "amd64" || memory >= 512 && c.Labels["class"] == "press")
}

// Whatever bytes a fleet's files have: faults with positions, no panic.
func FuzzRead(f *testing.F) {
	for _, file := range plant() {
		f.Add(string(file.Data), "devices: []")
	}
	f.Add("fleet: a\nregistry: b\ninclude: [\"[\"]", "devices: [{id: a}]")
	m := stocked(f)
	f.Fuzz(func(t *testing.T, text, included string) {
		files := plant()
		files["fleet.yaml"] = &fstest.MapFile{Data: []byte(text)}
		files["devices/b.yaml"] = &fstest.MapFile{Data: []byte(included)}
		c, err := compile(files, m)
		if err != nil {
			var document *strict.Error
			if !errors.As(err, &document) {
				t.Fatalf("an error without positions: %v", err)
			}
			return
		}
		for _, a := range c.Assignments {
			docs, err := a.Documents(c.Fleet)
			if err != nil {
				t.Fatalf("%s: %v", a.Device.ID, err)
			}
			if _, err := artifacts.PackState(artifacts.StateOptions{Device: a.Device.ID, Generation: 1, Deployments: docs}); err != nil {
				t.Fatalf("%s: %v", a.Device.ID, err)
			}
		}
	})
}

func FuzzSelector(f *testing.F) {
	for _, s := range []string{"*", "a=b", "a in (b,c), !d", "a notin (x*)", "a==b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := fleet.ParseSelector(text)
		if err != nil {
			return
		}
		again, err := fleet.ParseSelector(s.String())
		if err != nil || !cmp.Equal(s.String(), again.String()) {
			t.Errorf("%q is %q, and that %q, %v", text, s, again, err)
		}
	})
}
