package approval_test

import (
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// app is a revision of an application, which may lock its updates.
func app(version string) *plan.Deployment {
	return &plan.Deployment{ID: "id", Name: "app", Digest: digest.FromString(version), Components: []plan.Component{{
		Name: "web", Digest: digest.FromString("web " + version), Identity: version,
		Project: &workload.Project{Name: "p", Volumes: []workload.Volume{{Name: approval.LockVolume}}},
	}}}
}

// facts are of a device that runs version 1 and is to run version 2; the state before the target is still being loaded when accepted is set.
func facts(edit func(*approval.Facts)) *approval.Facts {
	one := app("1")
	f := &approval.Facts{
		Now: now, Target: &store.State{Digest: digest.FromString("state 2"), Generation: 2}, Desired: &plan.Desired{Deployments: []plan.Deployment{*app("2")}},
		Good:     map[string]plan.GoodRevision{"id": {Record: store.Good{DeploymentID: "id", Name: "app", Digest: one.Digest}, Deployment: one}},
		Observed: []workload.Observation{{ID: "c", Deployment: "id", Status: workload.Running}}, Looked: true,
		Admits: func(*plan.Deployment) bool { return true }, LocksAt: now,
	}
	f.LocksOf = map[digest.Digest]bool{f.Open(f.Desired)[0].ID: true}
	if edit != nil {
		edit(f)
	}
	return f
}

func TestDecide(t *testing.T) {
	asks := approval.Policy{Kinds: []plan.Kind{plan.Configuration}}
	change := facts(nil).Open(facts(nil).Desired)[0].ID
	lock := map[string][]approval.Lock{"id": {{Owner: "line 3", Expires: now.Add(time.Hour)}}}
	decided := func(v store.Verdict, until time.Time) map[digest.Digest]store.Change {
		return map[digest.Digest]store.Change{change: {ID: change, Deployment: "id", Since: now, Decision: &store.Decision{Verdict: v, By: "anna", At: now, Until: until}}}
	}
	opens := now.Add(3 * time.Hour)
	for name, x := range map[string]struct {
		edit  func(*approval.Facts)
		wait  codes.Code // "": none
		until time.Time
		begun bool
		again bool // its locks are to be read again
	}{
		"nothing holds it back":         {nil, "", time.Time{}, true, false},
		"it needs an approval":          {func(f *approval.Facts) { f.Policy = asks }, codes.ApprovalNeeded, time.Time{}, false, false},
		"it is approved":                {func(f *approval.Facts) { f.Policy, f.Records = asks, decided(store.Approved, opens) }, "", time.Time{}, true, false},
		"the approval is over":          {func(f *approval.Facts) { f.Policy, f.Records = asks, decided(store.Approved, now) }, codes.ApprovalNeeded, time.Time{}, false, false},
		"it is rejected without policy": {func(f *approval.Facts) { f.Records = decided(store.Rejected, time.Time{}) }, codes.ChangeRejected, time.Time{}, false, false},
		"it is postponed":               {func(f *approval.Facts) { f.Records = decided(store.Postponed, opens) }, codes.ChangePostponed, opens, false, false},
		"a person chose the target":     {func(f *approval.Facts) { f.Policy, f.Chosen = asks, true }, "", time.Time{}, true, false},
		"outside of the window": {func(f *approval.Facts) {
			f.Window = func(time.Time) (bool, bool, time.Time) { return true, false, opens }
		}, codes.OutsideWindow, opens, false, false},
		"it is locked":                        {func(f *approval.Facts) { f.Locks = lock }, codes.UpdateLocked, now.Add(time.Hour), false, false},
		"the lock has ended, and may be back": {func(f *approval.Facts) { f.Waits = map[string]plan.Wait{"id": {Code: codes.UpdateLocked}} }, "", time.Time{}, false, true},
		"locks are not read yet":              {func(f *approval.Facts) { f.LocksOf = nil }, "", time.Time{}, false, false},
		"locks were read too long ago":        {func(f *approval.Facts) { f.LocksAt = now.Add(-time.Minute) }, "", time.Time{}, false, false},
		"there is no room":                    {func(f *approval.Facts) { f.Admits = func(*plan.Deployment) bool { return false } }, "", time.Time{}, false, false},
		"it never ran completely":             {func(f *approval.Facts) { f.Policy, f.Good = asks, nil }, "", time.Time{}, true, false},
	} {
		d := facts(x.edit).Decide()
		if len(d.Changes) != 1 || len(d.Records) != 1 {
			t.Errorf("%s: %+v", name, d)
			continue
		}
		r := d.Records[d.Changes[0].ID]
		if w := d.Waits["id"]; w.Code != x.wait || !w.Until.Equal(x.until) || !d.At.Equal(x.until) {
			t.Errorf("%s: waits %+v, looked at again %v; want %s until %v", name, w, d.At, x.wait, x.until)
		}
		if begun := !r.Begun.IsZero(); begun != x.begun || begun && r.For != digest.FromString("state 2") || len(d.LocksAgain) > 0 != x.again {
			t.Errorf("%s: begun %t, for %s, locks again %v; want %t", name, begun, r.For, d.LocksAgain, x.begun)
		}
	}
}

// What a state changes that is still being loaded is known and decided on, and begins only when the state is the target.
func TestDecideOnWhatIsLoaded(t *testing.T) {
	f := facts(func(f *approval.Facts) {
		f.Accepted, f.Desired = f.Desired, &plan.Desired{Deployments: []plan.Deployment{*app("1")}}
		f.Policy = approval.Policy{Kinds: []plan.Kind{plan.Configuration}}
	})
	d := f.Decide()
	if len(d.Changes) != 1 || len(d.Waits) != 0 || len(d.Records) != 1 || !d.Records[d.Changes[0].ID].Begun.IsZero() {
		t.Errorf("%+v", d)
	}
	if f.FinishesFirst() { // nothing has begun
		t.Error("the target is to be finished first")
	}
}

// A revision that failed is no change any more; the record of a removal that is complete says that its state is under way.
func TestDecideOnFailedAndRemoved(t *testing.T) {
	removed := digest.FromString("a removal")
	f := facts(func(f *approval.Facts) {
		f.Bad = map[digest.Digest]store.Bad{f.Desired.Deployments[0].Digest: {}}
		f.Records = map[digest.Digest]store.Change{removed: {ID: removed, Deployment: "old", Begun: now, For: f.Target.Digest}}
	})
	if d := f.Decide(); len(d.Changes) != 0 || len(d.Records) != 1 || d.Records[removed].Deployment != "old" || !f.Begun() {
		t.Errorf("%+v, begun %t", d, f.Begun())
	}
	f.Target = &store.State{Digest: digest.FromString("another state")}
	if d := f.Decide(); len(d.Records) != 0 {
		t.Errorf("records %+v", d.Records)
	}
}
