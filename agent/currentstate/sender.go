// Package currentstate makes the device's current state, a document that says what it runs, and brings it to where it can be read without
// a fleet endpoint. The entry points are [Make] and [New].
package currentstate

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/delay"
)

const (
	settle       = 2 * time.Second // a change is kept back so long, so that those that follow at once are in the same current state
	publishLimit = 2 * time.Minute // of one attempt
)

// Publisher puts a device's current state where it can be read without a fleet endpoint.
type Publisher interface {
	// Name is where to, for people.
	Name() string
	// Publish signs and puts it. Whatever the error, it is tried again, after fault.RetryAfter where it is set. The same one twice is no error.
	Publish(ctx context.Context, c *artifacts.CurrentState) error
}

// Options make a [Sender].
type Options struct {
	Publisher Publisher     // nil: it is published nowhere
	Interval  time.Duration // after which it is published once more without a change; 0: only when something changes
	// Make makes a current state; nil: it would say nothing that last does not, and is not due.
	Make     func(ctx context.Context, last *artifacts.CurrentState, due bool) (*artifacts.CurrentState, error)
	Downtime func(now time.Time) (until time.Time, down bool) // declared: nothing can be reached
	Logger   *slog.Logger
	Now      func() time.Time
	Random   func() float64 // [0,1)
}

// Sender publishes the device's current state when something changes, and after an interval without a change. Only the newest means
// anything, so one that could not be published is dropped when there is a newer one.
type Sender struct {
	o    Options
	wake chan struct{} // has room for one

	last *artifacts.CurrentState // that was numbered last, published or not; nil: none since the start. It and due are of Run alone
	due  time.Time               // when it is made once more although nothing has changed

	mu    sync.Mutex
	shown status.CurrentReport
}

func New(o Options) *Sender { return &Sender{o: o, wake: make(chan struct{}, 1)} }

// Wake tells the sender that there may be something new. It does not wait.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends.
func (s *Sender) Run(ctx context.Context) {
	if s.o.Publisher == nil {
		return
	}
	for failures := 0; ctx.Err() == nil; {
		err := s.publish(ctx, failures > 0)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if failures > 0 {
				s.o.Logger.Info("the registry takes the current state again")
			}
			failures = 0
			s.idle(ctx)
			continue
		}
		if failures++; failures == 1 {
			s.o.Logger.Warn("the registry does not take the current state; it is tried again", "to", s.o.Publisher.Name(), "err", err)
		}
		pause := retry.Backoff(failures, time.Second, retry.ReportBackoff(s.o.Interval))
		pause = max(retry.Spread(pause, s.o.Random()), retry.Asked(err))
		s.note(func(r *status.CurrentReport) { r.LastError, r.NextTry = err.Error(), s.o.Now().Add(pause) })
		_ = delay.For(ctx, pause)
	}
}

// publish brings the newest current state, if it is not there; failed: the last one may not be.
func (s *Sender) publish(ctx context.Context, failed bool) error {
	due := s.o.Interval > 0 && s.last != nil && !s.o.Now().Before(s.due)
	made, err := s.o.Make(ctx, s.last, due)
	switch {
	case err != nil:
		return err
	case made != nil:
		s.last = made
		s.due = s.o.Now().Add(retry.Early(s.o.Interval, s.o.Random()))
	case s.last == nil || !failed:
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	if err := s.o.Publisher.Publish(limited, s.last); err != nil {
		return err
	}
	now, next := s.o.Now(), s.due
	if s.o.Interval <= 0 {
		next = time.Time{}
	}
	s.note(func(r *status.CurrentReport) {
		*r = status.CurrentReport{Counter: s.last.Counter, At: now, NextDue: next}
	})
	return nil
}

// idle waits for a change, and a moment longer, or for the interval to end.
func (s *Sender) idle(ctx context.Context) {
	var again <-chan time.Time
	if s.o.Interval > 0 && s.last != nil {
		timer := time.NewTimer(s.due.Sub(s.o.Now()))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-ctx.Done():
	case <-again:
	case <-s.wake:
		_ = delay.For(ctx, settle)
	}
}

func (s *Sender) note(edit func(*status.CurrentReport)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(&s.shown)
}

// Status completes a status with how the current state is published.
func (s *Sender) Status(to *status.Status) {
	if s.o.Publisher == nil {
		return
	}
	s.mu.Lock()
	shown := s.shown
	s.mu.Unlock()
	shown.Reference = s.o.Publisher.Name()
	to.CurrentReport = &shown
	if _, down := s.o.Downtime(to.Now); shown.LastError == "" || down {
		return
	}
	to.Problems = append(slices.Clone(to.Problems), status.Problem{
		Code: codes.ReportUnpublished, Message: "the current state is not in the registry: " + shown.LastError,
		Doing: "next try " + retry.In(shown.NextTry.Sub(to.Now)), Hint: codes.Explain(codes.ReportUnpublished).Action, Since: shown.At,
	})
}
