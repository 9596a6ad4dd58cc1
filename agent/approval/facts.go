package approval

import (
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// LockEvery is the time between two looks at update locks while a change waits.
const LockEvery = 5 * time.Second

// Facts are what decides which changes of a device wait. They are read only.
type Facts struct {
	Now      time.Time
	Target   *store.State  // that the device is kept at; nil: none
	Desired  *plan.Desired // of it
	Accepted *plan.Desired // of the accepted state, while it is not the target; nil: none
	Chosen   bool          // a person at the device chose the target: nothing holds its changes back
	Good     map[string]plan.GoodRevision
	Bad      map[digest.Digest]store.Bad
	Observed []workload.Observation
	Looked   bool // at containers, since the agent started: Observed is known

	Policy Policy
	// Window reports whether changes are not made at a time, whether that is because the clock is not trusted, and when the next window begins;
	// zero: not known. nil: they are made at all times.
	Window func(now time.Time) (closed, clockUnknown bool, opens time.Time)
	Admits func(*plan.Deployment) bool // the device has room for it

	Records map[digest.Digest]store.Change // by change
	Counted time.Time                      // when it was counted how long they have waited
	Locks   map[string][]Lock              // by deployment
	LocksOf map[digest.Digest]bool         // changes whose locks were read
	LocksAt time.Time                      // when
	Waits   map[string]plan.Wait           // by deployment, as of the last decision
}

// Gated reports whether anything on the device may hold back a change.
func (f *Facts) Gated() bool {
	return slices.ContainsFunc(f.Policy.Kinds, func(k plan.Kind) bool { return k != plan.TrustPolicy }) || f.Window != nil || len(f.Lockable()) > 0 || f.refused()
}

// refused reports whether a change was rejected or postponed. Such a decision counts also without windows, locks and an approval policy.
func (f *Facts) refused() bool {
	for _, r := range f.Records {
		if d := r.Decision; r.Trust == nil && r.Begun.IsZero() && d != nil && d.Verdict != store.Approved {
			return true
		}
	}
	return false
}

// Lockable are the revisions that run and may have an update lock.
func (f *Facts) Lockable() []*plan.Deployment {
	var out []*plan.Deployment
	for _, g := range f.Good {
		for c := range g.Deployment.All() {
			if slices.ContainsFunc(c.Project.Volumes, func(v workload.Volume) bool { return v.Name == LockVolume }) {
				out = append(out, g.Deployment)
				break
			}
		}
	}
	return out
}

// lockedBy reports whether a deployment may have an update lock.
func (f *Facts) lockedBy(deployment string) bool {
	return slices.ContainsFunc(f.Lockable(), func(d *plan.Deployment) bool { return d.ID == deployment })
}

// Open lists what a state changes, but for what was found bad already.
func (f *Facts) Open(d *plan.Desired) []plan.Change {
	return slices.DeleteFunc(plan.Changes(d, f.Good), func(c plan.Change) bool {
		x := d.Deployment(c.Deployment)
		if x == nil { // it is removed
			return false
		}
		_, bad := f.Bad[x.Digest]
		return bad
	})
}

// RemovedFor reports whether a record is of a removal that the target asked for and that is complete: it says that the target is under way.
func (f *Facts) RemovedFor(r store.Change) bool {
	_, good := f.Good[r.Deployment]
	return r.Trust == nil && !good && f.Target != nil && !r.Begun.IsZero() && r.For == f.Target.Digest && f.Desired.Deployment(r.Deployment) == nil
}

// unfinished reports whether a deployment is on the device of which there is no revision that could be kept: it never ran completely, or the
// documents of the one that did are damaged and nothing of it runs. Nothing holds its change back, unless it is on its way off the device.
func (f *Facts) unfinished(c plan.Change) bool {
	good, ran := f.Good[c.Deployment]
	return good.Deployment == nil && !f.leaves(c.Deployment) && f.has(c.Deployment, false) && !(ran && f.has(c.Deployment, true))
}

// leaves reports whether a deployment may still have containers that a rollback by hand removes: neither the target nor the good revisions
// contain it.
func (f *Facts) leaves(id string) bool {
	_, ran := f.Good[id]
	return !ran && f.Desired != nil && f.Desired.Deployment(id) == nil && (!f.Looked || f.has(id, false))
}

// has reports whether a deployment has a container, or one that runs.
func (f *Facts) has(deployment string, running bool) bool {
	return slices.ContainsFunc(f.Observed, func(o workload.Observation) bool {
		return o.Deployment == deployment && (!running || o.Status == workload.Running)
	})
}

// canBegin reports whether a change that nothing holds back is made now: one that has to wait for the device's admission has not begun, and
// its window may close again.
func (f *Facts) canBegin(c plan.Change) bool {
	d := f.Desired.Deployment(c.Deployment)
	return d == nil || f.Admits(d)
}

// question is what may hold back a change.
func (f *Facts) question(c plan.Change, r store.Change) Question {
	if f.Chosen {
		return Question{}
	}
	q := Question{Now: f.Now, Change: c, Record: r, Policy: f.Policy, Locks: f.Locks[c.Deployment], Counted: f.Counted}
	if f.Window != nil {
		q.Closed, q.ClockUnknown, q.Opens = f.Window(f.Now)
		q.Opens = q.Opens.Round(time.Second).UTC()
	}
	return q
}

// Wait is why a change is not made now; nil: nothing holds it back. Without a code it is a moment, until the locks were read.
func (f *Facts) Wait(c plan.Change, r store.Change) *plan.Wait {
	if f.unfinished(c) {
		return nil
	}
	w := f.question(c, r).Wait()
	if w == nil && f.lockedBy(c.Deployment) && (!f.LocksOf[c.ID] || f.Now.Sub(f.LocksAt) > 2*LockEvery) {
		return &plan.Wait{}
	}
	return w
}

// UnderWay are records of the changes that have begun on a device that holds none back, when a state with windows comes, which does.
func (f *Facts) UnderWay(coming *store.State) []store.Change {
	if coming.Windows == "" || f.Gated() {
		return nil
	}
	var out []store.Change
	for _, c := range f.Open(f.Desired) {
		if f.canBegin(c) {
			out = append(out, store.Change{ID: c.ID, Deployment: c.Deployment, Since: f.Now, Begun: f.Now, For: f.Target.Digest})
		}
	}
	return out
}

// FinishesFirst reports whether an update has begun and is neither good nor bad, while what takes its place waits: in between the device
// would go back to the revision before, outside of every window. The same holds for what leaves the device and waits to come back: it would stay.
func (f *Facts) FinishesFirst() bool {
	if !f.Gated() {
		return false
	}
	var waiting []plan.Change
	for _, c := range f.Open(f.Accepted) {
		r, known := f.Records[c.ID]
		if !known {
			r.Since = f.Now
		}
		if r.Begun.IsZero() && f.Wait(c, r) != nil {
			waiting = append(waiting, c)
		}
	}
	of := func(id string) bool {
		return slices.ContainsFunc(waiting, func(c plan.Change) bool { return c.Deployment == id })
	}
	return slices.ContainsFunc(waiting, func(c plan.Change) bool { return f.leaves(c.Deployment) }) ||
		slices.ContainsFunc(f.Open(f.Desired), func(c plan.Change) bool {
			return of(c.Deployment) && !f.Records[c.ID].Begun.IsZero() && f.Good[c.Deployment].Deployment != nil
		})
}

// Begun reports whether the target is what the device runs, or changes to: one of its changes has begun or is made, or nothing holds them back.
func (f *Facts) Begun() bool {
	open := f.Open(f.Desired)
	if len(open) == 0 || !f.Gated() || slices.ContainsFunc(open, func(c plan.Change) bool { return !f.Records[c.ID].Begun.IsZero() }) {
		return true
	}
	for _, r := range f.Records {
		if f.RemovedFor(r) {
			return true
		}
	}
	for d := range f.Desired.All() {
		g, ok := f.Good[d.ID]
		if ok && g.Record.State == f.Target.Digest && g.Record.Accepted.Equal(f.Target.AcceptedAt) { // another one is of when it was the target before
			return true
		}
	}
	return false
}
