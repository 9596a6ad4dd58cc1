package agent

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
)

// Repairer keeps right what other programs of the device can break behind the runtime's back: networks above all. It is
// called from one goroutine.
type Repairer interface {
	// Repair checks and repairs, and returns a phrase for each repaired thing. A nil error: everything is right now. Doing it
	// again is no error.
	Repair(ctx context.Context) (repaired []string, err error)
	// Watch sends at each moment when something may be broken, until ctx ends. Several may be one send; the channel is closed in the end.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// repairs is what is known of the repairer. It is part of the loop.
type repairs struct {
	now   chan struct{} // wakes it
	err   error         // what could not be repaired
	since time.Time     // of err
}

const (
	repairEvery = time.Minute // for what Watch does not notice: each look takes some 10 ms where there are 20 containers
	repairLimit = time.Minute // of one call

	maxRepaired = 5 // repairs that one event lists
)

// reconcile calls the repairer at the start, then at intervals, and at once when the runtime's events were lost or the repairer
// noticed something itself.
func (l *loop) reconcile() {
	if l.o.Repairer == nil {
		return
	}
	broken, err := l.o.Repairer.Watch(l.ctx)
	if err != nil && l.ctx.Err() == nil {
		l.log.Warn("what breaks beside the runtime is noticed only now and then", "every", repairEvery, "err", err)
	}
	for l.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(l.ctx, repairLimit)
		repaired, err := l.o.Repairer.Repair(ctx)
		cancel()
		l.send(func(l *loop) { l.reconciled(repaired, err) })
		select {
		case <-l.ctx.Done():
		case <-l.repairs.now:
		case _, ok := <-broken:
			if !ok {
				broken = nil // the end; a nil channel blocks
			}
		case <-time.After(cmp.Or(l.o.LookEvery, repairEvery)):
		}
	}
}

// reconciled logs the result of the repairer: one line when it changes.
func (l *loop) reconciled(repaired []string, err error) {
	if more := len(repaired) - maxRepaired; more > 0 {
		repaired = append(repaired[:maxRepaired:maxRepaired], fmt.Sprintf("%d more", more))
	}
	if what := strings.Join(repaired, "; "); what != "" {
		l.log.Warn("repaired what containers need of the device", "what", what)
		l.events.Emit(status.Event{Kind: status.EventRepaired, Message: what})
	}
	switch {
	case l.ctx.Err() != nil:
	case err == nil && l.repairs.err != nil:
		l.log.Info("what containers need of the device is whole again")
		l.events.Emit(status.Event{Kind: status.EventRepaired, Message: "what containers need of the device is whole again"})
		l.repairs.err = nil
	case err != nil:
		if l.repairs.err == nil {
			l.log.Error("what containers need of the device is not whole; repairing it is tried again", "err", err)
			l.repairs.since = l.o.Now()
		}
		l.repairs.err = err
	}
}
