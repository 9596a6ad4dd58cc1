package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
)

// nudge wakes the senders: there may be something new to report.
func (l *loop) nudge() {
	l.sender.Wake()
	l.publisher.Wake()
}

// makeCurrentState has the loop make a current state; see [currentstate.Options].
func (a *Agent) makeCurrentState(ctx context.Context, last *artifacts.CurrentState, due bool) (*artifacts.CurrentState, error) {
	return ask(ctx, a, func(l *loop) (*artifacts.CurrentState, error) { return l.currentState(last, due) })
}

// currentState makes the device's current state and gives it the next numbers, on the disk before anybody else sees them. nil: it is
// as in last and not due, or the device has not looked at its containers since the agent started.
func (l *loop) currentState(last *artifacts.CurrentState, due bool) (*artifacts.CurrentState, error) {
	if !l.told.capabilities {
		return nil, nil
	}
	f := currentstate.Facts{
		Device: l.o.Device, Epoch: l.o.Store.Epoch(), BootID: l.o.BootID, Interval: l.o.PublishInterval, Repository: l.o.Repository,
		Accepted: l.accepted, Running: l.running(), Committed: l.committed, Refused: l.refused, Statuses: l.told.statuses,
		Resolved: []*plan.Desired{l.targetResolved, l.acceptedResolved}, Observed: l.sight.seen,
	}
	err := l.o.Store.View(func(tx *store.Tx) (err error) {
		turned, err := tx.Transitions()
		if err == nil {
			f.Capabilities, err = l.capabilitiesBody(tx, &turned)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	c := currentstate.Make(f)
	if !due && last != nil && currentstate.Same(last, c) {
		return nil, nil
	}
	if err := l.o.Store.Update(func(tx *store.Tx) (err error) {
		c.Counter, c.Sequence, err = tx.NumberCurrent()
		return err
	}); err != nil {
		return nil, fmt.Errorf("number the current state: %w", err)
	}
	c.Time = l.o.Now().UTC().Truncate(time.Second)
	return c, nil
}
