package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Policy holds the numbers that plans are made with.
type Policy struct {
	RestartMin time.Duration // pause before the first restart; doubles
	RestartMax time.Duration
	RetryMin   time.Duration // pause before a step that failed is tried again; doubles
	RetryMax   time.Duration
	Settle     time.Duration // a restarted container that ran this long counts as up again, and its pauses start anew
	Patience   int           // restarts in a row after which a component that was installed counts as failed
}

func (o *Options) policy() Policy {
	return Policy{
		RestartMin: 100 * time.Millisecond, RestartMax: o.RestartMax,
		RetryMin: 500 * time.Millisecond, RetryMax: o.StepRetryMax,
		Settle: 10 * time.Second, Patience: 3,
	}
}

// Supervision is what the agent remembers of containers and steps while it runs. It is lost with the process, and
// nothing but pauses and counts is lost with it: what there is, is observed.
type Supervision struct {
	Containers map[string]Supervised // by container id
	Prepared   map[string]string     // by project: what Prepare last made of it
	Retries    map[string]Retry      // by Step.Key: steps that failed
	Busy       map[string]bool       // by Step.Subject: steps in progress
	Begun      map[string]time.Time  // by component key: when its installation began, while it lasts
	Up         map[string]string     // by component key: the identity that was up once; timeouts are for installations
}

// NewSupervision remembers nothing.
func NewSupervision() *Supervision {
	return &Supervision{
		Containers: map[string]Supervised{}, Prepared: map[string]string{}, Retries: map[string]Retry{},
		Busy: map[string]bool{}, Begun: map[string]time.Time{}, Up: map[string]string{},
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
}

// Retry is a step that failed.
type Retry struct {
	Failures int
	At       time.Time // not before
	Message  string
	Code     Code
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
		c := s.Containers[step.Container]
		if c.Exited { // whatever is seen next is another run
			c.Exited, c.Total = false, c.Total+1
		}
		s.Containers[step.Container] = c
	case Remove:
		delete(s.Containers, step.Container)
		for _, v := range []Verb{Create, Start, Stop} {
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
					s.Containers[c.ID] = s.Containers[c.ID].next(now, c, o, p)
				}
			}
		}
	}
	for id := range s.Containers {
		if !needed[id] {
			delete(s.Containers, id)
		}
	}
	for k := range s.Retries { // of steps that nobody will take again
		verb, subject, _ := strings.Cut(k, " ")
		switch Verb(verb) {
		case Create, Start:
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

// time notes when installations begin and end.
func (s *Supervision) time(now time.Time, d *Desired, o workload.Observed, p Policy) {
	begun, up := map[string]time.Time{}, map[string]string{}
	pl := newPlanner(now, o, s, p)
	for i := range d.Deployments {
		for _, v := range pl.views(&d.Deployments[i]) {
			k := key(v.d.ID, v.c.Name)
			switch {
			case v.up, s.Up[k] == v.c.Identity:
				up[k] = v.c.Identity
			case v.open:
				begun[k] = now
				if t, ok := s.Begun[k]; ok {
					begun[k] = t
				}
			}
		}
	}
	s.Begun, s.Up = begun, up
}

func (s Supervised) next(now time.Time, c workload.Container, o workload.Observation, p Policy) Supervised {
	switch o.Status {
	case workload.Running, workload.Paused:
		run := o.Run
		if run == "" {
			run = fmt.Sprintf("%d/%d", o.PID, o.StartedAt.UnixNano())
		}
		if run != s.run {
			s.run, s.Since, s.Failed, s.Output, s.Health = run, now, 0, "", ""
			if hasHealth(c) {
				s.Health = HealthStarting
			}
		}
		s.Exited, s.NextStart = false, time.Time{}
		if s.Restarts > 0 && now.Sub(s.Since) >= p.Settle && (!hasHealth(c) || s.Health == HealthHealthy) {
			s.Restarts = 0
		}
	case workload.Exited:
		if s.Exited {
			break
		}
		s.Exited, s.Health, s.Failed, s.run = true, "", 0, ""
		if restarts(c, o, s.Restarts) {
			s.Restarts++
			s.NextStart = now.Add(backoff(s.Restarts, p.RestartMin, p.RestartMax))
		}
	default:
		s = Supervised{Total: s.Total}
	}
	return s
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
	switch c.Service.Restart.Policy {
	case workload.RestartAlways, workload.RestartUnlessStopped:
		return true
	case workload.RestartOnFailure:
		return o.ExitCode != 0 && (c.Service.Restart.Max == 0 || already < c.Service.Restart.Max)
	}
	return false
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
