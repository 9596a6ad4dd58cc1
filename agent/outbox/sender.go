// Package outbox carries the reports of a device from its store to the fleet endpoint. The entry point is [New].
package outbox

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// recapPause is the shortest time between two reports of everything that the endpoint asks for.
const recapPause = time.Hour

// Reporter delivers one report. fault.ErrTemporary keeps it in the outbox; any other error drops it, with a log line. With
// fault.ErrNotFound, ErrUnauthenticated, ErrDenied or ErrInvalid beside it the endpoint was reached and objects to this
// report: the device's capabilities then do not keep the reports behind them waiting. created: the endpoint knew nothing of the
// report's subject.
type Reporter interface {
	Deliver(ctx context.Context, r store.Report) (created bool, err error)
}

// Options make a [Sender].
type Options struct {
	Store    *store.Store
	Reporter Reporter // nil: there is no fleet endpoint, and nothing is sent
	// ReportInterval is how often the endpoint hears the device at least; 0: only when something changes.
	ReportInterval time.Duration
	FullInterval   time.Duration // after which everything is reported once more although nothing changed; 0: never

	Downtime func(now time.Time) (until time.Time, down bool) // declared: nothing can be reached; until zero: no end is in sight
	Recap    func(ctx context.Context)                        // has the newest of everything put into the outbox once more
	Logger   *slog.Logger
	Now      func() time.Time
	Random   func() float64 // [0,1)
}

// Sender carries reports from the outbox to the fleet endpoint: in order, each until it is taken, at least once. Only the
// device's capabilities can be overtaken, when the endpoint answers that it does not take them yet: statuses do not depend
// on them. When there was nothing to report for the report interval, the last capabilities are sent once more, so that the
// endpoint hears the device: it changes nothing there, and nothing is written here.
type Sender struct {
	o    Options
	wake chan struct{} // has room for one

	held   held          // this and what follows, up to mu, is of Run alone
	last   *store.Report // capabilities that the endpoint has taken; nil: none since the start
	due    time.Time     // when they are sent once more
	recaps time.Time     // when the endpoint may ask for everything again
	full   time.Time     // when everything is reported once more without a reason

	mu    sync.Mutex
	err   error
	next  time.Time
	heard time.Time // when the endpoint is to hear the device again
}

// held is a capabilities report that the endpoint does not take yet.
type held struct {
	sequence uint64 // 0: none
	failures int
	until    time.Time
	err      error
}

func New(o Options) *Sender { return &Sender{o: o, wake: make(chan struct{}, 1)} }

// Wake tells the sender that there may be something new in the outbox. It does not wait.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends.
func (s *Sender) Run(ctx context.Context) {
	if s.o.Reporter == nil {
		return
	}
	failures := 0
	s.setFull()
	for ctx.Err() == nil {
		some, err := s.deliver(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			pause := time.Second
			if !fault.Steady(err) {
				pause = retry.Backoff(failures, pause, retry.ReportBackoff(s.o.ReportInterval))
			}
			pause = max(retry.Spread(pause, s.o.Random()), retry.Asked(err))
			now := s.o.Now()
			until, down := s.o.Downtime(now)
			if failures == 1 && !down {
				s.o.Logger.Warn("the fleet endpoint takes no reports; they are kept", "err", err)
			}
			if left := until.Sub(now); down && !until.IsZero() && left < pause { // it begins anew after a declared downtime
				pause, failures = left, 0
			}
			s.note(err, now.Add(pause))
			_ = delay.For(ctx, pause)
		case some:
			if failures > 0 {
				s.o.Logger.Info("the fleet endpoint takes reports again")
			}
			failures = 0
			s.note(s.held.err, s.held.until)
		default:
			s.idle(ctx)
		}
	}
}

// idle waits for something to send.
func (s *Sender) idle(ctx context.Context) {
	if s.held.sequence == 0 {
		s.recap(ctx)
	}
	var next time.Time
	if s.last != nil && s.o.ReportInterval > 0 {
		next = s.due
	}
	if !s.full.IsZero() && (next.IsZero() || s.full.Before(next)) {
		next = s.full
	}
	if s.held.sequence != 0 && (next.IsZero() || s.held.until.Before(next)) {
		next = s.held.until
	}
	var again <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(next.Sub(s.o.Now()))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-again:
	}
}

// recap has the newest of everything reported once more when the outbox is empty, after reports were dropped or the endpoint lost them.
func (s *Sender) recap(ctx context.Context) {
	var gap *store.Gap
	err := s.o.Store.View(func(tx *store.Tx) (err error) {
		gap, err = tx.Gap()
		return err
	})
	if err != nil || gap == nil || gap.Told { // what cannot be read is in the status
		return
	}
	s.o.Recap(ctx)
}

// deliver sends the next report; false: there is none.
func (s *Sender) deliver(ctx context.Context) (bool, error) {
	r, err := s.pick()
	if err != nil {
		return false, err
	}
	switch {
	case r != nil:
	case !s.full.IsZero() && !s.o.Now().Before(s.full):
		s.setFull()
		return true, s.o.Store.Update((*store.Tx).AskRecap)
	default:
		return s.alive(ctx)
	}
	created, err := s.o.Reporter.Deliver(ctx, *r)
	switch {
	case ctx.Err() != nil:
		return true, err
	case r.Kind == store.KindCapabilities && answered(err):
		s.hold(r.Sequence, err)
		return true, nil
	case errors.Is(err, fault.ErrTemporary):
		return true, err
	case err != nil:
		s.o.Logger.Warn("the fleet endpoint refuses a report; it is dropped", "kind", r.Kind, "subject", r.Subject, "sequence", r.Sequence, "err", err)
	}
	s.noteDelivery()
	if r.Kind == store.KindCapabilities {
		s.held = held{}
		if s.last = r; err != nil {
			s.last = nil
		}
	}
	forgot := s.forgot(r.Kind, created)
	return true, s.o.Store.Update(func(tx *store.Tx) error {
		if forgot {
			return errors.Join(tx.Delivered(r.Sequence), tx.AskRecap())
		}
		return tx.Delivered(r.Sequence)
	})
}

// forgot reports whether the endpoint lacks what was reported before: it answers capabilities as those of a new device, as after a
// loss of its database. An endpoint that always does so gets everything once in a while.
func (s *Sender) forgot(kind string, created bool) bool {
	if !created || kind != store.KindCapabilities || s.o.Now().Before(s.recaps) {
		return false
	}
	s.recaps = s.o.Now().Add(recapPause)
	return true
}

// alive sends the last capabilities once more when nothing was sent for the report interval; false: it is not time.
func (s *Sender) alive(ctx context.Context) (bool, error) {
	if s.last == nil || s.o.ReportInterval <= 0 || s.o.Now().Before(s.due) {
		return false, nil
	}
	created, err := s.o.Reporter.Deliver(ctx, *s.last)
	switch {
	case ctx.Err() != nil, errors.Is(err, fault.ErrTemporary):
		return true, err
	case err != nil:
		s.o.Logger.Warn("the fleet endpoint refuses the device's capabilities, which it took before", "sequence", s.last.Sequence, "err", err)
		s.last = nil
	}
	s.noteDelivery()
	if err == nil && s.forgot(store.KindCapabilities, created) {
		return true, s.o.Store.Update((*store.Tx).AskRecap)
	}
	return true, nil
}

// setFull sets when everything is reported once more: what an endpoint lost of it, as by a restored backup, is there again then.
func (s *Sender) setFull() {
	if s.o.FullInterval > 0 {
		s.full = s.o.Now().Add(retry.Early(s.o.FullInterval, s.o.Random()))
	}
}

// noteDelivery notes that the endpoint has heard the device. A tenth of the interval is left for the next report's way.
func (s *Sender) noteDelivery() {
	s.due = s.o.Now().Add(s.o.ReportInterval * 9 / 10)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.ReportInterval > 0 {
		s.heard = s.due
	}
}

// pick chooses the oldest report, or the one behind it while that is held.
func (s *Sender) pick() (r *store.Report, err error) {
	err = s.o.Store.View(func(tx *store.Tx) (err error) {
		if r, err = tx.First(); err == nil && r != nil && r.Sequence == s.held.sequence && s.o.Now().Before(s.held.until) {
			r, err = tx.Next(r.Sequence)
		}
		return err
	})
	return r, err
}

// hold puts a capabilities report off. A newer one, which takes its place, is tried at once.
func (s *Sender) hold(sequence uint64, err error) {
	s.held.failures++
	pause := time.Second
	if !fault.Steady(err) {
		pause = retry.Backoff(s.held.failures, pause, retry.ReportBackoff(0))
	}
	pause = max(pause, retry.Asked(err))
	s.held.sequence, s.held.err, s.held.until = sequence, err, s.o.Now().Add(pause)
	if s.held.failures == 1 {
		s.o.Logger.Warn("the fleet endpoint does not take the device's capabilities yet; other reports go on", "err", err)
	}
}

// answered notes that the endpoint was reached and objects to this report, for now.
func answered(err error) bool {
	about := []error{fault.ErrNotFound, fault.ErrUnauthenticated, fault.ErrDenied, fault.ErrInvalid}
	return errors.Is(err, fault.ErrTemporary) && slices.ContainsFunc(about, func(kind error) bool { return errors.Is(err, kind) })
}

func (s *Sender) note(err error, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.next = err, next
}
