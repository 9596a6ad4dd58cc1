package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Verb is what a step does.
type Verb string

// Verbs, each a call of [Runtime].
const (
	Prepare  Verb = "prepare"
	Create   Verb = "create"
	Start    Verb = "start"
	Stop     Verb = "stop"
	Remove   Verb = "remove"
	Teardown Verb = "teardown"
)

// Step is one thing to do now. Steps of one plan do not depend on each other.
type Step struct {
	Verb      Verb
	Project   string
	Container string // id; "" for Prepare and Teardown
	spec      *workload.Project
	unit      workload.Container
	surround  string
}

// Key names a step among all.
func (s Step) Key() string { return string(s.Verb) + " " + cmp.Or(s.Container, s.Project) }

// Subject is what a step works on: never two at a time.
func (s Step) Subject() string { return cmp.Or(s.Container, "project "+s.Project) }

// Steps is a plan: what can be done now, and when to look again if nothing happens; zero: never.
type Steps struct {
	Steps []Step
	Wake  time.Time
}

// Plan compares what is desired with what is there and says what can be done now. It is called again after every change:
// it holds no order beyond "not yet". With nothing desired yet it does nothing.
//
//   - A container that is needed and there is kept. One that is not needed any more is stopped and removed before the
//     one that takes its place is made; projects that are not desired go completely, but for their volumes.
//   - A container starts when what it depends on is started or healthy; a component when the one before it is up.
//     After a reboot the same order holds, but a component that fails does not keep those behind it from coming back.
//   - A container that exits is started again as its restart policy says, whatever it depends on.
func Plan(now time.Time, d *Desired, o workload.Observed, s *Supervision, p Policy) Steps {
	if d == nil {
		return Steps{}
	}
	pl := newPlanner(now, o, s, p)
	wanted := map[string]bool{}
	for i := range d.Deployments {
		for j := range d.Deployments[i].Components {
			wanted[d.Deployments[i].Components[j].Project.Name] = true
		}
	}
	pl.dismiss(wanted)
	for i := range d.Deployments {
		views := pl.views(&d.Deployments[i])
		for j := range views {
			if views[j].open {
				pl.clear(&views[j])
			}
		}
		pl.pending = append(pl.pending, views...)
	}
	for i := range pl.pending {
		pl.component(&pl.pending[i])
	}
	slices.SortStableFunc(pl.out.Steps, func(a, b Step) int { return cmp.Compare(a.Key(), b.Key()) })
	return pl.out
}

// planner holds what one call of Plan works on.
type planner struct {
	now     time.Time
	o       workload.Observed
	byID    map[string]workload.Observation
	project map[string][]workload.Observation
	s       *Supervision
	p       Policy
	pending []view
	going   bool // a container that must go still runs, and can be stopped: it may hold a port
	out     Steps
}

func newPlanner(now time.Time, o workload.Observed, s *Supervision, p Policy) *planner {
	pl := &planner{now: now, o: o, s: s, p: p, byID: map[string]workload.Observation{}, project: map[string][]workload.Observation{}}
	for _, c := range o.Containers {
		pl.byID[c.ID] = c
		pl.project[c.Project] = append(pl.project[c.Project], c)
	}
	return pl
}

// wake asks for another plan at t.
func (pl *planner) wake(t time.Time) {
	if t.After(pl.now) && (pl.out.Wake.IsZero() || t.Before(pl.out.Wake)) {
		pl.out.Wake = t
	}
}

// do adds a step unless its subject is busy or it has to wait after a failure.
func (pl *planner) do(st Step) {
	if pl.s.Busy[st.Subject()] {
		return
	}
	if r, ok := pl.s.Retries[st.Key()]; ok && pl.now.Before(r.At) {
		pl.wake(r.At)
		return
	}
	pl.out.Steps = append(pl.out.Steps, st)
}

// dismiss takes down the projects that nobody wants.
func (pl *planner) dismiss(wanted map[string]bool) {
	for name, cs := range pl.project {
		if !wanted[name] {
			for _, c := range cs {
				pl.discard(c)
			}
		}
	}
	for _, name := range pl.o.Projects {
		if !wanted[name] && len(pl.project[name]) == 0 {
			pl.do(Step{Verb: Teardown, Project: name})
		}
	}
}

// discard stops a container, then removes it.
func (pl *planner) discard(c workload.Observation) {
	st := Step{Verb: Remove, Project: c.Project, Container: c.ID}
	if c.Status == workload.Running || c.Status == workload.Paused {
		st.Verb = Stop
		if pl.s.Retries[st.Key()].Failures == 0 {
			pl.going = true
		}
	}
	pl.do(st)
}

// clear removes what a component's project does not need any more: dependents first.
func (pl *planner) clear(v *view) {
	for _, c := range v.obsolete {
		if !v.heldByDependent(c) {
			pl.discard(c)
		} else if c.Status == workload.Running || c.Status == workload.Paused {
			pl.going = true
		}
	}
}

// component brings up what a component needs.
func (pl *planner) component(v *view) {
	pr := v.c.Project
	pl.wake(v.wake)
	for _, c := range v.c.Containers {
		o, ok := pl.byID[c.ID]
		if ok && o.Status == workload.Exited {
			pl.revive(pr, c)
		}
	}
	if !v.open {
		return
	}
	if pl.s.Prepared[pr.Name] != v.c.surround {
		pl.do(Step{Verb: Prepare, Project: pr.Name, spec: pr, surround: v.c.surround})
		return
	}
	for _, c := range v.c.Containers {
		o, ok := pl.byID[c.ID]
		switch {
		case v.replaces(c):
		case !ok:
			pl.do(Step{Verb: Create, Project: pr.Name, Container: c.ID, spec: pr, unit: c})
		case o.Status != workload.Created:
		case !v.ready(c, pl.s), len(c.Service.Ports) > 0 && pl.going:
		default:
			pl.do(Step{Verb: Start, Project: pr.Name, Container: c.ID, spec: pr, unit: c})
		}
	}
}

// revive starts a container that exited when its restart is due.
func (pl *planner) revive(pr *workload.Project, c workload.Container) {
	s := pl.s.Containers[c.ID]
	switch {
	case s.NextStart.IsZero():
	case pl.now.Before(s.NextStart):
		pl.wake(s.NextStart)
	default:
		pl.do(Step{Verb: Start, Project: pr.Name, Container: c.ID, spec: pr, unit: c})
	}
}
