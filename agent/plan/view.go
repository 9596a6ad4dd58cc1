package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/workload"
)

// view is a component and its observations.
type view struct {
	d             *Deployment
	c             *Component
	slots         []*slot                // one for each container that it needs, in their order
	extra         []workload.Observation // of its project, of no needed service or replica
	open          bool                   // it may be installed now, in the order of components
	exists        bool                   // every needed container exists
	started       bool                   // every needed container runs, or ran and succeeded
	met           bool                   // started, healthy, and nothing obsolete left: the next component may begin
	up            bool                   // met, and past the time in which an exit fails the installation
	fault         *Trouble               // nil: no error is known
	failedBefore  bool                   // a container that failed before this revision, which does not change it, is not up
	failureBefore *Trouble               // of such containers; it fails no update
	wake          time.Time              // when this view may change by itself; zero: never
}

// slot is one replica of a service: the needed container, and the observed ones.
type slot struct {
	c            *workload.Container // of the component
	o            workload.Observation
	there        bool                   // o is the needed container
	old          []workload.Observation // others of this service and replica
	well         bool                   // it runs and may become active, or it has completed
	up           bool                   // well, settled, and past the time in which a failure fails an update
	fault        *Trouble
	failed       bool // its fault lasts, whether that counts or not
	settled      bool // it does not run, or its run has lasted: see [settle]
	failedBefore bool // it failed before this revision, which does not change it, and is not well
	act          act
}

// running reports whether any of the old containers still runs.
func (s *slot) running() bool { return slices.ContainsFunc(s.old, alive) }

// ended reports whether all of the old containers have ended. One that has no task is not known to: its shim may not answer.
func (s *slot) ended() bool {
	return !slices.ContainsFunc(s.old, func(o workload.Observation) bool { return o.Status != workload.Exited })
}

func alive(o workload.Observation) bool {
	return o.Status == workload.Running || o.Status == workload.Paused
}

// Trouble is a reason why a component is not up.
type Trouble struct {
	Code        codes.Code
	Message     string
	Permanent   bool      // also counts when the component was installed before: a quick restart does not cure it
	FailsUpdate bool      // an update that meets it has failed
	pause       bool      // and stays as it is
	Source      string    // the component
	Since       time.Time // zero: not kept
	Short       int64     // of a full disk: bytes that are lacking; 0: not known
}

// key names a component on the device.
func key(deployment, component string) string { return deployment + "\x00" + component }

// views returns the views of a deployment's components, in order.
func (pl *planner) views(d *Deployment) []*view {
	var out []*view
	open := true
	for c := range d.All() {
		v := pl.look(d, c)
		if n := len(out); n > 0 && open {
			before := out[n-1]
			open = before.up || !d.Updating && before.met || !before.c.Wait && before.started ||
				before.fault != nil && v.exists // it was installed before: it starts whatever happens to earlier ones
		}
		v.open = open
		pl.checkTimeout(v)
		out = append(out, v)
	}
	return out
}

// place is one replica of a service.
type place struct {
	service string
	replica int
}

// look compares one component with its containers.
func (pl *planner) look(d *Deployment, c *Component) *view {
	v := &view{d: d, c: c, exists: true, started: true, met: true, up: true}
	at, needed := map[place]*slot{}, map[string]*slot{}
	for i := range c.Containers {
		x := &slot{c: &c.Containers[i]}
		v.slots = append(v.slots, x)
		at[place{x.c.Service.Name, x.c.Replica}], needed[x.c.ID] = x, x
	}
	for _, o := range pl.project[c.Project.Name] {
		if x := needed[o.ID]; x != nil && matches(*o, x.c) {
			x.o, x.there = *o, true
			continue
		}
		v.met = false
		if x := at[place{o.Service, o.Replica}]; x != nil {
			x.old = append(x.old, *o)
		} else {
			v.extra = append(v.extra, *o)
		}
	}
	for _, x := range v.slots {
		v.exists = v.exists && x.there
		pl.judge(v, x)
	}
	pl.sum(v)
	if pl.s.Prepared[c.Project.Name] != c.environment {
		v.met = v.met && len(c.Containers) > 0 // after a restart of the agent what runs is up; an empty project is not yet made
		if r, ok := pl.s.Retries[Step{Verb: Prepare, Project: c.Project.Name}.Key()]; ok {
			v.worse(r.trouble())
			v.met = false
		}
	}
	v.up = v.up && v.met
	return v
}

// matches reports whether a container has the labels of the needed one: labels can be edited by hand.
func matches(o workload.Observation, c *workload.Container) bool {
	return o.Hash == c.Hash && o.Service == c.Service.Name && o.Replica == c.Replica
}

func (pl *planner) judge(v *view, x *slot) {
	s, c := pl.s.Containers[x.c.ID], x.c
	x.well = true
	verbs := []Verb{Create}
	if x.there {
		verbs = []Verb{Start, Activate}
	}
	for _, verb := range verbs {
		if r, ok := pl.s.Retries[Step{Verb: verb, Container: c.ID}.Key()]; ok && (!alive(x.o) || verb == Activate) {
			x.worse(r.trouble())
		}
	}
	switch {
	case !x.there && v.c.Missing[c.Service.Image.Name()]:
		x.well = false
		if t, ok := pl.s.Missing[c.Service.Image.Name()]; ok {
			t.Message = fmt.Sprintf("service %s: %s", c.Service.Name, t.Message)
			x.worse(&t)
		}
	case !x.there || x.o.Status == workload.Created, x.o.Status == workload.Paused:
		x.well = false
	case x.o.Status == workload.Exited:
		x.well = pl.judgeExited(x, s)
	case hasHealth(c) && s.Health == HealthUnhealthy:
		x.well = false
		x.worse(&Trouble{Code: codes.Unhealthy, Message: fmt.Sprintf("service %s: health check fails: %s", c.Service.Name, s.Output), Permanent: true, FailsUpdate: true})
	case hasHealth(c) && s.Health != HealthHealthy:
		x.well = false
	case s.Restarts > 0:
		x.well = false // it exited before: not up until it has settled
		v.wakeAt(s.Since.Add(settle(c)))
	case !hasHealth(c) && !x.ended():
		if ripe := s.Since.Add(cmp.Or(c.Service.Update.Monitor, minRun)); pl.now.Before(ripe) {
			x.well = false
			v.wakeAt(ripe)
		}
	}
	if x.settled = !alive(x.o); !x.settled {
		end := s.Since.Add(settle(c))
		x.settled = !pl.now.Before(end)
		if _, ails := pl.s.FailedBefore[c.ID]; ails && !x.settled {
			v.wakeAt(end)
		}
	}
	x.up = x.well
	if !x.there {
		return
	}
	if s.EndedEarly && v.d.Updating {
		x.up = false
		x.worse(&Trouble{
			Code: codes.ContainerExited, Message: fmt.Sprintf("service %s: exited with code %d within %v%s%s", c.Service.Name, s.Code, c.Service.Update.Monitor, lacked(&c.Service, s.Lack), s.LastLog),
			Permanent: true, FailsUpdate: true,
		})
	}
	if alive(x.o) && x.well && (v.d.Updating || !hasHealth(c)) { // a health check reports it; no waiting is needed
		if end := s.Up.Add(cmp.Or(c.Service.Update.Monitor, pl.p.Monitor)); s.Up.IsZero() || pl.now.Before(end) {
			x.up = false
			v.wakeAt(end)
		}
	}
}

// judgeExited reports whether a container that exited has completed.
func (pl *planner) judgeExited(x *slot, s Supervised) bool {
	again := !s.NextStart.IsZero()
	_, stopped := pl.s.Restarting[x.c.ID] // by the agent, maybe before this container was needed
	switch {
	case stopped || s.Restarting:
		return false
	case x.o.ExitCode == 0 && !again:
		return true
	case !s.LogRead && pl.p.LastLog: // its last log lines are read first
		return false
	case x.o.ExitCode != 0 || s.Restarts >= patience:
		permanent := !again || s.Restarts >= patience
		x.worse(&Trouble{
			Code: codes.ContainerExited, Message: fmt.Sprintf("service %s: exited with code %d%s%s", x.c.Service.Name, x.o.ExitCode, lacked(&x.c.Service, s.Lack), s.LastLog),
			Permanent: permanent, FailsUpdate: permanent,
		})
	}
	return false
}

// sum derives the state of a component from its slots. During an update, a service may lose as many of its replicas as it allows.
func (pl *planner) sum(v *view) {
	lost := map[string]int{}
	for _, x := range v.slots {
		since, ails := pl.s.FailedBefore[x.c.ID]
		x.failedBefore = ails && since < pl.s.Generation && x.there && !x.well
		if f := x.fault; f != nil && f.Permanent && !x.failedBefore {
			x.failed = true
			lost[x.c.Service.Name]++
		}
	}
	for _, x := range v.slots {
		if x.failedBefore { // neither up nor down: only its dependents wait for it
			v.failedBefore, v.failureBefore = true, worse(v.failureBefore, x.fault)
			continue
		}
		u := x.c.Service.Update
		if n := lost[x.c.Service.Name]; v.d.Updating && x.fault != nil && n > 0 {
			if float64(n) <= u.MaxFailureRatio*float64(x.c.Service.Count()) && x.there {
				x.fault.Permanent, x.fault.FailsUpdate = false, false
				continue // neither up nor down: nothing waits for it
			}
			x.fault.FailsUpdate = x.fault.FailsUpdate && u.FailureAction != workload.ActContinue
			x.fault.pause = u.FailureAction == workload.ActPause
		}
		if x.fault != nil {
			v.worse(x.fault)
		}
		v.met, v.up = v.met && x.well, v.up && x.up
		v.started = v.started && x.there && x.o.Status != workload.Created && (x.o.Status != workload.Exited || x.well)
	}
}

// checkTimeout checks an installation against its timeout.
func (pl *planner) checkTimeout(v *view) {
	begun, ok := pl.s.Begun[key(v.d.ID, v.c.Name)]
	if !ok || v.met || v.c.Timeout <= 0 || begun.identity != v.c.Identity {
		return
	}
	end := begun.at.Add(v.c.Timeout)
	if pl.now.Before(end) {
		v.wakeAt(end)
		return
	}
	t := Trouble{Code: codes.Timeout, Message: fmt.Sprintf("not up after %v", v.c.Timeout), Permanent: true, FailsUpdate: true}
	for _, x := range v.slots {
		if !x.well && !x.failedBefore {
			action := x.c.Service.Update.FailureAction
			t.FailsUpdate, t.pause = action != workload.ActContinue, action == workload.ActPause
			break
		}
	}
	v.worse(&t)
}

// Trouble is the error of a step from its second failure on: the first may be transient.
func (r Retry) trouble() *Trouble {
	if r.Failures < 2 {
		return nil
	}
	last := r.Failures >= patience && !r.Moves
	return &Trouble{Code: r.Code, Message: r.Message, Permanent: last, FailsUpdate: last && !r.Passing}
}

// worse keeps the first trouble, but prefers a permanent one.
func worse(old, t *Trouble) *Trouble {
	if t != nil && (old == nil || t.Permanent && !old.Permanent || t.FailsUpdate && !old.FailsUpdate) {
		return t
	}
	return old
}

func (v *view) worse(t *Trouble) { v.fault = worse(v.fault, t) }
func (x *slot) worse(t *Trouble) { x.fault = worse(x.fault, t) }

func (v *view) wakeAt(t time.Time) {
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

// ready reports whether what a container depends on has come far enough for it to start.
func (v *view) ready(c *workload.Container, s *Supervision) bool { return v.lacks(c, s, nil) == "" }

// lacks is a service on which a container depends and that has not come far enough for it to start, but for containers that are started
// first, by id; "": none.
func (v *view) lacks(c *workload.Container, s *Supervision, first map[string]bool) string {
	for _, dep := range c.Service.DependsOn {
		for _, x := range v.slots {
			if x.c.Service.Name != dep.Service || x.reached(dep.Condition, s) || first[x.c.ID] {
				continue
			}
			if dep.Optional && x.fault != nil && x.fault.Permanent {
				continue // it will never be up
			}
			return dep.Service
		}
	}
	return ""
}

// stuck reports whether a service depends on one that failed before this revision: it stays as it is until that is well.
func (v *view) stuck(s *workload.Service, sup *Supervision) bool {
	return slices.ContainsFunc(s.DependsOn, func(dep workload.Dependency) bool {
		return slices.ContainsFunc(v.slots, func(x *slot) bool {
			return !dep.Optional && x.failedBefore && x.c.Service.Name == dep.Service && !x.reached(dep.Condition, sup)
		})
	})
}

// reached reports whether a container meets a condition.
func (x *slot) reached(c workload.Condition, s *Supervision) bool {
	switch {
	case !x.there, x.o.Status == workload.Created:
		return false
	case c == workload.Completed:
		return x.o.Status == workload.Exited && x.o.ExitCode == 0
	case s.Busy[x.c.ID] == Stop: // to be started again
		return false
	case x.o.Status == workload.Exited:
		return x.o.ExitCode == 0 && c != workload.Healthy && s.Containers[x.c.ID].NextStart.IsZero()
	case c == workload.Healthy && hasHealth(x.c):
		return s.Containers[x.c.ID].Health == HealthHealthy
	}
	return true
}

// dependencyRestarted reports whether a dependency with restart: true started after a running container did, and is ready.
func (v *view) dependencyRestarted(x *slot, s *Supervision) bool {
	later := false
	for _, dep := range x.c.Service.DependsOn {
		if !dep.Restart {
			continue
		}
		for _, y := range v.slots {
			if y.c.Service.Name != dep.Service {
				continue
			}
			if len(y.old) > 0 {
				return false // once, after all of them
			}
			later = later || y.there && y.o.Began > x.o.Began && x.o.Began > 0
		}
	}
	return later && v.ready(x.c, s)
}

// restartsWith reports whether a service is restarted with another one, or another one with it. That is decided by which process began later,
// and one that is created ahead of its start begins before it.
func (v *view) restartsWith(s *workload.Service) bool {
	return slices.ContainsFunc(v.slots, func(x *slot) bool {
		return slices.ContainsFunc(x.c.Service.DependsOn, func(d workload.Dependency) bool {
			return d.Restart && (d.Service == s.Name || x.c.Service.Name == s.Name)
		})
	})
}

func ByID(o workload.Observed) map[string]workload.Observation {
	out := make(map[string]workload.Observation, len(o.Containers))
	for _, c := range o.Containers {
		out[c.ID] = c
	}
	return out
}

// Complete reports whether all containers of a deployment are there.
func Complete(d *Deployment, seen map[string]workload.Observation) bool {
	for _, c := range d.Containers() {
		if o, ok := seen[c.ID]; !ok || !matches(o, c) {
			return false
		}
	}
	return true
}
