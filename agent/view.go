package agent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// view is a component beside what was observed of it.
type view struct {
	d       *Deployment
	c       *Component
	slots   []slot                 // one for each container that it needs, in their order
	extra   []workload.Observation // of its project, of no service or replica that is needed any more
	open    bool                   // its turn among the deployment's components has come
	present bool                   // every container that it needs exists
	started bool                   // every container that it needs runs, or ran and ended well
	up      bool                   // started, healthy, settled, and nothing obsolete left
	fault   *trouble               // nil: nothing is known to be wrong
	wake    time.Time              // when this view may change by itself; zero: never
}

// slot is the place of one replica of a service: the container that it needs, and what is there in its place.
type slot struct {
	c     workload.Container
	o     workload.Observation
	there bool                   // o is the container that is needed
	olds  []workload.Observation // others of this service and replica
	well  bool                   // it runs and may take over, or it did what it was to do
	up    bool                   // well, settled, and past the time in which a failure fails an update
	fault *trouble
	lost  bool // its fault lasts, whether that counts or not
	act   act
}

// running tells whether any of the containers that must go still runs.
func (s *slot) running() bool { return slices.ContainsFunc(s.olds, alive) }

func alive(o workload.Observation) bool {
	return o.Status == workload.Running || o.Status == workload.Paused
}

// trouble is what keeps a component from being up.
type trouble struct {
	code    Code
	message string
	lasting bool      // also counts when the component was installed before: it will not pass by one quick restart
	final   bool      // an update that meets it has failed
	pause   bool      // and stays as it is
	source  string    // the component
	since   time.Time // zero: not kept
}

// key names a component on the device.
func key(deployment, component string) string { return deployment + "\x00" + component }

// views looks at the components of a deployment, in order.
func (pl *planner) views(d *Deployment) []view {
	out := make([]view, len(d.Components))
	open := true
	for i := range d.Components {
		v := &out[i]
		*v = pl.look(d, &d.Components[i])
		if i > 0 && open {
			before := &out[i-1]
			switch {
			case before.up, !before.c.Wait && before.started:
			case before.fault != nil && v.present: // it was installed once: it comes back whatever happens before it
			default:
				open = false
			}
		}
		v.open = open
		pl.expire(v)
	}
	return out
}

// place is one replica of a service.
type place struct {
	service string
	replica int
}

// look compares one component with its containers.
func (pl *planner) look(d *Deployment, c *Component) view {
	v := view{d: d, c: c, present: true, started: true, up: true, slots: make([]slot, len(c.Containers))}
	at, needed := map[place]int{}, map[string]int{}
	for i, x := range c.Containers {
		v.slots[i].c = x
		at[place{x.Service.Name, x.Replica}], needed[x.ID] = i, i
	}
	for _, o := range pl.project[c.Project.Name] {
		if i, ok := needed[o.ID]; ok && is(o, v.slots[i].c) {
			v.slots[i].o, v.slots[i].there = o, true
			continue
		}
		v.up = false
		if i, ok := at[place{o.Service, o.Replica}]; ok {
			v.slots[i].olds = append(v.slots[i].olds, o)
		} else {
			v.extra = append(v.extra, o)
		}
	}
	for i := range v.slots {
		v.present = v.present && v.slots[i].there
		pl.judge(&v, &v.slots[i])
	}
	pl.sum(&v)
	if pl.s.Prepared[c.Project.Name] != c.surround {
		v.up = v.up && len(c.Containers) > 0 // after a restart of the agent what runs is up; an empty project is not yet made
		if r, ok := pl.s.Retries[Step{Verb: Prepare, Project: c.Project.Name}.Key()]; ok {
			v.worse(r.trouble(pl.p))
			v.up = false
		}
	}
	return v
}

// is tells whether a container of the right name is what its name says: labels can be edited by hand.
func is(o workload.Observation, c workload.Container) bool {
	return o.Hash == c.Hash && o.Service == c.Service.Name && o.Replica == c.Replica
}

// judge looks at one slot.
func (pl *planner) judge(v *view, x *slot) {
	s, c := pl.s.Containers[x.c.ID], x.c
	x.well = true
	verbs := []Verb{Create}
	if x.there {
		verbs = []Verb{Start, Switch}
	}
	for _, verb := range verbs {
		if r, ok := pl.s.Retries[Step{Verb: verb, Container: c.ID}.Key()]; ok && (!alive(x.o) || verb == Switch) {
			x.worse(r.trouble(pl.p))
		}
	}
	switch {
	case !x.there && v.c.Lacks[c.Service.Image.Name()]:
		x.well = false
		if t, ok := pl.s.Lacking[c.Service.Image.Name()]; ok {
			t.message = fmt.Sprintf("service %s: %s", c.Service.Name, t.message)
			x.worse(&t)
		}
	case !x.there || x.o.Status == workload.Created, x.o.Status == workload.Paused:
		x.well = false
	case x.o.Status == workload.Exited:
		x.well = pl.judgeExited(x, s)
	case hasHealth(c) && s.Health == HealthUnhealthy:
		x.well = false
		x.worse(&trouble{code: CodeUnhealthy, message: fmt.Sprintf("service %s: health check fails: %s", c.Service.Name, s.Output), lasting: true, final: true})
	case hasHealth(c) && s.Health != HealthHealthy:
		x.well = false
	case s.Restarts > 0:
		x.well = false // it exited before: not up until it has settled
		v.sooner(s.Since.Add(settle(c, pl.p)))
	case !hasHealth(c) && len(x.olds) > 0:
		if ripe := s.Since.Add(pl.p.Ripe(c.Service.Update)); pl.now.Before(ripe) {
			x.well = false
			v.sooner(ripe)
		}
	}
	x.up = x.well
	if !v.d.Trial || !x.there {
		return
	}
	if s.Early {
		x.up = false
		x.worse(&trouble{
			code: CodeContainerExited, message: fmt.Sprintf("service %s: exited with code %d within %v%s", c.Service.Name, s.Code, c.Service.Update.Monitor, s.Words),
			lasting: true, final: true,
		})
	}
	if alive(x.o) && x.well {
		if end := s.Up.Add(pl.p.monitor(c.Service.Update)); s.Up.IsZero() || pl.now.Before(end) {
			x.up = false
			v.sooner(end)
		}
	}
}

// judgeExited tells whether a container that exited did what it was to do.
func (pl *planner) judgeExited(x *slot, s Supervised) bool {
	again := !s.NextStart.IsZero()
	switch {
	case x.o.ExitCode == 0 && !again:
		return true
	case !s.Told && pl.p.Words || s.Again: // its last words come first; or the agent stopped it
		return false
	case x.o.ExitCode != 0 || s.Restarts >= pl.p.Patience:
		lasting := !again || s.Restarts >= pl.p.Patience
		x.worse(&trouble{
			code: CodeContainerExited, message: fmt.Sprintf("service %s: exited with code %d%s", x.c.Service.Name, x.o.ExitCode, s.Words),
			lasting: lasting, final: lasting,
		})
	}
	return false
}

// sum derives from its slots how a component is. During an update, a service may lose as many of its replicas as it says.
func (pl *planner) sum(v *view) {
	lost := map[string]int{}
	for i := range v.slots {
		if f := v.slots[i].fault; f != nil && f.lasting {
			v.slots[i].lost = true
			lost[v.slots[i].c.Service.Name]++
		}
	}
	for i := range v.slots {
		x := &v.slots[i]
		u := x.c.Service.Update
		if n := lost[x.c.Service.Name]; v.d.Trial && x.fault != nil && n > 0 {
			if float64(n) <= u.MaxFailureRatio*float64(x.c.Service.Count()) && x.there {
				x.fault.lasting, x.fault.final = false, false
				continue // neither up nor down: nothing waits for it
			}
			x.fault.final = x.fault.final && u.FailureAction != workload.ActContinue
			x.fault.pause = u.FailureAction == workload.ActPause
		}
		if x.fault != nil {
			v.worse(x.fault)
		}
		v.up = v.up && x.up
		v.started = v.started && x.there && x.o.Status != workload.Created && (x.o.Status != workload.Exited || x.well)
	}
}

// expire holds an installation against its timeout.
func (pl *planner) expire(v *view) {
	begun, ok := pl.s.Begun[key(v.d.ID, v.c.Name)]
	if !ok || v.up || v.c.Timeout <= 0 || begun.identity != v.c.Identity {
		return
	}
	end := begun.at.Add(v.c.Timeout)
	if pl.now.Before(end) {
		v.sooner(end)
		return
	}
	t := trouble{code: CodeTimeout, message: fmt.Sprintf("not up after %v", v.c.Timeout), lasting: true, final: true}
	for i := range v.slots {
		if x := &v.slots[i]; !x.up {
			action := x.c.Service.Update.FailureAction
			t.final, t.pause = action != workload.ActContinue, action == workload.ActPause
			break
		}
	}
	v.worse(&t)
}

// trouble is what a step that failed says, from the second time on: the first may have been a moment's hiccup of the runtime.
func (r Retry) trouble(p Policy) *trouble {
	if r.Failures < 2 {
		return nil
	}
	last := r.Failures >= p.Patience
	return &trouble{code: r.Code, message: r.Message, lasting: last, final: last && !r.Passing}
}

// graver keeps the first trouble, but prefers one that lasts.
func graver(old, t *trouble) *trouble {
	if t != nil && (old == nil || t.lasting && !old.lasting || t.final && !old.final) {
		return t
	}
	return old
}

func (v *view) worse(t *trouble) { v.fault = graver(v.fault, t) }
func (x *slot) worse(t *trouble) { x.fault = graver(x.fault, t) }

func (v *view) sooner(t time.Time) {
	if v.wake.IsZero() || t.Before(v.wake) {
		v.wake = t
	}
}

// dependsOn follows depends_on from one service to another.
func dependsOn(p *workload.Project, from, to string, seen map[string]bool) bool {
	if from == to || seen[from] {
		return false
	}
	if seen == nil {
		seen = map[string]bool{}
	}
	seen[from] = true
	for _, s := range p.Services {
		if s.Name != from {
			continue
		}
		for _, d := range s.DependsOn {
			if d.Service == to || dependsOn(p, d.Service, to, seen) {
				return true
			}
		}
	}
	return false
}

// ready tells whether what a container depends on has come far enough for it to start.
func (v *view) ready(c workload.Container, s *Supervision) bool {
	for _, dep := range c.Service.DependsOn {
		for i := range v.slots {
			x := &v.slots[i]
			if x.c.Service.Name != dep.Service || x.reached(dep.Condition, s) {
				continue
			}
			if dep.Optional && x.fault != nil && x.fault.lasting {
				continue // it cannot be had
			}
			return false
		}
	}
	return true
}

// reached tells whether a container meets a condition.
func (x *slot) reached(c workload.Condition, s *Supervision) bool {
	switch {
	case !x.there, x.o.Status == workload.Created:
		return false
	case c == workload.Completed:
		return x.o.Status == workload.Exited && x.o.ExitCode == 0
	case x.o.Status == workload.Exited:
		return x.o.ExitCode == 0 && c != workload.Healthy && s.Containers[x.c.ID].NextStart.IsZero()
	case c == workload.Healthy && hasHealth(x.c):
		return s.Containers[x.c.ID].Health == HealthHealthy
	}
	return true
}

// outlived tells whether something that a running container wants to be restarted with began after it did, and is ready.
func (v *view) outlived(x *slot, s *Supervision) bool {
	later := false
	for _, dep := range x.c.Service.DependsOn {
		if !dep.Restart {
			continue
		}
		for i := range v.slots {
			y := &v.slots[i]
			if y.c.Service.Name != dep.Service {
				continue
			}
			if len(y.olds) > 0 {
				return false // once, after all of them
			}
			later = later || y.there && y.o.Began > x.o.Began && x.o.Began > 0
		}
	}
	return later && v.ready(x.c, s)
}

// source names the component that a trouble is of.
func (v *view) source() string { return cmp.Or(v.c.Name, v.d.Name) }

// index finds containers by id.
func index(o workload.Observed) map[string]workload.Observation {
	out := make(map[string]workload.Observation, len(o.Containers))
	for _, c := range o.Containers {
		out[c.ID] = c
	}
	return out
}
