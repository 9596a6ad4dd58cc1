package agent

import (
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// view is a component beside what was observed of it.
type view struct {
	d        *Deployment
	c        *Component
	there    map[string]workload.Observation // of the containers it needs, by id
	obsolete []workload.Observation          // of its project, not needed any more
	open     bool                            // its turn among the deployment's components has come
	present  bool                            // every container that it needs exists
	started  bool                            // every container that it needs runs, or ran and ended well
	up       bool                            // started, healthy, settled, and nothing obsolete left
	fault    *trouble                        // nil: nothing is known to be wrong
	wake     time.Time                       // when this view may change by itself; zero: never
}

// trouble is what keeps a component from being up.
type trouble struct {
	code    Code
	message string
	lasting bool // also counts when the component was installed before: it will not pass by one quick restart
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

// look compares one component with its containers.
func (pl *planner) look(d *Deployment, c *Component) view {
	v := view{d: d, c: c, there: map[string]workload.Observation{}, present: true, started: true, up: true}
	needed := map[string]bool{}
	for _, x := range c.Containers {
		needed[x.ID] = true
		o, ok := pl.byID[x.ID]
		if ok {
			v.there[x.ID] = o
		} else {
			v.present = false
		}
		pl.judge(&v, x, o, ok)
	}
	for _, o := range pl.project[c.Project.Name] {
		if !needed[o.ID] {
			v.obsolete = append(v.obsolete, o)
			v.up = false
		}
	}
	if pl.s.Prepared[c.Project.Name] != c.surround {
		v.up = v.up && len(c.Containers) > 0 // after a restart of the agent what runs is up; an empty project is not yet made
	}
	st := Step{Verb: Prepare, Project: c.Project.Name}
	if r, ok := pl.s.Retries[st.Key()]; ok && pl.s.Prepared[c.Project.Name] != c.surround {
		v.step(r, pl.p)
		v.up = false
	}
	return v
}

// judge adds one container to the view.
func (pl *planner) judge(v *view, c workload.Container, o workload.Observation, there bool) {
	s := pl.s.Containers[c.ID]
	verb := Create
	if there {
		verb = Start
	}
	if r, ok := pl.s.Retries[Step{Verb: verb, Container: c.ID}.Key()]; ok && o.Status != workload.Running && o.Status != workload.Paused {
		v.step(r, pl.p)
	}
	switch {
	case !there || o.Status == workload.Created:
		v.started, v.up = false, false
	case o.Status == workload.Exited:
		pl.judgeExited(v, c, o, s)
	case hasHealth(c) && s.Health == HealthUnhealthy:
		v.up = false
		v.worse(trouble{CodeUnhealthy, fmt.Sprintf("service %s: health check fails: %s", c.Service.Name, s.Output), true})
	case hasHealth(c) && s.Health != HealthHealthy:
		v.up = false
	case s.Restarts > 0:
		v.up = false // it exited before: not up until it has settled
		v.sooner(s.Since.Add(pl.p.Settle))
	}
}

func (pl *planner) judgeExited(v *view, c workload.Container, o workload.Observation, s Supervised) {
	again := !s.NextStart.IsZero()
	if o.ExitCode == 0 && !again {
		return // it did what it was to do
	}
	v.started, v.up = false, false
	if o.ExitCode != 0 || s.Restarts >= pl.p.Patience {
		v.worse(trouble{
			CodeContainerExited, fmt.Sprintf("service %s: exited with code %d", c.Service.Name, o.ExitCode),
			!again || s.Restarts >= pl.p.Patience,
		})
	}
}

// expire holds an installation against its timeout.
func (pl *planner) expire(v *view) {
	begun, ok := pl.s.Begun[key(v.d.ID, v.c.Name)]
	if !ok || v.up || v.c.Timeout <= 0 {
		return
	}
	end := begun.Add(v.c.Timeout)
	if pl.now.Before(end) {
		v.sooner(end)
		return
	}
	v.worse(trouble{CodeTimeout, fmt.Sprintf("not up after %v", v.c.Timeout), true})
}

// step adds a step that failed, from the second time on: the first may have been a moment's hiccup of the runtime.
func (v *view) step(r Retry, p Policy) {
	if r.Failures > 1 {
		v.worse(trouble{r.Code, r.Message, r.Failures >= p.Patience})
	}
}

// worse keeps the first trouble, but prefers one that lasts.
func (v *view) worse(t trouble) {
	if v.fault == nil || t.lasting && !v.fault.lasting {
		v.fault = &t
	}
}

func (v *view) sooner(t time.Time) {
	if v.wake.IsZero() || t.Before(v.wake) {
		v.wake = t
	}
}

// replaces tells whether c takes the place of a container that is still there.
func (v *view) replaces(c workload.Container) bool {
	for _, o := range v.obsolete {
		if o.Service == c.Service.Name && o.Replica == c.Replica {
			return true
		}
	}
	return false
}

// heldByDependent tells whether an obsolete container that depends on o's service still runs: it goes first.
func (v *view) heldByDependent(o workload.Observation) bool {
	for _, x := range v.obsolete {
		if x.ID == o.ID || x.Status != workload.Running && x.Status != workload.Paused {
			continue
		}
		if dependsOn(v.c.Project, x.Service, o.Service, nil) && !dependsOn(v.c.Project, o.Service, x.Service, nil) {
			return true
		}
	}
	return false
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
		for _, x := range v.c.Containers {
			if x.Service.Name != dep.Service {
				continue
			}
			o, ok := v.there[x.ID]
			switch {
			case !ok, o.Status == workload.Created, o.Status == workload.Exited && o.ExitCode != 0:
				return false
			case dep.Condition != workload.Healthy:
			case o.Status == workload.Exited:
				return false
			case hasHealth(x) && s.Containers[x.ID].Health != HealthHealthy:
				return false
			}
		}
	}
	return true
}

// index finds containers by id.
func index(o workload.Observed) map[string]workload.Observation {
	out := make(map[string]workload.Observation, len(o.Containers))
	for _, c := range o.Containers {
		out[c.ID] = c
	}
	return out
}
