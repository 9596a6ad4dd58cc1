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

// late is a registry in which something is done as soon as the tags of states were listed.
type late struct {
	*memory
	then func()
}

func (r late) Tags(ctx context.Context, repository string) ([]string, error) {
	tags, err := r.memory.Tags(ctx, repository)
	if repository == base+"/state/graz" {
		r.then()
	}
	return tags, err
}

// cutOff is the state of press-08 of a publisher that has set its history tag, and was cut off before the device's tag.
func cutOff(t *testing.T, m *memory, n uint64) digest.Digest {
	t.Helper()
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-08", Generation: n, Annotations: map[string]string{"who": "another"}})
	if err != nil {
		t.Fatal(err)
	}
	return m.Push(base+"/state/graz", artifacts.HistoryTag("press-08", n), a)
}

// A generation that another publisher put after the tags were listed keeps its history tag: this push is a conflict, and the
// next plan is above it.
func TestNumberIsLookedAt(t *testing.T) {
	const tag = base + "/state/graz:press-08"
	mine := func(m *memory) func(context.Context, string, digest.Digest) error {
		return func(_ context.Context, _ string, d digest.Digest) error {
			if x, err := artifacts.OpenState(m.Manifests[d]); err == nil && x.Annotations["who"] == "another" {
				return fmt.Errorf("verify %s: %w", d, fault.ErrUnsigned)
			}
			return nil
		}
	}
	for _, c := range []struct {
		name     string
		before   int    // generations of the device, whose own tag is gone
		accepted uint64 // by the device
		since    uint64 // the generation that is published meanwhile
		unsigned bool
		want     uint64 // the next one
		follows  bool   // the one that is published meanwhile
	}{
		{"a new device", 0, 0, 1, false, 2, true},
		{"a new device, unsigned", 0, 0, 1, true, 2, false},
		{"its tag gone", 1, 0, 2, false, 3, true},
		{"accepted", 0, 11, 12, false, 13, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, files := stocked(t), plant()
			if c.before > 0 {
				publish(t, plan(t, files, m, options()), m)
				delete(m.Named, tag)
				files = with(files, "fleet.yaml", "poll: 10", "poll: 11")
			}
			var other digest.Digest
			r := late{m, func() { other = cutOff(t, m, c.since) }}
			o := options()
			o.Devices = func(d *fleet.Device) bool { return d.ID == "press-08" }
			o.Accepted = func(context.Context, artifacts.DeviceID) (uint64, error) { return c.accepted, nil }
			if c.unsigned {
				o.Verify = mine(m)
			}
			p, err := compiled(t, files, r).Plan(t.Context(), r, o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Publish(t.Context(), m, nil); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("Publish = %v, want a conflict", err)
			}
			publish(t, plan(t, files, m, o), m)
			if there := m.Named[artifacts.HistoryTag(tag, c.since)]; there != other {
				t.Errorf("generation %d is %s, and was %s when it was chosen", c.since, there, other)
			}
			x := m.state(t, "press-08")
			if x.Generation != c.want || (x.Previous == other) != c.follows {
				t.Errorf("generation %d follows %s, want %d, following %s: %v", x.Generation, x.Previous, c.want, other, c.follows)
			}
		})
	}
}

// A plan of one device is above what was published and did not get the device's tag.
func TestOneNumberIsLookedAt(t *testing.T) {
	for _, c := range []struct {
		name     string
		before   int // generations of the device
		accepted uint64
		since    uint64
		unsigned bool
		want     uint64
		note     string
		err      string
	}{
		{"a new device", 0, 0, 1, false, 2, "this follows it", ""},
		{"a new device, unsigned", 0, 0, 1, true, 0, "", "continue from registry.example/state:d.v1"},
		{"accepted", 3, 11, 12, false, 13, "this follows it", ""},
		{"accepted, unsigned", 3, 11, 12, true, 13, "this is the one above", ""},
		{"new, accepted, unsigned", 0, 11, 12, true, 0, "", "continue from registry.example/state:d.v12"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, by := newShelf(), signed{}
			for range c.before {
				by[m.next(t, asked{Device: "d"}).Artifact.Descriptor.Digest] = true
			}
			other := m.place(t, artifacts.StateOptions{Device: "d", Generation: c.since, Annotations: map[string]string{"who": "another"}}, artifacts.HistoryTag("d", c.since))
			by[other] = !c.unsigned
			n, err := fleet.PlanOne(t.Context(), m, fleet.Options{
				Verify: func(_ context.Context, _ string, d digest.Digest) error {
					if !by[d] {
						return fmt.Errorf("verify %s: %w", d, fault.ErrUnsigned)
					}
					return nil
				},
				Accepted: func(context.Context, artifacts.DeviceID) (uint64, error) { return c.accepted, nil },
			}, fleet.One{Device: "d", Repository: m.name, Replace: true})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("PlanOne = %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(n.Reasons, "; "); n.Generation != c.want || !c.unsigned && n.Previous != other || !strings.Contains(notes, c.note) {
				t.Errorf("generation %d follows %s, notes %q, want %d after %s and %q", n.Generation, n.Previous, notes, c.want, other, c.note)
			}
		})
	}
}

// closed is a registry that does not let everybody list tags.
type closed struct{ *memory }

func (closed) Tags(context.Context, string) ([]string, error) {
	return nil, fmt.Errorf("list tags: %w", fault.ErrDenied)
}

// Where only what is at the beginning of a history cannot be followed, the next generation is above it, whether the tags may be
// listed or not, and above what the device has accepted.
func TestGoesOnAboveWhatIsNotFollowed(t *testing.T) {
	for _, c := range []struct {
		name     string
		open     bool // tags may be listed
		there    []uint64
		accepted uint64
		want     uint64 // 0: it is refused
		note     string
	}{
		{"listed", true, []uint64{1, 2}, 0, 3, ""},
		{"not listed", false, []uint64{1, 2}, 0, 3, "could not be found out"},
		{"listed, accepted", true, []uint64{1, 2}, 40, 41, "has accepted generation 40"},
		{"not listed, accepted", false, []uint64{1, 2}, 40, 41, "has accepted generation 40"},
		{"listed, accepted before", true, []uint64{1, 2}, 1, 3, ""},
		{"a gap, listed", true, []uint64{2}, 0, 0, "no generation of its history can be followed"},
		{"a gap, not listed", false, []uint64{2}, 0, 1, "could not be found out"},
		{"nothing, not listed", false, nil, 0, 1, "could not be found out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, files := stocked(t), plant()
			for _, n := range c.there {
				cutOff(t, m, n)
			}
			o := options()
			o.Devices = func(d *fleet.Device) bool { return d.ID == "press-08" }
			o.Accepted = func(context.Context, artifacts.DeviceID) (uint64, error) { return c.accepted, nil }
			o.Verify = func(context.Context, string, digest.Digest) error { return fault.ErrUnsigned }
			var from fleet.Registry = m
			if !c.open {
				from = closed{m}
			}
			p, err := compiled(t, files, m).Plan(t.Context(), from, o)
			if err != nil {
				t.Fatal(err)
			}
			d := p.Devices[0]
			if reasons := strings.Join(d.Reasons, "; "); d.Generation != c.want || (d.Action == fleet.Cannot) != (c.want == 0) || !strings.Contains(reasons, c.note) {
				t.Errorf("%s as generation %d: %s; want %d and %q", d.Action, d.Generation, reasons, c.want, c.note)
			}
		})
	}
}

// A registry that was restored from a backup has lost its newest generations: what comes next is above what the device has accepted,
// also where the files say what the newest generation that is left says. A number that is published below is one that the
// device does not take, and reports as followed by a later one.
func TestGoesOnAboveWhatTheRegistryLost(t *testing.T) {
	const tag = base + "/state/graz:press-08"
	changed := with(plant(), "fleet.yaml", "poll: 10", "poll: 11")
	for _, c := range []struct {
		name     string
		files    fstest.MapFS
		accepted uint64
		err      error
		cut      bool // a publication of the changed files was cut off before the device's tag
		action   string
		want     uint64 // the next generation, or the one that is there
		note     string
	}{
		{"changed", changed, 43, nil, false, fleet.Publish, 44, "no generation above 2 of this device, which has accepted generation 43: this is the one above"},
		{"not changed", plant(), 43, nil, false, fleet.Publish, 44, "which has accepted generation 43"},
		{"a publication was cut off", changed, 43, nil, true, fleet.Publish, 44, "no generation above 3"},
		{"nothing is lost", changed, 2, nil, false, fleet.Publish, 3, ""},
		{"nothing is lost, not changed", plant(), 2, nil, false, fleet.Same, 2, ""},
		{"nothing is lost, and a publication was cut off", changed, 3, nil, true, fleet.Publish, 3, ""},
		{"it has not taken the newest", changed, 1, nil, false, fleet.Publish, 3, ""},
		{"no number that is published", changed, ^uint64(0), nil, false, fleet.Publish, 3, "ignored"},
		{"no number that is published, not changed", plant(), ^uint64(0), nil, false, fleet.Same, 2, ""},
		{"not known", changed, 0, fault.ErrTemporary, false, fleet.Publish, 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, o := stocked(t), options()
			publish(t, plan(t, with(plant(), "fleet.yaml", "poll: 10", "poll: 9"), m, o), m)
			publish(t, plan(t, plant(), m, o), m)
			there := m.Named[tag]
			if c.cut {
				publish(t, plan(t, changed, m, o), m)
				m.Named[tag] = there
			}
			o.Devices = func(d *fleet.Device) bool { return d.ID == "press-08" }
			o.Accepted = func(context.Context, artifacts.DeviceID) (uint64, error) { return c.accepted, c.err }
			p := plan(t, c.files, m, o)
			d := p.Devices[0]
			if notes := strings.Join(d.Reasons, "; "); d.Action != c.action || d.Generation != c.want || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Fatalf("%s as generation %d: %q; want %s as %d, %q", d.Action, d.Generation, notes, c.action, c.want, c.note)
			}
			publish(t, p, m)
			if x := m.state(t, "press-08"); x.Generation != c.want {
				t.Errorf("generation %d is published, want %d", x.Generation, c.want)
			}
			o.Accepted = func(context.Context, artifacts.DeviceID) (uint64, error) { return c.want, nil }
			if d := plan(t, c.files, m, o).Devices[0]; d.Action != fleet.Same || d.Generation != c.want {
				t.Errorf("then: %s as generation %d, want that nothing is left to do", d.Action, d.Generation)
			}
		})
	}
}
