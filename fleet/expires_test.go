package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
)

// Who asks for an end gets one on every device, also where nothing else changes, and not anew with each run.
func TestPlanRenewsEnds(t *testing.T) {
	m, files := stocked(t), plant()
	publish(t, plan(t, files, m, options()), m)
	begin := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	const month = 720 * time.Hour
	at := func(day int, asked time.Duration) *fleet.Plan {
		t.Helper()
		o := options()
		o.Now = begin.AddDate(0, 0, day)
		if asked > 0 {
			o.Expires = o.Now.Add(asked)
		}
		return plan(t, files, m, o)
	}
	for _, c := range []struct {
		day    int
		asked  time.Duration
		want   int
		reason string
	}{
		{0, 0, 0, ""},
		{0, month, 3, "it has no end, and gets one"},
		{0, month, 0, ""},
		{14, month, 0, ""},
		{16, month, 3, "it would end at 2027-01-31T00:00:00Z, and gets a later end"},
		{17, month, 0, ""},
		{40, 0, 0, ""}, // who asks for none leaves what is there
		{46, month, 3, "2027-02-16"},
	} {
		p := at(c.day, c.asked)
		if n := p.Count(fleet.Publish); n != c.want || n > 0 && !strings.Contains(strings.Join(p.Devices[1].Reasons, " "), c.reason) {
			t.Errorf("day %d, %v: %d would change, want %d, %v", c.day, c.asked, n, c.want, p.Devices[1].Reasons)
		}
		publish(t, p, m)
	}
	x, err := artifacts.OpenState(m.Manifests[m.Named[base+"/state/graz:press-07"]])
	if want := begin.AddDate(0, 0, 46).Add(month); err != nil || !x.Expires.Equal(want) || x.Generation != 4 {
		t.Errorf("generation %d ends at %v, want 4 and %v, %v", x.Generation, x.Expires, want, err)
	}
}

// A plan file has the end in it that was shown: a duration would be another time when it is published.
func TestPromiseHasTheEnd(t *testing.T) {
	m, o := stocked(t), options()
	o.Expires = time.Date(2027, 1, 31, 0, 0, 0, 0, time.FixedZone("CET", 3600))
	data, err := json.Marshal(plan(t, plant(), m, o).Document())
	if err != nil {
		t.Fatal(err)
	}
	promise, err := fleet.ReadSavedPlan("plan.json", data)
	if err != nil || !promise.Expires.Equal(o.Expires) || promise.Expires.Location() != time.UTC {
		t.Errorf("the plan ends states at %v, %v, want %v", promise.Expires, err, o.Expires)
	}
	if o.Expires = promise.Expires; plan(t, plant(), m, o).Keep(promise) != nil {
		t.Error("the same end is not what was promised")
	}
}
