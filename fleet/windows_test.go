package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	_ "time/tzdata"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry/release"
)

const (
	nights   = `[{"days":"Mon-Fri","hours":"22:00-05:00","zone":"Europe/Berlin"}]`
	weekends = `[{"days":"Sat-Sun","zone":"UTC"}]`
	once     = `[{"zone":"UTC","only":["2027-03-06"]}]`
)

// windowsOf are those of each device's newest state.
func windowsOf(t *testing.T, m *memory) string {
	t.Helper()
	var out []string
	for _, device := range []string{"gateway-1__press-19", "press-07", "press-08"} {
		x := m.state(t, device)
		out = append(out, fmt.Sprintf("%s.v%d %s", device, x.Generation, x.Windows.JSON()))
	}
	return strings.Join(out, "\n")
}

// The nearest level counts. Other windows are another state, and nothing else is.
func TestWindowsOfAFleet(t *testing.T) {
	m := stocked(t)
	files := with(plant(), "fleet.yaml", "rollout:", "windows: "+nights+"\nrollout:")
	files = with(files, "fleet.yaml", "parameters: {line: {poll: 10}}", "parameters: {line: {poll: 10}}\n    windows: "+weekends)
	files = with(files, "devices/a.yaml", "press-07,", "press-07, windows: none,")
	check := func(what string, files fstest.MapFS, change int, want string) *fleet.Plan {
		t.Helper()
		o := options()
		o.Now = time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC)
		p := plan(t, files, m, o)
		if n := p.Count(fleet.Publish); n != change {
			t.Errorf("%s: %d would change, want %d", what, n, change)
		}
		data, err := json.Marshal(p.Document())
		if err == nil {
			_, err = fleet.ReadSavedPlan("plan.json", data)
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		publish(t, p, m)
		if got := windowsOf(t, m); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
		}
		if again := plan(t, files, m, o); again.Count(fleet.Publish) != 0 {
			t.Errorf("%s: %d would change again", what, again.Count(fleet.Publish))
		}
		return p
	}
	check("new", files, 3, "gateway-1__press-19.v1 "+nights+"\npress-07.v1 \npress-08.v1 "+weekends)
	p := check("of the fleet", with(files, "fleet.yaml", nights, once), 1, "gateway-1__press-19.v2 "+once+"\npress-07.v1 \npress-08.v1 "+weekends)
	var b strings.Builder
	p.Details(&b)
	const want = "gateway-1/press-19 what it runs stays windows for changes: Mon-Fri 22:00-05:00 (Europe/Berlin) → 2027-03-06 (UTC) nothing to load"
	if got := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(got, want) {
		t.Errorf("the plan is\n%s\nwant\n%s", got, want)
	}
	diffs, err := plan(t, files, m, options()).Diffs(t.Context(), m)
	if err != nil || len(diffs) != 1 || strings.Join(diffs[0].Lines, "\n") != "--- windows\n+++ windows\n@@\n-2027-03-06 (UTC)\n+Mon-Fri 22:00-05:00 (Europe/Berlin)" {
		t.Errorf("Diffs = %+v, %v", diffs, err)
	}
	check("of the group", with(files, "fleet.yaml", weekends, "none"), 2, "gateway-1__press-19.v3 "+nights+"\npress-07.v1 \npress-08.v2 ")
	check("of the device", with(with(files, "fleet.yaml", weekends, "none"), "devices/a.yaml", "windows: none,", "windows: "+weekends+","), 1,
		"gateway-1__press-19.v3 "+nights+"\npress-07.v2 "+weekends+"\npress-08.v2 ")
	check("none any more", plant(), 2, "gateway-1__press-19.v4 \npress-07.v3 \npress-08.v2 ")

	two := with(files, "fleet.yaml", "deployments:", "  all: {select: \"*\", windows: "+nights+"}\ndeployments:")
	if _, err := compile(two, m); err == nil || !strings.Contains(err.Error(), "press-08 is in the groups line-a and all, which have different windows") {
		t.Errorf("groups that do not agree: %v", err)
	}
	if _, err := fleet.Read(with(files, "fleet.yaml", "Mon-Fri", "")); err == nil || !strings.Contains(err.Error(), "windows[0].days: must not be empty") {
		t.Errorf("Read = %v", err)
	}
}

// A device with windows that have passed would never make another change.
func TestWindowsThatHavePassed(t *testing.T) {
	m, files := stocked(t), with(plant(), "devices/a.yaml", "press-07,", "press-07, windows: "+once+",")
	o := options()
	o.Now = time.Date(2027, 3, 7, 0, 0, 0, 0, time.UTC)
	p := plan(t, files, m, o)
	if err := p.Unfit(); p.Count(fleet.Cannot) != 1 || !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "press-07: ") || !strings.Contains(err.Error(), "the window for changes does not open any more") {
		t.Errorf("%d cannot: %v", p.Count(fleet.Cannot), err)
	}
	before := o
	before.Now = o.Now.AddDate(0, 0, -1)
	publish(t, plan(t, files, m, before), m)
	if p := plan(t, files, m, o); p.Count(fleet.Same) != 4 {
		t.Errorf("%d stay, want all: nothing is published", p.Count(fleet.Same))
	}
}

// Who goes back keeps the windows: they say when the device may be changed, not what it runs. A state that is signed again is the same.
func TestWindowsStay(t *testing.T) {
	m, files := history(t)
	files = with(files, "fleet.yaml", "rollout:", "windows: "+nights+"\nrollout:")
	publish(t, plan(t, files, m, options()), m)
	p := rollback(t, files, m, options(), fleet.Back{Before: time.Unix(2*3600+1, 0), When: clock(m)})
	if n := publish(t, p, m); n == 0 {
		t.Fatal("nothing goes back")
	}
	if got := windowsOf(t, m); strings.Count(got, nights) != 3 {
		t.Errorf("after going back:\n%s", got)
	}
	publish(t, plan(t, files, m, options()), m)
	o := options()
	o.Resign = true
	o.Verify = func(_ context.Context, _ string, d digest.Digest) error {
		return fmt.Errorf("look at %s: %w", d, fault.ErrUnsigned)
	}
	before := windowsOf(t, m)
	p = plan(t, files, m, o)
	if n := p.Count(fleet.Cannot); n > 0 {
		t.Fatalf("%d cannot be signed again: %v", n, p.Unfit())
	}
	publish(t, p, m)
	if got := windowsOf(t, m); got != before || !p.Devices[0].Resigned() {
		t.Errorf("signed again:\n%s\nbefore\n%s", got, before)
	}
}

// The windows of one device stay until others are named.
func TestWindowsOfOne(t *testing.T) {
	m := newShelf()
	m.component(t, "web", "1.0.0", "web")
	read := func(list string) *schedule.Windows {
		w, err := schedule.ParseJSON("windows", []byte(list))
		if err != nil {
			t.Fatal(err)
		}
		return &w
	}
	now := time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC)
	next := func(one fleet.One) (*fleet.Next, error) {
		t.Helper()
		one.Device, one.Repository = "d", m.name
		return fleet.PlanOne(t.Context(), m, fleet.Options{Now: now}, one)
	}
	kept := func(what string, one fleet.One, want string) *fleet.Next {
		t.Helper()
		n, err := next(one)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		x, err := artifacts.OpenState(n.Artifact.Manifest)
		if err != nil || x.Windows.JSON() != want || n.Windows.JSON() != want {
			t.Errorf("%s: windows %s, want %s, %v", what, x.Windows.JSON(), want, err)
		}
		return n
	}
	put := func(n *fleet.Next) {
		m.Push(m.name, n.Publication.HistoryTag, n.Artifact)
		m.Push(m.name, n.Publication.Tag, n.Artifact)
	}
	web := func(context.Context, []artifacts.Deployment) (fleet.Edit, error) {
		return fleet.Edit{Deployments: []release.Document{single(t, component("d", "web", "1.0.0"))}}, nil
	}
	put(kept("none", fleet.One{Edit: web}, ""))
	n := kept("set", fleet.One{Windows: read(nights)}, nights)
	if c := n.WindowsChange; n.Generation != 2 || len(n.Changes) != 0 || c == nil || c.String() != "windows for changes: none → Mon-Fri 22:00-05:00 (Europe/Berlin)" {
		t.Errorf("generation %d, %v, %v", n.Generation, n.Changes, c)
	}
	put(n)
	n = kept("not named", fleet.One{}, nights)
	if n.WindowsChange != nil {
		t.Errorf("not named: %v", n.WindowsChange)
	}
	put(n)
	put(kept("replaced", fleet.One{Edit: web, Replace: true}, nights))
	put(kept("others", fleet.One{Windows: read(weekends)}, weekends))
	put(kept("back to what had none", fleet.One{To: 1}, weekends))
	put(kept("back to what had others", fleet.One{To: 3}, weekends))
	kept("back, and at any time", fleet.One{To: 1, Windows: &schedule.Windows{}}, "")

	// A push that was cut off before the tag moved is taken up with its windows.
	cut := kept("cut off", fleet.One{Windows: read(nights)}, nights)
	m.Push(m.name, cut.Publication.HistoryTag, cut.Artifact)
	if n := kept("taken up", fleet.One{}, nights); n.Digest != cut.Digest {
		t.Errorf("taken up as %s (generation %d), want %s", n.Digest, n.Generation, cut.Digest)
	}
	if n := kept("taken up with the same", fleet.One{Windows: read(nights)}, nights); n.Digest != cut.Digest {
		t.Errorf("taken up as %s (generation %d), want %s", n.Digest, n.Generation, cut.Digest)
	}
	put(kept("taken away", fleet.One{Windows: &schedule.Windows{}}, ""))

	proposal := kept("proposed", fleet.One{Windows: read(weekends)}, weekends)
	m.Push(m.name, artifacts.ProposalTag("d", proposal.Generation), proposal.Artifact)
	if n := kept("signed", fleet.One{Proposal: true}, weekends); n.WindowsChange == nil {
		t.Error("who signs does not see the windows")
	}

	put(kept("one night", fleet.One{Windows: read(once)}, once))
	now = now.AddDate(0, 0, 7)
	if _, err := next(fleet.One{}); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "does not open any more") || !strings.Contains(fault.Hint(err), "--windows") {
		t.Errorf("windows that have passed: %v", err)
	}
	kept("others after them", fleet.One{Windows: read(nights)}, nights)
}
