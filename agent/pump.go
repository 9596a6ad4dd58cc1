package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// reportBackoff is the longest pause between attempts to reach the fleet endpoint.
const reportBackoff = 5 * time.Minute

// pump carries reports from the outbox to the fleet endpoint: in order, each until it is taken, at least once. Only the
// device's capabilities can be overtaken, when the endpoint answers that it does not take them yet: statuses do not depend
// on them.
type pump struct {
	wake chan struct{}
	held held // of run alone

	mu   sync.Mutex
	err  error
	next time.Time
}

// held is a capabilities report that the endpoint does not take yet.
type held struct {
	sequence uint64 // 0: none
	failures int
	until    time.Time
	err      error
}

// nudge says that there may be a new report.
func (p *pump) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pump) run(ctx context.Context, a *Agent) {
	if a.o.Reporter == nil {
		return
	}
	failures := 0
	for ctx.Err() == nil {
		some, err := p.deliver(ctx, a)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			pause := backoff(failures, time.Second, reportBackoff)
			if after, ok := fault.RetryAfter(err); ok {
				pause = max(pause, min(after, time.Hour))
			}
			pause = time.Duration(float64(pause) * (1 - pollJitter/2 + pollJitter*a.o.Random()))
			if failures == 1 {
				a.o.Logger.Warn("the fleet endpoint takes no reports; they are kept", "err", err)
			}
			p.note(err, a.o.Now().Add(pause))
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		case some:
			if failures > 0 {
				a.o.Logger.Info("the fleet endpoint takes reports again")
			}
			failures = 0
			p.note(p.held.err, p.held.until)
		default:
			p.idle(ctx, a)
		}
	}
}

// idle waits for something to send.
func (p *pump) idle(ctx context.Context, a *Agent) {
	var again <-chan time.Time
	if p.held.sequence != 0 {
		timer := time.NewTimer(p.held.until.Sub(a.o.Now()))
		defer timer.Stop()
		again = timer.C
	} else {
		p.recap(ctx, a)
	}
	select {
	case <-ctx.Done():
	case <-p.wake:
	case <-again:
	}
}

// recap has the newest of everything reported once more when the outbox is empty after reports were dropped.
func (p *pump) recap(ctx context.Context, a *Agent) {
	var gap *store.Gap
	err := a.o.Store.View(func(tx *store.Tx) (err error) {
		gap, err = tx.Gap()
		return err
	})
	if err != nil || gap == nil || gap.Told { // what cannot be read is told by the status
		return
	}
	select {
	case a.mail <- (*loop).recap:
	case <-ctx.Done():
	}
}

// deliver sends the next report; false: there is none.
func (p *pump) deliver(ctx context.Context, a *Agent) (bool, error) {
	r, err := p.pick(a)
	if err != nil || r == nil {
		return false, err
	}
	err = a.o.Reporter.Deliver(ctx, *r)
	switch {
	case ctx.Err() != nil:
		return true, err
	case r.Kind == store.KindCapabilities && answered(err):
		p.hold(a, r.Sequence, err)
		return true, nil
	case errors.Is(err, fault.ErrTemporary):
		return true, err
	case err != nil:
		a.o.Logger.Warn("the fleet endpoint refuses a report; it is dropped", "kind", r.Kind, "subject", r.Subject, "sequence", r.Sequence, "err", err)
	}
	if r.Kind == store.KindCapabilities {
		p.held = held{}
	}
	return true, a.o.Store.Update(func(tx *store.Tx) error { return tx.Delivered(r.Sequence) })
}

// pick chooses the oldest report, or the one behind it while that is held.
func (p *pump) pick(a *Agent) (r *store.Report, err error) {
	err = a.o.Store.View(func(tx *store.Tx) (err error) {
		if r, err = tx.First(); err == nil && r != nil && r.Sequence == p.held.sequence && a.o.Now().Before(p.held.until) {
			r, err = tx.Next(r.Sequence)
		}
		return err
	})
	return r, err
}

// hold puts a capabilities report off. A newer one, which takes its place, is tried at once.
func (p *pump) hold(a *Agent, sequence uint64, err error) {
	p.held.failures++
	pause := backoff(p.held.failures, time.Second, reportBackoff)
	if after, ok := fault.RetryAfter(err); ok {
		pause = max(pause, min(after, time.Hour))
	}
	p.held.sequence, p.held.err, p.held.until = sequence, err, a.o.Now().Add(pause)
	if p.held.failures == 1 {
		a.o.Logger.Warn("the fleet endpoint does not take the device's capabilities yet; other reports go on", "err", err)
	}
}

// answered tells that the endpoint was reached and objects to this report, for now.
func answered(err error) bool {
	if !errors.Is(err, fault.ErrTemporary) {
		return false
	}
	for _, target := range []error{fault.ErrNotFound, fault.ErrUnauthenticated, fault.ErrDenied, fault.ErrInvalid} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func (p *pump) note(err error, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.next = err, next
}

func (p *pump) status(o *Outbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		o.LastError, o.NextTry = p.err.Error(), p.next
	}
}
