package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Limits and times of plans.
const (
	restartMin   = 100 * time.Millisecond // pause before the first restart; doubles
	retryMin     = 500 * time.Millisecond // pause before a step that failed is tried again; doubles
	longestPause = time.Minute            // before a restart, and before a step is tried again
	settleTime   = 10 * time.Second       // a restarted container that ran this long counts as up again, and its pauses start anew
	patience     = 3                      // restarts in a row after which a component that was installed counts as failed
	minRun       = time.Second            // a new container without a health check becomes active when it ran this long, unless its update has a Monitor
	drainTime    = 2 * time.Second        // the old container keeps running this long after the address moved
)

// Policy is the times of plans that differ.
type Policy struct {
	Monitor time.Duration // a new container that fails this soon after it was up has failed an update, unless it says another
	LastLog bool          // the last log lines of a container that exited are waited for
}

// Supervision is what the agent remembers of containers and steps while it runs. It is lost with the process; only pauses and counts are
// lost with it, because everything else is observed.
type Supervision struct {
	Containers   map[string]Supervised   // by container id
	Prepared     map[string]string       // by project: what Prepare last made of it
	Retries      map[string]Retry        // by Step.Key: steps that failed
	Busy         map[string]Verb         // by Step.Subject: steps in progress
	Begun        map[string]installation // by component key: when its installation began, while it lasts
	Up           map[string]string       // by component key: the identity that was up once; timeouts are for installations
	Restarting   map[string]string       // by container id: the run that is stopped to be started again, also by the next agent; saved before the stop
	FailedBefore map[string]uint64       // failing containers of a last good revision, by id: since which generation; saved
	Generation   uint64                  // that is applied
	Missing      map[string]Trouble      // by image name: why it cannot be loaded
	leaving      map[string]bool         // projects with containers that are not needed any more
}

// installation is when the installation of one revision of a component began.
type installation struct {
	at       time.Time
	identity string
}

func NewSupervision() *Supervision {
	return &Supervision{
		Containers: map[string]Supervised{}, Prepared: map[string]string{}, Retries: map[string]Retry{},
		Busy: map[string]Verb{}, Begun: map[string]installation{}, Up: map[string]string{}, Restarting: map[string]string{},
	}
}

// Supervised is what is remembered of one container.
type Supervised struct {
	Health     Health // "" while it does not run or has no health check
	Failed     int    // probes in a row
	Output     string // of the last probe that failed
	Since      time.Time
	Run        string    // which run of the container this is about
	ran        bool      // a run of it was seen
	end        string    // which end of a run was counted last
	Exited     bool      // it does not run any more
	Restarts   int       // in a row, without settling in between
	Total      int       // restarts since the agent started
	NextStart  time.Time // when a restart is due
	Up         time.Time // when this run was up; zero: not yet
	Active     time.Time // when the service's address was first seen to lead here; zero: it does not
	EndedEarly bool      // a run ended too soon after it was up, as the service's update says
	Code       uint32    // of the last exit
	Lack       workload.Lack
	Restarting bool   // the agent ended the last run itself
	LogRead    bool   // Words are those of the last exit
	LastLog    string // what the container wrote last, for an error message
}

// Retry is a step that failed.
type Retry struct {
	Failures int
	At       time.Time // not before
	Message  string
	Code     codes.Code
	Passing  bool // not caused by the subject of the step: it fails no update
	Gone     bool // an image that it needs is pulled again meanwhile
	Waits    bool // another container or project holds what it needs: it is tried when one is gone
	Moves    bool // it waits, and containers of other projects are still to go: not a failure, one may hold a port that moves
}

func (s *Supervision) Fail(now time.Time, step Step, err error) Retry {
	r := s.Retries[step.Key()]
	r.Failures++
	r.At = now.Add(retry.Backoff(r.Failures, retryMin, longestPause))
	r.Message, r.Code = err.Error(), codes.Runtime
	if c := codes.Of(err); c != codes.Internal && c != codes.SourceUnreachable {
		r.Code = c
	}
	// An image that was lost is pulled meanwhile, and a runtime that hangs may be over it soon: not so after some more tries.
	slow := errors.Is(err, fault.ErrNotFound) || errors.Is(err, context.DeadlineExceeded)
	r.Passing = errors.Is(err, fault.ErrTemporary) || codes.Of(err) == codes.DiskFull || errors.Is(err, context.Canceled) ||
		slow && r.Failures < 2*patience
	r.Gone = r.Gone || errors.Is(err, workload.ErrImageGone) // until the pull ends, whatever else fails meanwhile
	r.Waits = errors.Is(err, fault.ErrConflict)
	r.Moves = r.Waits && (len(s.leaving) > 1 || len(s.leaving) == 1 && !s.leaving[step.Project])
	s.Retries[step.Key()] = r
	return r
}

func (s *Supervision) Done(step Step) {
	had := s.Retries[step.Key()]
	delete(s.Retries, step.Key())
	if had.Waits || step.Verb == Remove || step.Verb == Teardown {
		s.next()
	}
	switch step.Verb {
	case Prepare:
		s.Prepared[step.Project] = step.surround
	case Teardown:
		delete(s.Prepared, step.Project)
	case Start:
		if run := s.Restarting[step.Container]; run == "" || run != s.Containers[step.Container].Run { // otherwise the run that is to end was resumed, or has just begun
			delete(s.Restarting, step.Container)
		}
		if step.repeated {
			c := s.Containers[step.Container]
			c.Total++
			s.Containers[step.Container] = c
		}
	case Create:
		delete(s.Containers, step.Container) // the record is of another container of the same name
	case Remove:
		delete(s.Containers, step.Container)
		for _, v := range []Verb{Create, Start, Stop, Activate, Deactivate} {
			delete(s.Retries, Step{Verb: v, Container: step.Container}.Key())
		}
	}
}

// next ends the pause of the step that would wait longest for something that others hold, after something was released. If it then
// succeeds, the next one tries. One at a time, a thousand waiting steps cost no more attempts than containers are removed.
func (s *Supervision) next() {
	key, last := "", time.Time{}
	for k, r := range s.Retries {
		if r.Waits && (r.At.After(last) || r.At.Equal(last) && k < key) {
			key, last = k, r.At
		}
	}
	if r, ok := s.Retries[key]; ok {
		r.At = time.Time{}
		s.Retries[key] = r
	}
}

func (s *Supervision) Update(now time.Time, d *Desired, o workload.Observed, p Policy) {
	if d == nil {
		return
	}
	needed, seen := map[string]bool{}, ByID(o)
	for dep := range d.All() {
		for _, c := range dep.Containers() {
			needed[c.ID] = true
			if o, ok := seen[c.ID]; ok {
				s.Containers[c.ID] = s.Containers[c.ID].next(now, c, o, s.restartIntended(o))
			}
		}
	}
	s.leaving = map[string]bool{}
	for id, o := range seen {
		if !needed[id] {
			s.leaving[o.Project] = true
		}
	}
	maps.DeleteFunc(s.Containers, func(id string, _ Supervised) bool { return !needed[id] })
	maps.DeleteFunc(s.Restarting, func(id, _ string) bool { return !needed[id] || seen[id].ID == "" })
	for k := range s.Retries { // of steps that will not be taken again
		verb, subject, _ := strings.Cut(k, " ")
		switch Verb(verb) {
		case Create, Start, Activate, Deactivate:
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

// restartIntended reports whether the agent ended a container's last run to restart it, and forgets it when that is over.
func (s *Supervision) restartIntended(o workload.Observation) bool {
	run, ok := s.Restarting[o.ID]
	if ok && (o.Status == workload.Created || alive(o) && o.Run != "" && o.Run != run) {
		delete(s.Restarting, o.ID)
		return false
	}
	return ok
}

// time records when installations begin and end.
func (s *Supervision) time(now time.Time, d *Desired, o workload.Observed, p Policy) {
	begun, up := map[string]installation{}, map[string]string{}
	pl := newPlanner(now, o, s, p)
	for dep := range d.All() {
		for _, v := range pl.views(dep) {
			k := key(v.d.ID, v.c.Name)
			switch {
			case v.met, s.Up[k] == v.c.Identity:
				up[k] = v.c.Identity
			case v.open:
				begun[k] = installation{now, v.c.Identity}
				if b, ok := s.Begun[k]; ok && b.identity == v.c.Identity {
					begun[k] = b
				}
			}
		}
	}
	s.Begun, s.Up = begun, up
}

func (s Supervised) next(now time.Time, c *workload.Container, o workload.Observation, again bool) Supervised {
	switch o.Status {
	case workload.Running, workload.Paused:
		// The name of a run is unknown while its process is gone and the task has not ended: that is no other run.
		run := cmp.Or(o.Run, s.Run, fmt.Sprintf("%d/%d", o.PID, o.StartedAt.UnixNano()))
		if run != s.Run {
			s.Run, s.Since, s.Failed, s.Output, s.Health, s.Up, s.Active, s.Restarting = run, now, 0, "", "", time.Time{}, time.Time{}, false
			if hasHealth(c) {
				s.Health = HealthStarting
			}
		}
		if hasHealth(c) && s.Health == "" { // also where the image's own check became known after the run
			s.Health, s.Up = HealthStarting, time.Time{}
		}
		s.ran, s.Exited, s.NextStart = true, false, time.Time{}
		if s.Up.IsZero() && (!hasHealth(c) || s.Health == HealthHealthy) {
			s.Up = now
		}
		if s.Restarts > 0 && now.Sub(s.Since) >= settle(c) && (!hasHealth(c) || s.Health == HealthHealthy) {
			s.Restarts = 0
		}
		switch {
		case !o.Active:
			s.Active = time.Time{}
		case s.Active.IsZero():
			s.Active = now
		}
	case workload.Exited:
		if o.End != s.end { // however short the run was, and whatever of it was seen
			s = s.exited(now, c, o, again)
		}
	default: // not yet, or between two runs
		s = Supervised{Total: s.Total, Restarts: s.Restarts, EndedEarly: s.EndedEarly, ran: s.ran, end: s.end}
	}
	return s
}

func (s Supervised) exited(now time.Time, c *workload.Container, o workload.Observation, again bool) Supervised {
	sick := s.Health == HealthUnhealthy
	m := c.Service.Update.Monitor
	s.EndedEarly = s.EndedEarly || !again && m > 0 && !s.Up.IsZero() && now.Sub(s.Up) < m && (o.ExitCode != 0 || restarts(c, o, s.Restarts))
	s.ran, s.end, s.Exited, s.Health, s.Failed, s.Run, s.Up, s.Active = true, o.End, true, "", 0, "", time.Time{}, time.Time{}
	s.Restarting, s.LogRead, s.LastLog, s.Code, s.Lack = again, o.ExitCode == 0, "", o.ExitCode, o.Lack
	s.NextStart = time.Time{} // that of the run that ended, when it was too short to be seen
	switch {
	case again && !sick:
		s.NextStart = now
	case again || restarts(c, o, s.Restarts):
		s.Restarts++
		s.NextStart = now.Add(pause(c, s.Restarts))
	}
	return s
}

// Probed applies the result of a probe. Failures in the start period do not count.
func (s Supervised) Probed(now time.Time, h *workload.Health, err error) Supervised {
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

// restarts reports whether the restart policy restarts a container that exited.
func restarts(c *workload.Container, o workload.Observation, already int) bool {
	return tries(c, already) && (o.ExitCode != 0 || c.Service.Restart.Policy != workload.RestartOnFailure)
}

// tries reports whether the restart policy restarts a container that failed.
func tries(c *workload.Container, already int) bool {
	switch r := c.Service.Restart; r.Policy {
	case workload.RestartAlways, workload.RestartUnlessStopped, workload.RestartOnFailure:
		return r.Max == 0 || already < r.Max
	}
	return false
}

// pause is the time before the n-th restart in a row.
func pause(c *workload.Container, n int) time.Duration {
	return cmp.Or(c.Service.Restart.Delay, retry.Backoff(n, restartMin, longestPause))
}

// settle is how long a run must last to count as successful.
func settle(c *workload.Container) time.Duration {
	return cmp.Or(c.Service.Restart.Window, settleTime)
}

func hasHealth(c *workload.Container) bool { return c.Service.Health != nil && !c.Service.NoHealth }
