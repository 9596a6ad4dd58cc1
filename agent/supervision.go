package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Policy holds the numbers that plans are made with.
type Policy struct {
	RestartMin time.Duration // pause before the first restart; doubles
	RestartMax time.Duration
	RetryMin   time.Duration // pause before a step that failed is tried again; doubles
	RetryMax   time.Duration
	Settle     time.Duration // a restarted container that ran this long counts as up again, and its pauses start anew
	Patience   int           // restarts in a row after which a component that was installed counts as failed

	Monitor time.Duration // a new container that fails this soon after it was up has failed an update, unless it says another
	Short   time.Duration // a new container without a health check takes over when it ran this long
	Drain   time.Duration // the old container runs on this long after the address moved
	Words   bool          // the last words of a container that exited are waited for
}

// Ripe is how long a new container without a health check runs before it takes over.
func (p Policy) Ripe(u workload.Update) time.Duration { return cmp.Or(u.Monitor, p.Short) }

func (p Policy) monitor(u workload.Update) time.Duration { return cmp.Or(u.Monitor, p.Monitor) }

func (o *Options) policy() Policy {
	return Policy{
		RestartMin: 100 * time.Millisecond, RestartMax: o.RestartMax,
		RetryMin: 500 * time.Millisecond, RetryMax: o.StepRetryMax,
		Settle: 10 * time.Second, Patience: 3,
		Monitor: o.Probation, Short: time.Second, Drain: 2 * time.Second, Words: true,
	}
}

// Supervision is what the agent remembers of containers and steps while it runs. It is lost with the process, and
// nothing but pauses and counts is lost with it: what there is, is observed.
type Supervision struct {
	Containers map[string]Supervised // by container id
	Prepared   map[string]string     // by project: what Prepare last made of it
	Retries    map[string]Retry      // by Step.Key: steps that failed
	Busy       map[string]bool       // by Step.Subject: steps in progress
	Begun      map[string]begin      // by component key: when its installation began, while it lasts
	Up         map[string]string     // by component key: the identity that was up once; timeouts are for installations
	Again      map[string]string     // by container id: the run that was stopped to be started again; saved before the stop
	Lacking    map[string]trouble    // by image name: why it cannot be loaded
}

// begin is when the installation of one revision of a component began.
type begin struct {
	at       time.Time
	identity string
}

// NewSupervision remembers nothing.
func NewSupervision() *Supervision {
	return &Supervision{
		Containers: map[string]Supervised{}, Prepared: map[string]string{}, Retries: map[string]Retry{},
		Busy: map[string]bool{}, Begun: map[string]begin{}, Up: map[string]string{}, Again: map[string]string{},
	}
}

// Supervised is what is remembered of one container.
type Supervised struct {
	Health    Health // "" while it does not run or has no health check
	Failed    int    // probes in a row
	Output    string // of the last probe that failed
	Since     time.Time
	run       string    // which run of the container this is about
	Exited    bool      // the last exit is counted
	Restarts  int       // in a row, without settling in between
	Total     int       // restarts since the agent started
	NextStart time.Time // when a restart is due
	Up        time.Time // when this run was up; zero: not yet
	Active    time.Time // when the service's address was first seen to lead here; zero: it does not
	Early     bool      // a run ended too soon after it was up, as the service's update says
	Code      uint32    // of the last exit
	Again     bool      // the agent ended the last run itself
	Told      bool      // Words are those of the last exit
	Words     string    // what the container wrote last, for an error message
}

// Retry is a step that failed.
type Retry struct {
	Failures int
	At       time.Time // not before
	Message  string
	Code     Code
	Passing  bool // whatever the step was about is not to blame: no update fails by it
}

// fail notes that a step failed.
func (s *Supervision) fail(now time.Time, step Step, err error, p Policy) Retry {
	r := s.Retries[step.Key()]
	r.Failures++
	r.At = now.Add(backoff(r.Failures, p.RetryMin, p.RetryMax))
	r.Message, r.Code = err.Error(), CodeRuntime
	if c := CodeOf(err); c != CodeInternal && c != CodeSourceUnreachable {
		r.Code = c
	}
	// An image that was lost is pulled meanwhile, and a runtime that hangs may be over it soon: not so after some more tries.
	slow := errors.Is(err, fault.ErrNotFound) || errors.Is(err, context.DeadlineExceeded)
	r.Passing = errors.Is(err, fault.ErrTemporary) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, context.Canceled) ||
		slow && r.Failures < 2*p.Patience
	s.Retries[step.Key()] = r
	return r
}

// done notes that a step succeeded.
func (s *Supervision) done(step Step) {
	delete(s.Retries, step.Key())
	switch step.Verb {
	case Prepare:
		s.Prepared[step.Project] = step.surround
	case Teardown:
		delete(s.Prepared, step.Project)
	case Start:
		delete(s.Again, step.Container)
		c := s.Containers[step.Container]
		if c.Exited { // whatever is seen next is another run
			c.Exited, c.Total = false, c.Total+1
		}
		s.Containers[step.Container] = c
	case Remove:
		delete(s.Containers, step.Container)
		for _, v := range []Verb{Create, Start, Stop, Switch, Leave} {
			delete(s.Retries, Step{Verb: v, Container: step.Container}.Key())
		}
	}
}

// update brings the memory in line with what was observed.
func (s *Supervision) update(now time.Time, d *Desired, o workload.Observed, p Policy) {
	if d == nil {
		return
	}
	needed, seen := map[string]bool{}, index(o)
	for i := range d.Deployments {
		for j := range d.Deployments[i].Components {
			for _, c := range d.Deployments[i].Components[j].Containers {
				needed[c.ID] = true
				if o, ok := seen[c.ID]; ok {
					s.Containers[c.ID] = s.Containers[c.ID].next(now, c, o, s.again(o), p)
				}
			}
		}
	}
	for id := range s.Containers {
		if !needed[id] {
			delete(s.Containers, id)
		}
	}
	for id := range s.Again {
		if !needed[id] || seen[id].ID == "" {
			delete(s.Again, id)
		}
	}
	for k := range s.Retries { // of steps that nobody will take again
		verb, subject, _ := strings.Cut(k, " ")
		switch Verb(verb) {
		case Create, Start, Switch, Leave:
			if !needed[subject] {
				delete(s.Retries, k)
			}
		case Stop, Remove:
			if _, ok := seen[subject]; !ok {
				delete(s.Retries, k)
			}
		}
	}
	s.time(now, d, o, p)
}

// again tells whether the agent ended a container's last run to start it again, and forgets what is over.
func (s *Supervision) again(o workload.Observation) bool {
	run, ok := s.Again[o.ID]
	if ok && (o.Status == workload.Created || alive(o) && o.Run != run) {
		delete(s.Again, o.ID)
		return false
	}
	return ok
}

// time notes when installations begin and end.
func (s *Supervision) time(now time.Time, d *Desired, o workload.Observed, p Policy) {
	begun, up := map[string]begin{}, map[string]string{}
	pl := newPlanner(now, o, s, p)
	for i := range d.Deployments {
		for _, v := range pl.views(&d.Deployments[i]) {
			k := key(v.d.ID, v.c.Name)
			switch {
			case v.up, s.Up[k] == v.c.Identity:
				up[k] = v.c.Identity
			case v.open:
				begun[k] = begin{now, v.c.Identity}
				if b, ok := s.Begun[k]; ok && b.identity == v.c.Identity {
					begun[k] = b
				}
			}
		}
	}
	s.Begun, s.Up = begun, up
}

func (s Supervised) next(now time.Time, c workload.Container, o workload.Observation, again bool, p Policy) Supervised {
	switch o.Status {
	case workload.Running, workload.Paused:
		run := o.Run
		if run == "" {
			run = fmt.Sprintf("%d/%d", o.PID, o.StartedAt.UnixNano())
		}
		if run != s.run {
			s.run, s.Since, s.Failed, s.Output, s.Health, s.Up, s.Active, s.Again = run, now, 0, "", "", time.Time{}, time.Time{}, false
			if hasHealth(c) {
				s.Health = HealthStarting
			}
		}
		s.Exited, s.NextStart = false, time.Time{}
		if s.Up.IsZero() && (!hasHealth(c) || s.Health == HealthHealthy) {
			s.Up = now
		}
		if s.Restarts > 0 && now.Sub(s.Since) >= settle(c, p) && (!hasHealth(c) || s.Health == HealthHealthy) {
			s.Restarts = 0
		}
		switch {
		case !o.Active:
			s.Active = time.Time{}
		case s.Active.IsZero():
			s.Active = now
		}
	case workload.Exited:
		if !s.Exited {
			s = s.exited(now, c, o, again, p)
		}
	default:
		s = Supervised{Total: s.Total}
	}
	return s
}

// exited takes in the end of a run.
func (s Supervised) exited(now time.Time, c workload.Container, o workload.Observation, again bool, p Policy) Supervised {
	sick := s.Health == HealthUnhealthy
	m := c.Service.Update.Monitor
	s.Early = s.Early || !again && m > 0 && !s.Up.IsZero() && now.Sub(s.Up) < m && (o.ExitCode != 0 || s.restarts(c, o))
	s.Exited, s.Health, s.Failed, s.run, s.Up, s.Active = true, "", 0, "", time.Time{}, time.Time{}
	s.Again, s.Told, s.Words, s.Code = again, o.ExitCode == 0, "", o.ExitCode
	s.NextStart = time.Time{} // that of the run that ended, when it was too short to be seen
	switch {
	case again && !sick:
		s.NextStart = now
	case again || restarts(c, o, s.Restarts):
		s.Restarts++
		s.NextStart = now.Add(pause(c, s.Restarts, p))
	}
	return s
}

func (s Supervised) restarts(c workload.Container, o workload.Observation) bool {
	return restarts(c, o, s.Restarts)
}

// probed applies the answer of a probe. Failures in the start period do not count.
func (s Supervised) probed(now time.Time, h *workload.Health, err error) Supervised {
	if err == nil {
		s.Health, s.Failed, s.Output = HealthHealthy, 0, ""
		return s
	}
	s.Output = err.Error()
	if s.Health == HealthStarting && now.Sub(s.Since) < h.StartPeriod {
		return s
	}
	if s.Failed++; s.Failed >= h.Retries {
		s.Health = HealthUnhealthy
	}
	return s
}

// restarts tells whether the restart policy has a container that exited started again.
func restarts(c workload.Container, o workload.Observation, already int) bool {
	return tries(c, already) && (o.ExitCode != 0 || c.Service.Restart.Policy != workload.RestartOnFailure)
}

// tries tells whether the restart policy has a container that failed started again.
func tries(c workload.Container, already int) bool {
	switch r := c.Service.Restart; r.Policy {
	case workload.RestartAlways, workload.RestartUnlessStopped, workload.RestartOnFailure:
		return r.Max == 0 || already < r.Max
	}
	return false
}

// pause is the time before the n-th restart in a row.
func pause(c workload.Container, n int, p Policy) time.Duration {
	if d := c.Service.Restart.Delay; d > 0 {
		return d
	}
	return backoff(n, p.RestartMin, p.RestartMax)
}

// settle is how long a run lasts that succeeded.
func settle(c workload.Container, p Policy) time.Duration {
	return cmp.Or(c.Service.Restart.Window, p.Settle)
}

func hasHealth(c workload.Container) bool { return c.Service.Health != nil && !c.Service.NoHealth }

// backoff is the pause after the n-th failure in a row.
func backoff(n int, low, high time.Duration) time.Duration {
	d := low
	for ; n > 1 && d < high; n-- {
		d *= 2
	}
	return min(d, high)
}
