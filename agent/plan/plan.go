// Package plan decides what is done next on a device: from what is desired, what was observed and what is remembered it derives the
// revisions to run, the next steps and the status of each deployment. It is pure: values in, values out.
package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Verb is what a step does.
type Verb string

// Verbs, each a call of the runtime.
const (
	Prepare    Verb = "prepare"
	Create     Verb = "create"
	Start      Verb = "start"
	Stop       Verb = "stop"
	Remove     Verb = "remove"
	Activate   Verb = "activate"
	Deactivate Verb = "deactivate"
	Teardown   Verb = "teardown"
)

// Step is one thing to do now. Steps of one plan do not depend on each other.
type Step struct {
	Verb      Verb
	Project   string
	Container string // id; "" for Prepare and Teardown
	Restart   bool   // Stop: to be started again
	Run       string // with Again: the run that is to end
	repeated  bool   // Start: it ran before
	Spec      *workload.Project
	Unit      workload.Container
	surround  string
}

// Key names a step among all.
func (s Step) Key() string { return string(s.Verb) + " " + cmp.Or(s.Container, s.Project) }

// Subject is what a step works on: never two at a time.
func (s Step) Subject() string { return cmp.Or(s.Container, "project "+s.Project) }

// Waits reports whether a step mostly waits for processes of its container.
func (s Step) Waits() bool {
	return s.Verb == Stop || s.Verb == Start && len(s.Unit.Service.PreStart) > 0
}

// Steps is a plan: what can be done now, and when to look again if nothing happens; zero: never.
type Steps struct {
	Steps []Step
	Wake  time.Time
}

// Make compares what is desired with what is there and says what can be done now. It is called again after every change:
// it holds no order beyond "not yet". With nothing desired yet it does nothing.
//
//   - A container that is needed and there is kept. One that is not needed any more is stopped and removed before the
//     one that takes its place is made, or, start-first, once that one is well and the service's address leads to it; as
//     many at a time as the service says. Projects that are not desired go completely, but for their volumes.
//   - A container starts when what it depends on has met its condition; a component when the one before it is up.
//     After a reboot the same order holds, but a component that fails does not keep those behind it from coming back.
//   - A container that exits is started again as its restart policy says, once what it depends on has met its condition
//     again; one that is unhealthy, or that is to follow a dependency, is stopped for that; one that someone paused is
//     resumed.
func Make(now time.Time, d *Desired, o workload.Observed, s *Supervision, p Policy) Steps {
	if d == nil {
		return Steps{}
	}
	pl := newPlanner(now, o, s, p)
	wanted, kept := map[string]bool{}, map[string]bool{}
	for i := range d.Deployments {
		dep := &d.Deployments[i]
		kept[dep.ID] = dep.Blocked != nil
		for j := range dep.Components {
			wanted[dep.Components[j].Project.Name] = true
		}
	}
	pl.removeUnwanted(wanted, kept)
	for i := range d.Deployments {
		views := pl.views(&d.Deployments[i])
		for j := range views {
			if views[j].open {
				pl.rollout(&views[j])
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
	project map[string][]workload.Observation
	s       *Supervision
	p       Policy
	pending []view
	going   bool // a container that must go still runs, and can be stopped: it may hold a port
	out     Steps
}

func newPlanner(now time.Time, o workload.Observed, s *Supervision, p Policy) *planner {
	pl := &planner{now: now, o: o, s: s, p: p, project: map[string][]workload.Observation{}}
	for _, c := range o.Containers {
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
	if _, busy := pl.s.Busy[st.Subject()]; busy {
		return
	}
	if st.Restart && slices.ContainsFunc(pl.out.Steps, func(x Step) bool { return x.Container == st.Container }) {
		return // for another reason
	}
	if r, ok := pl.s.Retries[st.Key()]; ok && pl.now.Before(r.At) {
		pl.wake(r.At)
		return
	}
	pl.out.Steps = append(pl.out.Steps, st)
}

// removeUnwanted takes down the projects that no one wants, but not those of deployments that are left as they are.
func (pl *planner) removeUnwanted(wanted, kept map[string]bool) {
	for name, cs := range pl.project {
		if !wanted[name] {
			for _, c := range cs {
				if !kept[c.Deployment] {
					pl.discard(c)
				}
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
	if alive(c) {
		st.Verb = Stop
		if pl.s.Retries[st.Key()].Failures == 0 {
			pl.going = true
		}
	}
	pl.do(st)
}

// clear removes what a component's project does not need any more: dependents first.
func (pl *planner) clear(v *view) {
	leaving := v.leaving()
	for _, c := range leaving {
		if !v.blockedByDependent(c, leaving) && !pl.stopSharers(v, c) {
			pl.discard(c)
		} else if alive(c) {
			pl.going = true
		}
	}
}

// stopSharers stops those who are in the namespace of processes of a container that is to stop: the kernel would kill them with
// it. They come back in that of the next one. True: some still run.
func (pl *planner) stopSharers(v *view, o workload.Observation) bool {
	if !alive(o) || o.Replica != 1 { // no one is in that of another replica
		return false
	}
	var next workload.Observation
	for i := range v.slots {
		if x := &v.slots[i]; x.c.Service.Name == o.Service && x.c.Replica == o.Replica && x.there && alive(x.o) && x.o.ID != o.ID {
			next = x.o
		}
	}
	some := false
	for i := range v.slots {
		y := &v.slots[i]
		if !y.there || !alive(y.o) || y.c.Service.Namespaces.PID.Service() != o.Service || next.ID != "" && y.o.Began > next.Began {
			continue
		}
		pl.do(Step{Verb: Stop, Project: v.c.Project.Name, Container: y.o.ID, Spec: v.c.Project, Unit: y.c, Restart: true, Run: y.o.Run})
		some = true
	}
	return some
}

// component brings up what a component needs.
func (pl *planner) component(v *view) {
	pr := v.c.Project
	for i := range v.slots {
		if v.slots[i].there {
			pl.supervise(v, &v.slots[i])
		}
	}
	defer func() { pl.wake(v.wake) }()
	if !v.open || v.d.Blocked != nil {
		return
	}
	if pl.s.Prepared[pr.Name] != v.c.environment {
		pl.do(Step{Verb: Prepare, Project: pr.Name, Spec: pr, surround: v.c.environment})
		return
	}
	for i := range v.slots {
		x := &v.slots[i]
		st := Step{Project: pr.Name, Container: x.c.ID, Spec: pr, Unit: x.c}
		switch {
		case x.act == actActivate, x.shouldActivate():
			st.Verb = Activate
		case v.shouldDeactivate(x):
			pl.do(Step{Verb: Deactivate, Project: pr.Name, Container: x.c.ID})
			continue
		case len(x.old) > 0 && x.act != actSurge, !x.there && v.missing(&x.c.Service):
			continue
		case !x.there && v.waitsForVolume(&x.c.Service):
			continue
		case !x.there:
			st.Verb = Create
		case x.o.Status != workload.Created, !v.ready(x.c, pl.s), len(x.c.Service.Ports) > 0 && pl.going:
			continue
		default:
			st.Verb, st.repeated = Start, pl.s.Containers[x.c.ID].ran
		}
		pl.do(st)
	}
}

// supervise keeps a container going that is there.
func (pl *planner) supervise(v *view, x *slot) {
	s := pl.s.Containers[x.c.ID]
	st := Step{Verb: Start, Project: v.c.Project.Name, Container: x.c.ID, Spec: v.c.Project, Unit: x.c}
	switch {
	case x.o.Status == workload.Paused:
		pl.do(st)
	case x.o.Status == workload.Exited && !s.NextStart.IsZero():
		if pl.now.Before(s.NextStart) {
			pl.wake(s.NextStart)
			return
		}
		if st.repeated = true; v.ready(x.c, pl.s) {
			pl.do(st)
		}
	case x.o.Status == workload.Running && (v.dependencyRestarted(x, pl.s) || s.Health == HealthUnhealthy && tries(x.c, s.Restarts)):
		if pl.stopSharers(v, x.o) {
			return
		}
		st.Verb, st.Restart, st.Run = Stop, true, x.o.Run
		pl.do(st)
	}
}
