package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// reportBackoff is the longest pause between attempts to reach the fleet endpoint.
const reportBackoff = 5 * time.Minute

// recapPause is the shortest time between two reports of everything that the endpoint asks for.
const recapPause = time.Hour

// sender carries reports from the outbox to the fleet endpoint: in order, each until it is taken, at least once. Only the
// device's capabilities can be overtaken, when the endpoint answers that it does not take them yet: statuses do not depend
// on them. When there was nothing to report for the report interval, the last capabilities are sent once more, so that the
// endpoint hears the device: it changes nothing there, and nothing is written here.
type sender struct {
	wake chan struct{}
	held held // of run alone

	last   *store.Report // capabilities that the endpoint has taken; nil: none since the start. Of run alone
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

// longest is the longest pause between attempts: no longer than the report interval, because the endpoint hears the device by
// an attempt also when it has no room for the report.
func longest(interval time.Duration) time.Duration {
	if interval > 0 && interval < reportBackoff {
		return max(interval, time.Second)
	}
	return reportBackoff
}

func (p *sender) run(ctx context.Context, a *Agent) {
	if a.o.Reporter == nil {
		return
	}
	failures := 0
	p.setFull(a)
	for ctx.Err() == nil {
		some, err := p.deliver(ctx, a)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			pause := time.Second
			if !fault.Steady(err) {
				pause = clock.Backoff(failures, pause, longest(a.o.ReportInterval))
			}
			pause = max(time.Duration(float64(pause)*(1-pollJitter/2+pollJitter*a.o.Random())), asked(err))
			now := a.o.Now()
			until, down := a.downtime(now)
			if failures == 1 && !down {
				a.o.Logger.Warn("the fleet endpoint takes no reports; they are kept", "err", err)
			}
			if left := until.Sub(now); down && !until.IsZero() && left < pause { // it begins anew after a declared downtime
				pause, failures = left, 0
			}
			p.note(err, now.Add(pause))
			wait(ctx, pause)
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
func (p *sender) idle(ctx context.Context, a *Agent) {
	if p.held.sequence == 0 {
		p.recap(ctx, a)
	}
	var next time.Time
	if p.last != nil && a.o.ReportInterval > 0 {
		next = p.due
	}
	if !p.full.IsZero() && (next.IsZero() || p.full.Before(next)) {
		next = p.full
	}
	if p.held.sequence != 0 && (next.IsZero() || p.held.until.Before(next)) {
		next = p.held.until
	}
	var again <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(next.Sub(a.o.Now()))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-ctx.Done():
	case <-p.wake:
	case <-again:
	}
}

// recap has the newest of everything reported once more when the outbox is empty, after reports were dropped or the endpoint lost them.
func (p *sender) recap(ctx context.Context, a *Agent) {
	var gap *store.Gap
	err := a.o.Store.View(func(tx *store.Tx) (err error) {
		gap, err = tx.Gap()
		return err
	})
	if err != nil || gap == nil || gap.Told { // what cannot be read is in the status
		return
	}
	select {
	case a.inbox <- (*loop).recap:
	case <-ctx.Done():
	}
}

// deliver sends the next report; false: there is none.
func (p *sender) deliver(ctx context.Context, a *Agent) (bool, error) {
	r, err := p.pick(a)
	if err != nil {
		return false, err
	}
	switch {
	case r != nil:
	case !p.full.IsZero() && !a.o.Now().Before(p.full):
		p.setFull(a)
		return true, a.o.Store.Update((*store.Tx).AskRecap)
	default:
		return p.alive(ctx, a)
	}
	created, err := a.o.Reporter.Deliver(ctx, *r)
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
	p.noteDelivery(a)
	if r.Kind == store.KindCapabilities {
		p.held = held{}
		if p.last = r; err != nil {
			p.last = nil
		}
	}
	forgot := p.forgot(a, r.Kind, created)
	return true, a.o.Store.Update(func(tx *store.Tx) error {
		if forgot {
			return errors.Join(tx.Delivered(r.Sequence), tx.AskRecap())
		}
		return tx.Delivered(r.Sequence)
	})
}

// forgot reports whether the endpoint lacks what was reported before: it answers capabilities as those of a new device, as after a
// loss of its database. An endpoint that always does so gets everything once in a while.
func (p *sender) forgot(a *Agent, kind string, created bool) bool {
	if !created || kind != store.KindCapabilities || a.o.Now().Before(p.recaps) {
		return false
	}
	p.recaps = a.o.Now().Add(recapPause)
	return true
}

// alive sends the last capabilities once more when nothing was sent for the report interval; false: it is not time.
func (p *sender) alive(ctx context.Context, a *Agent) (bool, error) {
	if p.last == nil || a.o.ReportInterval <= 0 || a.o.Now().Before(p.due) {
		return false, nil
	}
	created, err := a.o.Reporter.Deliver(ctx, *p.last)
	switch {
	case ctx.Err() != nil, errors.Is(err, fault.ErrTemporary):
		return true, err
	case err != nil:
		a.o.Logger.Warn("the fleet endpoint refuses the device's capabilities, which it took before", "sequence", p.last.Sequence, "err", err)
		p.last = nil
	}
	p.noteDelivery(a)
	if err == nil && p.forgot(a, store.KindCapabilities, created) {
		return true, a.o.Store.Update((*store.Tx).AskRecap)
	}
	return true, nil
}

// setFull sets when everything is reported once more: what an endpoint lost of it, as by a restored backup, is there again then.
func (p *sender) setFull(a *Agent) {
	if a.o.FullInterval > 0 {
		p.full = a.o.Now().Add(time.Duration(float64(a.o.FullInterval) * (1 - pollJitter*a.o.Random())))
	}
}

// noteDelivery notes that the endpoint has heard the device. A tenth of the interval is left for the next report's way.
func (p *sender) noteDelivery(a *Agent) {
	p.due = a.o.Now().Add(a.o.ReportInterval * 9 / 10)
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.o.ReportInterval > 0 {
		p.heard = p.due
	}
}

// pick chooses the oldest report, or the one behind it while that is held.
func (p *sender) pick(a *Agent) (r *store.Report, err error) {
	err = a.o.Store.View(func(tx *store.Tx) (err error) {
		if r, err = tx.First(); err == nil && r != nil && r.Sequence == p.held.sequence && a.o.Now().Before(p.held.until) {
			r, err = tx.Next(r.Sequence)
		}
		return err
	})
	return r, err
}

// hold puts a capabilities report off. A newer one, which takes its place, is tried at once.
func (p *sender) hold(a *Agent, sequence uint64, err error) {
	p.held.failures++
	pause := time.Second
	if !fault.Steady(err) {
		pause = clock.Backoff(p.held.failures, pause, reportBackoff)
	}
	pause = max(pause, asked(err))
	p.held.sequence, p.held.err, p.held.until = sequence, err, a.o.Now().Add(pause)
	if p.held.failures == 1 {
		a.o.Logger.Warn("the fleet endpoint does not take the device's capabilities yet; other reports go on", "err", err)
	}
}

// answered notes that the endpoint was reached and objects to this report, for now.
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

func (p *sender) note(err error, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.next = err, next
}

func (p *sender) status(o *status.Outbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.NextDue = p.heard
	if p.err != nil {
		o.LastError, o.NextTry = p.err.Error(), p.next
	}
}
