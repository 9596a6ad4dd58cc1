package fleet_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/fleet"
)

// lockFile is a lock with every member that there is.
const lockFile = `{"version": 1, "applications": {
  "line": {"version": "1.4.1", "digest": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "components": {
    "staging.example:5000/plant/components/line:1.4.1": {"digest": "sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752", "repository": "harbor.example/plant/components/line"}}},
  "sensor": {"version": "stable", "digest": "sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"}
}}`

// lock.schema.json, which an editor may be pointed at, and the reader say the same about every part of a lock.
func TestLockSchema(t *testing.T) {
	text, err := os.ReadFile("lock.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	schema := schemaOf(t, text)
	valid := 0
	for name, doc := range mutations(t, lockFile) {
		text := encoded(t, doc)
		_, err := fleet.ParseLock("fleet.lock", text)
		bySchema := schema.Validate(doc)
		if (bySchema == nil) != (err == nil) {
			t.Errorf("%s: schema: %v\nparser: %v", name, bySchema, err)
		}
		if bySchema == nil {
			valid++
		}
	}
	if valid < 5 {
		t.Errorf("only %d documents are valid: nothing is compared", valid)
	}
}

// What is written is what was read.
func TestLockEncode(t *testing.T) {
	l, err := fleet.ParseLock("fleet.lock", []byte(lockFile))
	if err != nil {
		t.Fatal(err)
	}
	l["0-1"], l["on"] = l["sensor"], l["sensor"] // what YAML of old takes for something else
	for _, want := range []fleet.Lock{l, {}} {
		got, err := fleet.ParseLock("fleet.lock", want.Encode())
		if err != nil {
			t.Fatalf("%v\n%s", err, want.Encode())
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(fleet.Locked{})); diff != "" {
			t.Errorf("lock (-want +got):\n%s", diff)
		}
	}
}

func FuzzLock(f *testing.F) {
	f.Add([]byte(lockFile))
	f.Add(fleet.Lock{"a": {Version: "1.0.0", Digest: digest.FromString("x")}}.Encode())
	f.Add([]byte("version: 1\napplications:\n  a: {version: 1.0.0, digest: sha256:x}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := fleet.ParseLock("fleet.lock", data)
		if err != nil {
			var document *strict.Error
			if !errors.As(err, &document) || len(document.Faults) == 0 {
				t.Fatalf("an error without a place: %v", err)
			}
			return
		}
		again, err := fleet.ParseLock("fleet.lock", l.Encode())
		if err != nil {
			t.Fatalf("written, it cannot be read: %v\n%s", err, l.Encode())
		}
		if diff := cmp.Diff(l, again, cmpopts.IgnoreUnexported(fleet.Locked{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("lock (-want +got):\n%s", diff)
		}
	})
}

// locked is a fleet with a lock.
func locked(files fstest.MapFS, l fleet.Lock) fstest.MapFS {
	out := fstest.MapFS{fleet.LockFile: {Data: l.Encode()}}
	for k, v := range files {
		out[k] = v
	}
	return out
}

// A locked application has the version and the components of the lock, whatever tags name now.
func TestLockDecides(t *testing.T) {
	m := stocked(t)
	component := base + "/components/line-monitor"
	l := fleet.Lock{"line": {Version: "1.4.0", Digest: m.Named[base+"/apps/line:1.4.0"], Components: map[string]*fleet.LockedComponent{
		component + ":1.4.0":        {Digest: m.Named[component+":1.4.0"]},
		base + "/charts/line:1.0.0": {Digest: digest.FromString("chart")},
	}}}
	files := locked(plant(), l)
	pinned := m.Named[component+":1.4.0"]
	m.AddComponent(t, "moved", "1.4.0")
	m.Named[component+":1.4.0"] = m.Named[base+"/components/moved:1.4.0"] // pushed anew
	publish(t, plan(t, files, m, options()), m)
	for _, at := range compiled(t, files, m).Assignments[1].Placements {
		if c := at.Profile.Components[0]; at.Deployment.Name == "line" {
			if d, _, _ := c.Pinned(); c.Properties.Revision != "1.4.0" || d != pinned {
				t.Errorf("the device gets %s %s, want 1.4.0 %s", c.Properties.Revision, d, pinned)
			}
		}
	}
	if n := plan(t, files, m, options()).Count(fleet.Publish); n != 0 {
		t.Errorf("%d would change", n)
	}
	// Without the lock it is what the files ask for.
	if n := plan(t, plant(), m, options()).Count(fleet.Publish); n != 3 {
		t.Errorf("without the lock %d would change, want 3", n)
	}
	// Another repository holds the component.
	l["line"].Components[component+":1.4.0"].Repository = "other.example/plant/components/line-monitor"
	for _, at := range compiled(t, locked(plant(), l), m).Assignments[1].Placements {
		if c := at.Profile.Components[0]; at.Deployment.Name == "line" && c.Properties.Repository != "oci://other.example/plant/components/line-monitor" {
			t.Errorf("the device gets it from %s", c.Properties.Repository)
		}
	}
}

// What contradicts itself is told where it stands.
func TestLockFaults(t *testing.T) {
	m := stocked(t)
	good := func() *fleet.Locked {
		return &fleet.Locked{Version: "1.4.0", Digest: m.Named[base+"/apps/line:1.4.0"], Components: map[string]*fleet.LockedComponent{
			base + "/components/line-monitor:1.4.0": {Digest: m.Named[base+"/components/line-monitor:1.4.0"]},
		}}
	}
	for _, c := range []struct {
		name string
		do   func(l fleet.Lock)
		want string
	}{
		{"unknown application", func(l fleet.Lock) { l["lime"] = l["line"] }, `fleet.lock:5:3: applications.lime: there is no application "lime"`},
		{"out of range", func(l fleet.Lock) { l["line"].Version = "1.5.0" }, "fleet.lock:5:3: applications.line: line is to be ~1.4 in fleet.yaml, and 1.5.0 in the lock"},
		{"another exact one", func(l fleet.Lock) { l["sensor"] = &fleet.Locked{Version: "1.4.1", Digest: digest.FromString("x")} }, "sensor is to be 1.4.0 in fleet.yaml, and 1.4.1 in the lock"},
		{"not there", func(l fleet.Lock) { l["line"].Version = "1.4.9" }, "fleet.lock:5:3: applications.line: there is no " + base + "/apps/line:1.4.9"},
		{"pushed anew", func(l fleet.Lock) { l["line"].Digest = digest.FromString("x") }, "the lock says sha256:2d711642"},
		{"components of a component", func(l fleet.Lock) {
			l["sensor"] = &fleet.Locked{Version: "1.4.0", Digest: m.Named[base+"/components/sensor:1.4.0"], Components: l["line"].Components}
		}, "sensor is a component itself"},
	} {
		l := fleet.Lock{"line": good()}
		c.do(l)
		_, err := compile(locked(plant(), l), m)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	l := fleet.Lock{"line": good()}
	l["line"].Components = nil
	p := plan(t, locked(plant(), l), m, options())
	if p.Count(fleet.Cannot) != 3 || !strings.Contains(p.Unfit().Error(), "is not in the lock") || !errors.Is(p.Unfit(), fault.ErrUnfit) {
		t.Errorf("without its components: %v", p.Unfit())
	}
	_, err := fleet.Read(fstest.MapFS{"fleet.yaml": plant()["fleet.yaml"], "devices/a.yaml": plant()["devices/a.yaml"], fleet.LockFile: {Data: []byte("version: 2\n")}})
	if err == nil || !strings.Contains(err.Error(), "fleet.lock:1:10: version: must be 1") {
		t.Errorf("another form: %v", err)
	}
}
