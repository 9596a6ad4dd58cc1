// Package plan decides the next steps on a device: from the desired state, the observations and the agent's memory it derives the
// revisions to run, the next steps and the status of each deployment. It is pure: values in, values out.
package plan

import (
	"cmp"
	"maps"
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

// Step is one action to take now. Steps of one plan do not depend on each other.
type Step struct {
	Verb      Verb
	Project   string
	Container string // id; "" for Prepare and Teardown
	Restart   bool   // Stop: to be started again
	Run       string // with Restart: the run that is to end
	Ahead     bool   // Create: also do what can be done of its start, while the one that it replaces still runs
	Resume    bool   // Start: its process is paused
	repeated  bool   // Start: it ran before
	Spec      *workload.Project
	Unit      workload.Container
	surround  string
}

// Key identifies a step.
func (s Step) Key() string { return string(s.Verb) + " " + cmp.Or(s.Container, s.Project) }

// Subject is what a step works on: two steps on one subject never run at a time.
func (s Step) Subject() string { return cmp.Or(s.Container, "project "+s.Project) }

// Waits reports whether a step mostly waits for processes of its container.
func (s Step) Waits() bool {
	return s.Verb == Stop || s.Verb == Start && len(s.Unit.Service.PreStart) > 0
}

// Steps is a plan: the steps that can be taken now, and when to plan again if nothing happens; zero: never.
type Steps struct {
	Steps []Step
	Wake  time.Time
}

// Make compares the desired state with the observations and returns the steps that can be taken now. It is called again after every
// change, so a plan has no later steps. Without a desired state it does nothing.
//
//   - A needed container that exists is kept. One that is not needed any more is stopped once its replacement exists, which starts then,
//     or, start-first, once the replacement is well and the active backend; as many at a time as the service says. Where
//     two cannot exist, it is removed before its replacement is created. Projects that are not desired are removed
//     completely, except their volumes.
//   - A container starts when what it depends on has met its condition; a component when the one before it is up.
//     After a reboot the order is the same, but a component that fails does not keep later ones from starting.
//   - A container that exits is restarted as its restart policy says, once its dependencies have met their conditions again; one
//     that is unhealthy, whose dependency was restarted, or that is restarted by hand, is stopped for a restart; a paused one is resumed.
func Make(now time.Time, d *Desired, o workload.Observed, s *Supervision, p Policy) Steps {
	if d == nil {
		return Steps{}
	}
	pl := newPlanner(now, o, s, p)
	wanted, kept := map[string]bool{}, map[string]bool{}
	maps.Copy(kept, d.kept)
	for dep := range d.All() {
		kept[dep.ID] = dep.Blocked != nil
		for c := range dep.All() {
			wanted[c.Project.Name] = true
		}
	}
	pl.removeUnwanted(wanted, kept)
	var pending []*view
	for dep := range d.All() {
		for _, v := range pl.views(dep) {
			if v.open {
				pl.updateComponent(v)
				pl.clear(v)
			}
			pending = append(pending, v)
		}
	}
	for _, v := range pending {
		pl.component(v)
	}
	slices.SortStableFunc(pl.out.Steps, func(a, b Step) int { return cmp.Compare(a.Key(), b.Key()) })
	return pl.out
}

// planner is the state of one call of [Make].
type planner struct {
	now     time.Time
	o       workload.Observed
	project map[string][]*workload.Observation
	s       *Supervision
	p       Policy
	going   bool // a container that must go still runs, and can be stopped: it may hold a port
	out     Steps
}

func newPlanner(now time.Time, o workload.Observed, s *Supervision, p Policy) *planner {
	pl := &planner{now: now, o: o, s: s, p: p, project: map[string][]*workload.Observation{}}
	for i := range o.Containers {
		c := &o.Containers[i]
		pl.project[c.Project] = append(pl.project[c.Project], c)
	}
	return pl
}

// wake requests another plan at t.
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

// removeUnwanted removes the projects that are not desired, except those of deployments that are left as they are.
func (pl *planner) removeUnwanted(wanted, kept map[string]bool) {
	for name, cs := range pl.project {
		if !wanted[name] {
			for _, c := range cs {
				if !kept[c.Deployment] {
					pl.discard(*c)
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

// clear removes what a component's project does not need any more, dependents first.
func (pl *planner) clear(v *view) {
	now, soon := pl.leaving(v)
	for _, c := range now {
		if !v.blockedByDependent(c, soon) && !pl.stopSharers(v, c) {
			pl.discard(c)
		} else if alive(c) {
			pl.going = true
		}
	}
	for _, x := range v.slots {
		pl.going = pl.going || x.act == actCreate && pl.creation(v, x).Failures == 0
	}
}

// stopSharers stops the containers in the PID namespace of a container that is to stop: the kernel would kill them with it. They start
// again in the namespace of the next one. True: some still run.
func (pl *planner) stopSharers(v *view, o workload.Observation) bool {
	if !alive(o) || o.Replica != 1 { // only the first replica's namespace is shared
		return false
	}
	var next workload.Observation
	for _, x := range v.slots {
		if x.c.Service.Name == o.Service && x.c.Replica == o.Replica && x.there && alive(x.o) && x.o.ID != o.ID {
			next = x.o
		}
	}
	some := false
	for _, y := range v.slots {
		if !y.there || !alive(y.o) || y.c.Service.Namespaces.PID.Service() != o.Service || next.ID != "" && y.o.Began > next.Began {
			continue
		}
		pl.do(Step{Verb: Stop, Project: v.c.Project.Name, Container: y.o.ID, Spec: v.c.Project, Unit: *y.c, Restart: true, Run: y.o.Run})
		some = true
	}
	return some
}

// component adds the steps to bring up a component.
func (pl *planner) component(v *view) {
	pr := v.c.Project
	for _, x := range v.slots {
		if x.there {
			pl.supervise(v, x)
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
	for _, x := range v.slots {
		for _, o := range x.old {
			if o.Active && o.Status == workload.Exited && v.answered(x) {
				pl.do(Step{Verb: Deactivate, Project: pr.Name, Container: o.ID})
			}
		}
		st := Step{Project: pr.Name, Container: x.c.ID, Spec: pr, Unit: *x.c}
		switch {
		case x.act == actActivate, x.shouldActivate():
			st.Verb = Activate
		case v.shouldDeactivate(x):
			pl.do(Step{Verb: Deactivate, Project: pr.Name, Container: x.c.ID})
			continue
		case !x.there && (len(x.old) > 0 && x.act != actCreate && x.act != actSurge || v.missing(&x.c.Service) || v.waitsForVolume(&x.c.Service) != ""):
			continue
		case !x.there:
			st.Verb, st.Ahead = Create, x.act == actCreate && !v.restartsWith(&x.c.Service)
		case x.o.Status != workload.Created, !x.ended() && x.act != actSurge, !v.ready(x.c, pl.s), len(x.c.Service.Ports) > 0 && pl.going, pl.fillsLater(v, &x.c.Service):
			continue
		default:
			st.Verb, st.repeated = Start, pl.s.Containers[x.c.ID].ran
		}
		pl.do(st)
	}
}

// supervise adds the steps to keep an existing container running.
func (pl *planner) supervise(v *view, x *slot) {
	s := pl.s.Containers[x.c.ID]
	st := Step{Verb: Start, Project: v.c.Project.Name, Container: x.c.ID, Spec: v.c.Project, Unit: *x.c}
	switch {
	case pl.ends(v, x):
		if pl.stopSharers(v, x.o) {
			return
		}
		st.Verb, st.Restart, st.Run = Stop, true, x.o.Run
		pl.do(st)
	case x.o.Status == workload.Paused:
		st.Resume = true
		pl.do(st)
	case x.o.Status == workload.Exited && !x.ended() && !v.startsFirst(&x.c.Service): // it came back before its replacement ended
	case x.o.Status == workload.Exited && !s.NextStart.IsZero():
		if pl.now.Before(s.NextStart) {
			pl.wake(s.NextStart)
			return
		}
		if st.repeated = true; v.ready(x.c, pl.s) && !pl.hostEnds(v, x.c) {
			pl.do(st)
		}
	}
}

// ends reports whether a container is to be stopped and started again. What could not be started again runs on, unless it is unhealthy.
func (pl *planner) ends(v *view, x *slot) bool {
	s := pl.s.Containers[x.c.ID]
	run, marked := pl.s.Restarting[x.c.ID]
	return marked && run == x.o.Run && alive(x.o) && v.ready(x.c, pl.s) ||
		x.o.Status == workload.Running && (v.dependencyRestarted(x, pl.s) || s.Health == HealthUnhealthy && tries(x.c, s.Restarts))
}

// hostEnds reports whether the container in whose PID namespace a container starts is to be stopped first: the kernel would kill both.
func (pl *planner) hostEnds(v *view, c *workload.Container) bool {
	host := c.Service.Namespaces.PID.Service()
	return host != "" && slices.ContainsFunc(v.slots, func(x *slot) bool { return x.c.Service.Name == host && x.c.Replica == 1 && pl.ends(v, x) })
}
