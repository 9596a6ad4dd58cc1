package agent

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	observeLimit = 30 * time.Second // of one look at the runtime
	observeWait  = time.Second      // of the loop for it, and for admission; then the loop goes on without steps until the answer is there
	observeEvery = 2 * time.Minute  // without any event, in case one was lost
)

// sight is what is known of the device's containers. It is part of the loop.
type sight struct {
	seen    workload.Observed
	known   bool      // the runtime answered, since the start
	look    bool      // before the next plan
	looking *lookout  // nil: no look is in progress
	at      time.Time // of the next look without an event
	blind   error     // why the runtime does not answer; nil: it does
	tries   int       // looks without an answer
	retryAt time.Time // while blind
}

// lookout is a look at the runtime that is in progress.
type lookout struct {
	begun time.Time
	ended int  // [loop.steps.ended] then
	over  bool // seen and err are set
	seen  workload.Observed
	err   error
}

// due is when a look that has not ended by then counts as failed.
func (x *lookout) due(now time.Time) time.Time {
	if at := x.begun.Add(observeLimit + observeWait); now.Before(at) {
		return at
	}
	return now.Add(observeEvery) // it does, and its end wakes the loop
}

// observe brings l.sight.seen up to date when something may have changed; false: the runtime does not answer, or has not yet.
func (l *loop) observe(now time.Time) bool {
	if l.sight.looking == nil {
		if l.sight.blind != nil && now.Before(l.sight.retryAt) {
			return false
		}
		if !l.sight.look && l.sight.blind == nil && now.Before(l.sight.at) && (l.steps.wake.IsZero() || now.Before(l.steps.wake)) {
			return true
		}
		return l.lookNow(now)
	}
	x := l.sight.looking
	if !x.over {
		if l.sight.blind == nil && now.Sub(x.begun) >= observeLimit+observeWait {
			l.unseen(now, fmt.Errorf("no answer for %v: %w", observeLimit, fault.ErrTemporary))
		}
		return false
	}
	l.sight.looking = nil
	if x.err == nil && x.ended != l.steps.ended {
		return l.lookNow(now) // a step ended meanwhile: what was seen may be older than that
	}
	return l.looked(now, x)
}

// lookNow asks the runtime and waits for a moment.
func (l *loop) lookNow(now time.Time) bool {
	x := &lookout{begun: now, ended: l.steps.ended}
	l.sight.look = false // what happens from now on asks for another look
	look := func(ctx context.Context) { x.seen, x.err = l.o.Runtime.Observe(ctx) }
	if l.briefly(observeLimit, look, func(*loop) { x.over = true }) { // else the next pass finds it
		return l.looked(now, x)
	}
	l.sight.looking = x
	return false
}

// looked takes in the end of a look.
func (l *loop) looked(now time.Time, x *lookout) bool {
	if x.err != nil {
		l.unseen(now, x.err)
		return false
	}
	if l.sight.blind != nil {
		l.log.Info("the runtime answers again")
		l.events.Emit(status.Event{Kind: status.EventRuntime})
	}
	l.sight.blind, l.sight.tries, l.sight.known = nil, 0, true
	l.noticed(l.sight.seen, x.seen)
	l.sight.seen, l.sight.at = x.seen, now.Add(cmp.Or(l.o.LookEvery, observeEvery))
	return true
}

// unseen notes that the runtime does not answer.
func (l *loop) unseen(now time.Time, err error) {
	if l.ctx.Err() == nil && l.sight.blind == nil {
		l.log.Error("the runtime does not answer; containers run on without supervision", "err", err)
		l.events.Emit(status.Event{Kind: status.EventRuntime, Code: codes.Runtime, Message: err.Error()})
	}
	l.sight.blind, l.sight.look = err, true
	l.sight.tries++
	l.sight.retryAt = now.Add(retry.Backoff(l.sight.tries, 500*time.Millisecond, 15*time.Second))
}
