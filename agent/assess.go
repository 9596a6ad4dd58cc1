package agent

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// assessment is what the device's deployments are at, derived from what is desired, what is there, and what was reported.
type assessment struct {
	statuses []store.Status // of every deployment that is desired, or not yet gone; by id
	removed  []store.Status // gone since the last report
	settled  bool           // the target runs completely and nothing else is left
	good     []*Deployment  // of the target, that run completely for the first time
	bad      []store.Bad    // revisions that failed and that a last good one is there for
}

// question is what an assessment is made of. All of it is only read.
type question struct {
	now    time.Time
	target *Desired // what the device is kept at; nil: nothing
	next   *Desired // accepted and not yet here completely; nil: none
	o      workload.Observed
	s      *Supervision
	p      Policy
	pulls  map[string]trouble      // images of next that cannot be pulled, by name
	before map[string]store.Status // by deployment id
	unseen bool                    // o says nothing yet: the runtime was never observed
	good   map[string]goodRevision // by deployment id
}

// assess is pure: the same question has the same answer.
func assess(q question) assessment {
	pl := newPlanner(q.now, q.o, q.s, q.p)
	out := assessment{settled: q.target != nil && q.next == nil}
	known := map[string]bool{}
	wanted := map[string]bool{}
	if q.target != nil {
		for i := range q.target.Deployments {
			d := &q.target.Deployments[i]
			known[d.ID] = true
			for j := range d.Components {
				wanted[d.Components[j].Project.Name] = true
			}
			views := pl.views(d)
			now := q.running(d, views)
			up := d.Refused == nil && d.Hold == nil
			for _, c := range now.Components {
				up = up && c.State == margo.StateInstalled
			}
			for _, v := range views {
				up = up && v.up
			}
			out.settled = out.settled && up
			if up && q.good[d.ID].rec.Digest != d.Digest {
				out.good = append(out.good, d)
			}
			q.failed(&out, d, views)
			if nd := q.next.deployment(d.ID); nd != nil {
				q.unloadable(&out, nd)
				now = q.coming(nd, now)
			}
			out.statuses = append(out.statuses, now)
		}
	}
	if q.next != nil {
		for i := range q.next.Deployments {
			if d := &q.next.Deployments[i]; !known[d.ID] {
				known[d.ID] = true
				q.unloadable(&out, d)
				out.statuses = append(out.statuses, q.coming(d, store.Status{}))
			}
		}
	}
	for _, c := range q.o.Containers {
		out.settled = out.settled && wanted[c.Project]
	}
	for _, p := range q.o.Projects {
		out.settled = out.settled && wanted[p]
	}
	if q.target != nil {
		q.leaving(&out, known)
	}
	slices.SortFunc(out.statuses, func(a, b store.Status) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
	return out
}

// running assesses a deployment of the target.
func (q question) running(d *Deployment, views []view) store.Status {
	before := q.before[d.ID]
	out := store.Status{DeploymentID: d.ID, Name: d.Name, Digest: d.Digest, Generation: q.target.Generation}
	if q.next != nil && q.next.deployment(d.ID) != nil {
		out.Generation = q.next.Generation
	}
	for _, v := range views {
		c := store.Component{Name: v.c.Name, Revision: v.c.Revision, Identity: v.c.Identity}
		old := componentOf(before, v.c.Name)
		c.State, c.Error = v.state(old)
		if d.Hold != nil && d.Hold.code != "" && c.State != margo.StateFailed {
			c.State, c.Error = margo.StateFailed, &margo.StatusError{Code: string(d.Hold.code), Source: c.Name, Message: d.Hold.message}
		}
		q.stamp(&c, old)
		out.Components = append(out.Components, c)
	}
	q.refused(&out, d, views)
	return q.sum(out, before)
}

// state derives what a component is at. old is what was reported last; it makes a state hold on to what it was: an installed
// component stays so through a restart of the agent or the device, a failed one stays so until it is up.
func (v *view) state(old store.Component) (margo.State, *margo.StatusError) {
	same := old.Identity == v.c.Identity
	installed := same && old.State == margo.StateInstalled
	failed := same && old.State == margo.StateFailed && old.Error != nil && !strings.HasPrefix(old.Error.Code, "image-")
	switch {
	case v.fault != nil && (v.fault.lasting || !installed):
		if failed && old.Error.Code == string(v.fault.code) {
			return margo.StateFailed, old.Error // messages change with every attempt; the first one tells it
		}
		return margo.StateFailed, &margo.StatusError{Code: string(v.fault.code), Source: v.c.Name, Message: v.fault.message}
	case v.up, installed:
		return margo.StateInstalled, nil
	case failed:
		return margo.StateFailed, old.Error
	case !v.open:
		return margo.StatePending, nil
	}
	return margo.StateInstalling, nil
}

// coming assesses a deployment of the next generation, beside what runs of it now.
func (q question) coming(d *Deployment, now store.Status) store.Status {
	before := q.before[d.ID]
	out := store.Status{DeploymentID: d.ID, Name: d.Name, Digest: d.Digest, Generation: q.next.Generation}
	for i := range d.Components {
		c := &d.Components[i]
		if old := componentOf(now, c.Name); old.Identity == c.Identity && old.Identity != "" {
			old.Revision = c.Revision
			out.Components = append(out.Components, old)
			continue
		}
		sc := store.Component{Name: c.Name, Revision: c.Revision, Identity: c.Identity, State: margo.StatePending}
		for _, x := range c.Containers {
			if t, ok := q.pulls[x.Service.Image.Name()]; ok && t.lasting {
				sc.State = margo.StateFailed
				sc.Error = &margo.StatusError{Code: string(t.code), Source: c.Name, Message: t.message}
				break
			}
		}
		q.stamp(&sc, componentOf(before, c.Name))
		out.Components = append(out.Components, sc)
	}
	q.refused(&out, d, nil)
	return q.sum(out, before)
}

// leaving assesses the deployments that were reported once and are not desired any more.
func (q question) leaving(out *assessment, known map[string]bool) {
	there := map[string]bool{}
	for _, c := range q.o.Containers {
		there[c.Project] = true
	}
	for _, p := range q.o.Projects {
		there[p] = true
	}
	for id, before := range q.before {
		if known[id] {
			continue
		}
		now := before
		now.Generation = q.target.Generation
		now.Components = slices.Clone(before.Components)
		gone := !q.unseen
		for i := range now.Components {
			c := &now.Components[i]
			c.State, c.Error = margo.StateRemoving, nil
			if there[workload.ProjectName(id, c.Name)] {
				gone = false
			}
		}
		for _, c := range q.o.Containers {
			gone = gone && c.Deployment != id
		}
		if gone && before.State == margo.StateRemoving {
			for i := range now.Components {
				now.Components[i].State = margo.StateRemoved
			}
			now.State, now.Since = margo.StateRemoved, q.now
			out.removed = append(out.removed, now)
			continue
		}
		for i := range now.Components {
			q.stamp(&now.Components[i], before.Components[i])
		}
		now.State, now.Since = margo.StateRemoving, q.now
		if before.State == now.State {
			now.Since = before.Since
		}
		out.statuses = append(out.statuses, now)
		out.settled = false
	}
	slices.SortFunc(out.removed, func(a, b store.Status) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
}

// stamp keeps the time since when a component is at its state.
func (q question) stamp(c *store.Component, old store.Component) {
	c.Since = q.now
	if old.State == c.State && old.Identity == c.Identity && !old.Since.IsZero() {
		c.Since = old.Since
	}
}

// sum derives a deployment's own state.
func (q question) sum(s, before store.Status) store.Status {
	s.State = margo.StateInstalled
	if len(s.Components) > 0 {
		cs := make([]margo.ComponentStatus, len(s.Components))
		for i, c := range s.Components {
			cs[i] = margo.ComponentStatus{Name: c.Name, State: c.State}
		}
		s.State = margo.Overall(cs)
	}
	s.Since = q.now
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

// overallError is what failed first in a deployment; nil when nothing did.
func overallError(s store.Status) *margo.StatusError {
	if s.State != margo.StateFailed {
		return nil
	}
	for _, c := range s.Components {
		if c.State == margo.StateFailed && c.Error != nil {
			return &margo.StatusError{Code: c.Error.Code, Source: s.Name, Message: c.Name + ": " + c.Error.Message}
		}
	}
	return nil
}

// body is the report that a status makes.
func body(device string, s store.Status) ([]byte, error) {
	d := margo.DeploymentStatus{
		DeploymentID: s.DeploymentID, DeviceID: device, AdoptedManifestVersion: s.Generation,
		Status:     margo.OverallStatus{State: s.State, Error: overallError(s)},
		Components: []margo.ComponentStatus{},
	}
	for _, c := range s.Components {
		d.Components = append(d.Components, margo.ComponentStatus{Name: c.Name, State: c.State, Error: c.Error})
	}
	return d.Encode()
}
