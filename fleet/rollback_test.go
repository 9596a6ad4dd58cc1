package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
)

const graz = base + "/state/graz"

// rollback plans a way back.
func rollback(t testing.TB, files fstest.MapFS, m *memory, o fleet.Options, b fleet.Back) *fleet.Plan {
	t.Helper()
	f, err := fleet.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Rollback(t.Context(), m, o, b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// state is what a tag of the fleet's states names.
func (m *memory) state(t testing.TB, tag string) *artifacts.StateIndex {
	t.Helper()
	x, err := artifacts.OpenState(m.Manifests[m.Named[graz+":"+tag]])
	if err != nil {
		t.Fatalf("%s: %v", tag, err)
	}
	return x
}

// runs are the digests of what a state runs.
func runs(x *artifacts.StateIndex) string {
	var out []string
	for _, l := range x.Deployments {
		out = append(out, l.Digest.String())
	}
	return strings.Join(out, " ")
}

// history publishes three generations for press-07 and press-08, one or two for gateway-1/press-19; revision N of the files each.
func history(t testing.TB) (*memory, fstest.MapFS) {
	t.Helper()
	m, first := stocked(t), with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0")
	second := plant()
	third := with(second, "fleet.yaml", "poll: 10", "poll: 11")
	for i, files := range []fstest.MapFS{first, second, third} {
		o := options()
		o.Annotations = map[string]string{ocispec.AnnotationRevision: fmt.Sprintf("rev%d", i+1)}
		publish(t, plan(t, files, m, o), m)
	}
	return m, third
}

// Going back once gives every device the very bytes that it had, as a new generation; going back again does nothing.
func TestRollback(t *testing.T) {
	m, files := history(t)
	// A component that cannot be resolved any more is no reason not to go back: only what is published counts.
	delete(m.Named, base+"/apps/line:1.4.1")
	p := rollback(t, files, m, options(), fleet.Back{})
	if p.Count(fleet.Publish) != 3 || p.Count(fleet.Same) != 1 {
		t.Fatalf("%d would change, %d stay", p.Count(fleet.Publish), p.Count(fleet.Same))
	}
	var b strings.Builder
	p.Text(&b)
	for _, want := range []string{"parameter poll: 11 → 10", "note: as generation 2", "1.4.1 → 1.4.0", "3 of 4 devices would change"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the plan has no %q:\n%s", want, b.String())
		}
	}
	if n := publish(t, p, m); n != 3 {
		t.Fatalf("%d published", n)
	}
	x, was := m.state(t, "press-07"), m.state(t, "press-07.v2")
	if x.Generation != 4 || x.Repeats != m.Named[graz+":press-07.v2"] || x.Previous != m.Named[graz+":press-07.v3"] || runs(x) != runs(was) {
		t.Errorf("press-07 has generation %d, repeats %s, follows %s, runs %s", x.Generation, x.Repeats, x.Previous, runs(x))
	}
	if x.Annotations[ocispec.AnnotationRevision] != "rev2" {
		t.Errorf("it is of revision %q, want that of its content", x.Annotations[ocispec.AnnotationRevision])
	}
	again := rollback(t, files, m, options(), fleet.Back{})
	if again.Count(fleet.Publish) != 0 || publish(t, again, m) != 0 || !strings.Contains(again.Devices[1].Reasons[0], "generation 4 goes back already") {
		t.Errorf("again: %d would change, %v", again.Count(fleet.Publish), again.Devices[1].Reasons)
	}
	// The files say what they said: their plan shows it, and publishing brings it back.
	m.addPackage(t, "1.4.1")
	if n := plan(t, files, m, options()).Count(fleet.Publish); n != 3 {
		t.Errorf("the files would change %d devices, want 3", n)
	}
}

// The zero Back over one generation: there is nothing to go back to, which does not keep the others.
func TestRollbackOfTheFirst(t *testing.T) {
	m, files := history(t)
	m2 := stocked(t)
	publish(t, plan(t, files, m2, options()), m2)
	p := rollback(t, files, m2, options(), fleet.Back{})
	if p.Count(fleet.Cannot) != 3 || !errors.Is(p.Unfit(), fault.ErrNotFound) || !strings.Contains(p.Unfit().Error(), "generation 1 is the first") {
		t.Errorf("%d cannot: %v", p.Count(fleet.Cannot), p.Unfit())
	}
	delete(m.Manifests, m.Named[graz+":press-07.v2"]) // pruned
	p = rollback(t, files, m, options(), fleet.Back{})
	if p.Count(fleet.Cannot) != 1 || !strings.Contains(p.Unfit().Error(), "press-07: what was before generation 3 is not there any more") || publish(t, p, m) != 2 {
		t.Errorf("%d cannot: %v", p.Count(fleet.Cannot), p.Unfit())
	}
}

// clock tells when states were published: generation N of a device at hour N.
func clock(m *memory) func(context.Context, string, digest.Digest) (time.Time, error) {
	return func(_ context.Context, _ string, d digest.Digest) (time.Time, error) {
		x, err := artifacts.OpenState(m.Manifests[d])
		if err != nil {
			return time.Time{}, err
		}
		return time.Unix(int64(x.Generation)*3600, 0), nil
	}
}

// What was published since a time is undone, however much it was; once more does nothing, and an earlier time goes on.
func TestRollbackBefore(t *testing.T) {
	m, files := history(t)
	at := func(hour int64) fleet.Back { return fleet.Back{Before: time.Unix(hour*3600+1, 0), When: clock(m)} }
	for _, c := range []struct {
		hour      int64
		published int
		like      string // generation of press-07 whose content it has then
	}{{9, 0, "v3"}, {1, 3, "v1"}, {1, 0, "v1"}, {2, 3, "v2"}, {2, 0, "v2"}} {
		p := rollback(t, files, m, options(), at(c.hour))
		if n := publish(t, p, m); n != c.published || runs(m.state(t, "press-07")) != runs(m.state(t, "press-07."+c.like)) {
			t.Errorf("to hour %d: %d published, want %d, and press-07 to run what %s did", c.hour, n, c.published, c.like)
		}
	}
	p := rollback(t, files, m, options(), fleet.Back{Before: time.Unix(1, 0), When: clock(m)})
	if p.Count(fleet.Cannot) != 3 {
		t.Errorf("to before everything: %d cannot", p.Count(fleet.Cannot))
	}
	p = rollback(t, files, m, options(), fleet.Back{Before: time.Unix(1, 0), When: func(context.Context, string, digest.Digest) (time.Time, error) { return time.Time{}, nil }})
	if p.Count(fleet.Cannot) != 3 || !strings.Contains(p.Unfit().Error(), "does not say when it was published") || !strings.Contains(fault.Hint(p.Unfit()), "--verify-key") {
		t.Errorf("without times: %v", p.Unfit())
	}
	f, err := fleet.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Rollback(t.Context(), m, options(), fleet.Back{Before: time.Unix(1, 0), When: func(context.Context, string, digest.Digest) (time.Time, error) {
		return time.Time{}, fmt.Errorf("ask: %w", fault.ErrTemporary)
	}})
	if !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("a registry that cannot be asked: %v", err)
	}
}

// Only devices that have something of a revision go back, to what is of another one.
func TestRollbackOfRevision(t *testing.T) {
	m, files := history(t)
	back := fleet.Back{Revision: "rev3"}
	p := rollback(t, files, m, options(), back)
	// gateway-1/press-19 is in no group whose parameter changed: it has nothing of rev3.
	if n := publish(t, p, m); n != 2 || runs(m.state(t, "press-08")) != runs(m.state(t, "press-08.v2")) {
		t.Errorf("%d published, want 2", n)
	}
	if p := rollback(t, files, m, options(), back); p.Count(fleet.Publish)+p.Count(fleet.Cannot) != 0 {
		t.Errorf("again: %d would change", p.Count(fleet.Publish))
	}
	f, err := fleet.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing of it is there, nor was: it is mistyped.
	_, err = f.Rollback(t.Context(), m, options(), fleet.Back{Revision: "rev9"})
	if want := "they have nothing (spare-1), rev2 (gateway-1/press-19, press-07, press-08)"; !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) != want {
		t.Errorf("of no revision: %v, hint %q, want %q", err, fault.Hint(err), want)
	}
}

// A run that was cut between the history tag and the moving one is taken up: the same generation, not another.
func TestRollbackResumes(t *testing.T) {
	for name, back := range map[string]fleet.Back{"once": {}, "before": {Before: time.Unix(2*3600+1, 0)}, "revision": {Revision: "rev3"}} {
		m, files := history(t)
		back.When = clock(m)
		tag := graz + ":press-07"
		was := m.Named[tag]
		publish(t, rollback(t, files, m, options(), back), m)
		now := m.Named[tag]
		m.Named[tag] = was
		p := rollback(t, files, m, options(), back)
		if n := publish(t, p, m); n != 1 || m.Named[tag] != now || m.Named[tag+".v5"] != "" {
			t.Errorf("%s: %d published, the tag names %s, want %s again", name, n, m.Named[tag], now)
		}
		// With other options it is another generation of the same content.
		m.Named[tag] = was
		o := options()
		o.Annotations = map[string]string{"why": "again"}
		if n := publish(t, rollback(t, files, m, o, back), m); n != 1 || m.Named[tag] != m.Named[tag+".v5"] || runs(m.state(t, "press-07")) != runs(m.state(t, "press-07.v2")) {
			t.Errorf("%s, other options: %d published, the tag names %s, want generation 5", name, n, m.Named[tag])
		}
	}
}

// What nobody vouches for is not gone back to, and a component that is gone keeps a device where it is.
func TestRollbackVerifies(t *testing.T) {
	m, files := history(t)
	bad := m.Named[graz+":press-07.v2"]
	o := options()
	o.Verify = func(_ context.Context, _ string, d digest.Digest) error {
		if d == bad {
			return fmt.Errorf("look at %s: %w", d, fault.ErrBadSignature)
		}
		return nil
	}
	p := rollback(t, files, m, o, fleet.Back{})
	if p.Count(fleet.Cannot) != 1 || p.Count(fleet.Publish) != 2 || !errors.Is(p.Unfit(), fault.ErrBadSignature) {
		t.Errorf("%d cannot: %v", p.Count(fleet.Cannot), p.Unfit())
	}
	delete(m.Manifests, m.Named[base+"/components/line-monitor:1.4.0"])
	p = rollback(t, files, m, options(), fleet.Back{})
	if p.Count(fleet.Cannot) != 1 || p.Count(fleet.Publish) != 2 { // gateway-1/press-19 would get 1.4.0
		t.Errorf("without the component: %d cannot, %d would change", p.Count(fleet.Cannot), p.Count(fleet.Publish))
	}
	m.Named[graz+":press-08"] = m.Named[graz+":press-07"]
	p = rollback(t, files, m, options(), fleet.Back{})
	if !strings.Contains(p.Unfit().Error(), "is the state of press-07") {
		t.Errorf("the state of another device: %v", p.Unfit())
	}
}

// A device whose tag was deleted goes on above the newest generation that there is, whatever was pruned: devices take nothing
// older than what they have.
func TestPlanFindsTheHistory(t *testing.T) {
	lose := func(m *memory, tags ...string) {
		for _, tag := range tags {
			delete(m.Named, graz+":"+tag)
		}
	}
	m, files := history(t)
	lose(m, "press-07", "press-07.v1", "press-07.v2", "press-08", "press-08.v1")
	m.Named[graz+":press-08.v9"] = m.Named[graz+":press-08.v2"] // is not what its tag says
	m.Named[graz+":press-08.v18446744073709551615"] = m.Named[graz+":press-08.v2"]
	m.Asked["tags"] = 0
	o := options()
	o.Annotations = map[string]string{"why": "again"}
	p := plan(t, files, m, o)
	if d := p.Devices[1]; d.Device != "press-07" || d.Generation != 4 || d.Previous != m.Named[graz+":press-07.v3"] {
		t.Errorf("%s gets generation %d after %s, want 4 after %s", d.Device, d.Generation, d.Previous, m.Named[graz+":press-07.v3"])
	}
	if d := p.Devices[2]; d.Device != "press-08" || d.Generation != 4 || d.Previous != m.Named[graz+":press-08.v3"] {
		t.Errorf("%s gets generation %d after %s, want 4 after %s", d.Device, d.Generation, d.Previous, m.Named[graz+":press-08.v3"])
	}
	if n := m.Asked["tags"]; n != 2 { // the range of line's version, and this repository for both
		t.Errorf("tags were listed %d times, want twice", n)
	}
	if n := publish(t, p, m); n != 2 || m.state(t, "press-07").Generation != 4 {
		t.Errorf("%d published, press-07 has generation %d", n, m.state(t, "press-07").Generation)
	}
	m.Asked["tags"] = 0
	if plan(t, files, m, o); m.Asked["tags"] != 1 {
		t.Errorf("tags were listed %d times for devices that have theirs, want only the range", m.Asked["tags"])
	}

	// The registry has lost everything, and the device says what it has accepted.
	m, files = history(t)
	lose(m, "press-07", "press-07.v1", "press-07.v2", "press-07.v3")
	known := options()
	known.Accepted = func(_ context.Context, d artifacts.DeviceID) (uint64, error) {
		if d != "press-07" {
			return 0, nil
		}
		return 11, nil
	}
	if d := plan(t, files, m, known).Devices[1]; d.Generation != 12 || !strings.Contains(strings.Join(d.Reasons, ";"), "accepted generation 11") {
		t.Errorf("%s gets generation %d, %q, want 12", d.Device, d.Generation, d.Reasons)
	}

	known.Accepted = func(context.Context, artifacts.DeviceID) (uint64, error) { return ^uint64(0), nil }
	if d := plan(t, files, m, known).Devices[1]; d.Generation != 1 || !strings.Contains(strings.Join(d.Reasons, ";"), "no number that is published") {
		t.Errorf("%s gets generation %d, %q, want 1", d.Device, d.Generation, d.Reasons)
	}

	// Nothing of it may be followed: that is told, and not generation 1 proposed.
	m, files = history(t)
	lose(m, "press-07", "press-07.v1", "press-07.v2")
	o = options()
	o.Verify = func(context.Context, string, digest.Digest) error { return fault.ErrUnsigned }
	d := plan(t, files, m, o).Devices[1]
	if d.Action != fleet.Cannot || !strings.Contains(d.Reasons[0], "no generation of its history can be followed") {
		t.Errorf("%s: %s %v", d.Device, d.Action, d.Reasons)
	}
	p, err := compiled(t, files, m).Plan(t.Context(), crowded{m}, options())
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Devices[1]; d.Action != fleet.Cannot || !strings.Contains(d.Reasons[0], "more than a million") {
		t.Errorf("%s: %s %v", d.Device, d.Action, d.Reasons)
	}
}

// crowded is a registry with more tags than are read.
type crowded struct{ *memory }

func (crowded) Tags(context.Context, string) ([]string, error) {
	return nil, fmt.Errorf("more than a million tags: %w", fault.ErrTooLarge)
}

// New devices cost one list of their repository's tags for all of them, and one request each, for the device's tag.
// Those that are gone on with beside them are asked no more for it.
func TestPlanListsTagsOnce(t *testing.T) {
	m := stocked(t)
	requests := func(devices int) (lists, resolved int, p *fleet.Plan) {
		c := compiled(t, fleettest.Staged(devices, "{name: all, percent: 100}", ""), m)
		m.Asked = map[string]int{}
		p, err := c.Plan(t.Context(), m, fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return m.Asked["tags"], m.Asked["resolve"], p
	}
	_, _, p := requests(20)
	publish(t, p, m)
	lists, before, _ := requests(20)
	if lists != 0 {
		t.Errorf("tags were listed %d times for devices that have theirs", lists)
	}
	lists, with, p := requests(50)
	if lists != 1 || with != before+30 || p.Count(fleet.Publish) != 30 {
		t.Errorf("30 new devices: %d lists and %d requests for tags beside %d, want 1 and 30", lists, with-before, before)
	}
}
