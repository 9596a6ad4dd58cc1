package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Assessment is the state of the device's deployments, derived from the desired state, the observations and earlier reports.
type Assessment struct {
	Statuses     []store.Status    // of every deployment that is desired, or not yet gone; by id
	Removed      []store.Status    // gone since the last report
	Settled      bool              // the target runs completely and nothing else is left
	Good         []*Deployment     // of the target, that run completely for the first time
	FailedBefore map[string]uint64 // for [Supervision.FailedBefore]
	Bad          []store.Bad       // revisions that failed and that a last good one is there for
	Stage        Stage             // of the target
}

// AssessmentInput is the input of an assessment. It is only read.
type AssessmentInput struct {
	Now         time.Time
	Target      *Desired // the state that the device runs; nil: none
	Accepted    *Desired // accepted, not completely downloaded; nil: none
	Observed    workload.Observed
	Supervision *Supervision
	Policy      Policy
	Pulls       map[string]Trouble      // images of Accepted that cannot be pulled, by name
	Before      map[string]store.Status // by deployment id
	Unseen      bool                    // the runtime was not observed yet
	Good        map[string]GoodRevision // by deployment id
}

// Assess is pure: the same question has the same answer.
func Assess(q AssessmentInput) Assessment {
	pl := newPlanner(q.Now, q.Observed, q.Supervision, q.Policy)
	out := Assessment{Settled: q.Target != nil && q.Accepted == nil, FailedBefore: map[string]uint64{}}
	known := map[string]bool{}
	wanted := map[string]bool{}
	for d := range q.Target.All() {
		known[d.ID] = true
		for c := range d.All() {
			wanted[c.Project.Name] = true
		}
		views := pl.views(d)
		now := q.running(d, views)
		up := d.Refused == nil && d.Blocked == nil && d.Waiting == nil
		for _, v := range views {
			up = up && v.up && (v.fault == nil || !v.fault.Permanent)
		}
		out.Settled = out.Settled && up
		if up && q.Good[d.ID].Record.Digest != d.Digest {
			out.Good = append(out.Good, d)
		}
		if d.Waiting != nil {
			now = q.waits(d, now)
		}
		out.Stage = out.Stage.and(q.stage(d, views, now))
		q.recordFailedUpdate(&out, d, views)
		q.failedBefore(&out, d, views)
		if nd := q.Accepted.Deployment(d.ID); nd != nil {
			q.RecordFailedPull(&out, nd)
			now = q.next(nd, now, q.Accepted.Generation)
		}
		out.Statuses = append(out.Statuses, now)
	}
	for d := range q.Accepted.All() {
		if !known[d.ID] {
			known[d.ID] = true
			q.RecordFailedPull(&out, d)
			out.Statuses = append(out.Statuses, q.next(d, store.Status{}, q.Accepted.Generation))
		}
	}
	if d := cmp.Or(q.Accepted, q.Target); d != nil {
		for _, u := range d.Unplaced {
			known[u.ID] = true
			out.Statuses = append(out.Statuses, q.unplaced(u, d.Generation))
		}
	}
	leaves := false
	for _, c := range q.Observed.Containers {
		leaves = leaves || !wanted[c.Project]
	}
	for _, p := range q.Observed.Projects {
		leaves = leaves || !wanted[p]
	}
	out.Settled = out.Settled && !leaves
	if q.Target != nil {
		q.removed(&out, known)
		if leaves || !out.Settled && out.Stage.Phase == "" {
			out.Stage = out.Stage.and(Stage{Phase: store.PhaseApplying})
		}
	}
	slices.SortFunc(out.Statuses, func(a, b store.Status) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
	return out
}

// failedBefore records which containers of the last good revision fail. An update that does not change them does not fail because of
// them: rolling back would restore the same containers. A container stops counting as failed when its run has lasted: after a
// restart of the agent one that crashes repeatedly looks well for a moment.
func (q AssessmentInput) failedBefore(out *Assessment, d *Deployment, views []*view) {
	good := q.Good[d.ID].Deployment
	if good == nil {
		return
	}
	for _, v := range views {
		for _, x := range v.slots {
			since, was := q.Supervision.FailedBefore[x.c.ID]
			switch {
			case !x.there, !good.needs(x.c.ID), x.well && (x.settled || !was):
			case was:
				out.FailedBefore[x.c.ID] = since
			case x.fault != nil && x.fault.Permanent:
				out.FailedBefore[x.c.ID] = q.Target.Generation
			}
		}
	}
}

// running assesses a deployment of the target.
func (q AssessmentInput) running(d *Deployment, views []*view) store.Status {
	before := q.Before[d.ID]
	out := store.Status{DeploymentID: d.ID, Name: d.Name, Digest: d.Digest, Generation: q.Target.Generation}
	if q.Accepted != nil && q.Accepted.Deployment(d.ID) != nil {
		out.Generation = q.Accepted.Generation
	}
	for _, v := range views {
		c := store.Component{Name: v.c.Name, Revision: v.c.Revision, Identity: v.c.Identity}
		old := componentOf(before, v.c.Name)
		c.State, c.Error = v.state(old)
		if d.Blocked != nil && d.Blocked.Code != "" && c.State != margo.StateFailed {
			c.State, c.Error = margo.StateFailed, &margo.StatusError{Code: string(d.Blocked.Code), Source: c.Name, Message: d.Blocked.Message}
		}
		q.stamp(&c, old)
		out.Components = append(out.Components, c)
	}
	q.rejected(&out, d, views)
	return q.sum(out, before)
}

// state derives the state of a component. old is the last report: an installed component stays installed through a restart of the
// agent or the device, a failed one stays failed until it is up.
func (v *view) state(old store.Component) (margo.State, *margo.StatusError) {
	same := old.Identity == v.c.Identity
	installed := same && old.State == margo.StateInstalled
	failed := same && old.State == margo.StateFailed && old.Error != nil && !strings.HasPrefix(old.Error.Code, "image-")
	switch f := worse(v.fault, v.failureBefore); {
	case f != nil && f.Permanent:
		if failed && old.Error.Code == string(f.Code) {
			return margo.StateFailed, old.Error // messages change with every attempt; the first one is kept
		}
		return margo.StateFailed, &margo.StatusError{Code: string(f.Code), Source: v.c.Name, Message: f.Message}
	case v.up && !v.failedBefore, installed:
		return margo.StateInstalled, nil
	case failed:
		return margo.StateFailed, old.Error
	case !v.open:
		return margo.StatePending, nil
	}
	return margo.StateInstalling, nil
}

// unplaced assesses a deployment for a device behind this one.
func (q AssessmentInput) unplaced(u Unplaced, generation uint64) store.Status {
	before := q.Before[u.ID]
	out := store.Status{DeploymentID: u.ID, Name: u.Name, Digest: u.Digest, Generation: generation, Child: u.Device}
	code, message := u.trouble()
	gateway, _, _ := strings.Cut(u.Device, "/")
	for i, name := range u.Components {
		c := store.Component{Name: name, Revision: u.Revisions[i], State: margo.StateFailed, Error: &margo.StatusError{Code: string(code), Source: gateway, Message: message}}
		q.stamp(&c, componentOf(before, name))
		out.Components = append(out.Components, c)
	}
	return q.sum(out, before)
}

// next assesses a deployment of a later generation; now is what runs of it.
func (q AssessmentInput) next(d *Deployment, now store.Status, generation uint64) store.Status {
	before := q.Before[d.ID]
	out := store.Status{DeploymentID: d.ID, Name: d.Name, Digest: d.Digest, Generation: generation}
	for c := range d.All() {
		if old := componentOf(now, c.Name); old.Identity == c.Identity && old.Identity != "" {
			old.Revision = c.Revision
			out.Components = append(out.Components, old)
			continue
		}
		sc := store.Component{Name: c.Name, Revision: c.Revision, Identity: c.Identity, State: margo.StatePending}
		for _, x := range c.Containers {
			if t, ok := q.Pulls[x.Service.Image.Name()]; ok && t.Permanent {
				sc.State = margo.StateFailed
				sc.Error = &margo.StatusError{Code: string(t.Code), Source: c.Name, Message: t.Message}
				break
			}
		}
		q.stamp(&sc, componentOf(before, c.Name))
		out.Components = append(out.Components, sc)
	}
	q.rejected(&out, d, nil)
	return q.sum(out, before)
}

// removed assesses the deployments that were reported and are not desired any more.
func (q AssessmentInput) removed(out *Assessment, known map[string]bool) {
	there := map[string]bool{}
	for _, c := range q.Observed.Containers {
		there[c.Project] = true
	}
	for _, p := range q.Observed.Projects {
		there[p] = true
	}
	for id, before := range q.Before {
		if known[id] {
			continue
		}
		now := before
		now.Generation = q.Target.Generation
		now.Components = slices.Clone(before.Components)
		gone := !q.Unseen
		for i := range now.Components {
			c := &now.Components[i]
			c.State, c.Error = margo.StateRemoving, nil
			if there[workload.ProjectName(id, c.Name)] {
				gone = false
			}
		}
		for _, c := range q.Observed.Containers {
			gone = gone && c.Deployment != id
		}
		if gone && before.State == margo.StateRemoving {
			for i := range now.Components {
				now.Components[i].State = margo.StateRemoved
			}
			now.State, now.Since = margo.StateRemoved, q.Now
			out.Removed = append(out.Removed, now)
			continue
		}
		for i := range now.Components {
			q.stamp(&now.Components[i], before.Components[i])
		}
		now.State, now.Since = margo.StateRemoving, q.Now
		if before.State == now.State {
			now.Since = before.Since
		}
		out.Statuses = append(out.Statuses, now)
		out.Settled = false
	}
	slices.SortFunc(out.Removed, func(a, b store.Status) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
}

// stamp keeps the time since when a component is at its state.
func (q AssessmentInput) stamp(c *store.Component, old store.Component) {
	c.Since = q.Now
	if old.State == c.State && old.Identity == c.Identity && !old.Since.IsZero() {
		c.Since = old.Since
	}
}

// sum derives a deployment's own state.
func (q AssessmentInput) sum(s, before store.Status) store.Status {
	s.State = margo.StateInstalled
	if len(s.Components) > 0 {
		cs := make([]margo.ComponentStatus, len(s.Components))
		for i, c := range s.Components {
			cs[i] = margo.ComponentStatus{Name: c.Name, State: c.State}
		}
		s.State = margo.Overall(cs)
	}
	s.Since = q.Now
	if before.State == s.State && before.Digest == s.Digest && !before.Since.IsZero() {
		s.Since = before.Since
	}
	return s
}

func componentOf(s store.Status, name string) store.Component {
	for _, c := range s.Components {
		if c.Name == name {
			return c
		}
	}
	return store.Component{}
}

// OverallError is the first error in a deployment; nil when there is none.
func OverallError(s store.Status) *margo.StatusError {
	if s.State != margo.StateFailed {
		return nil
	}
	for _, c := range s.Components {
		if c.State == margo.StateFailed && c.Error != nil {
			if s.Child != "" {
				return c.Error
			}
			message := c.Error.Message
			if c.Name != s.Name { // readers put the name of the deployment before it
				message = c.Name + ": " + message
			}
			return &margo.StatusError{Code: c.Error.Code, Source: s.Name, Message: message}
		}
	}
	return nil
}
