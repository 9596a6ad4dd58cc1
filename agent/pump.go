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

// pump carries reports from the outbox to the fleet endpoint: in order, each until it is taken, at least once.
type pump struct {
	wake chan struct{}

	mu   sync.Mutex
	err  error
	next time.Time
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
			p.note(nil, time.Time{})
		default:
			select {
			case <-ctx.Done():
			case <-p.wake:
			}
		}
	}
}

// deliver sends the oldest report; false: there is none.
func (p *pump) deliver(ctx context.Context, a *Agent) (bool, error) {
	var r *store.Report
	err := a.o.Store.View(func(tx *store.Tx) (err error) {
		r, err = tx.First()
		return err
	})
	if err != nil || r == nil {
		return false, err
	}
	err = a.o.Reporter.Deliver(ctx, *r)
	if errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
		return true, err
	}
	if err != nil {
		a.o.Logger.Warn("the fleet endpoint refuses a report; it is dropped", "kind", r.Kind, "subject", r.Subject, "sequence", r.Sequence, "err", err)
	}
	return true, a.o.Store.Update(func(tx *store.Tx) error { return tx.Delivered(r.Sequence) })
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
