package agent

import (
	"cmp"
	"context"
	"time"
)

// Mender keeps right what other programs of the device can break behind the runtime's back: networks above all. It is
// called from one goroutine.
type Mender interface {
	// Mend looks and repairs. nil: all is as it should be now. Doing it again is no error.
	Mend(ctx context.Context) error
}

const (
	mendEvery = 30 * time.Second
	mendLimit = time.Minute // of one call
)

// mending calls the mender at the start, then again and again, and at once when the runtime's events were lost.
func (l *loop) mending() {
	if l.o.Mender == nil {
		return
	}
	for l.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(l.ctx, mendLimit)
		err := l.o.Mender.Mend(ctx)
		cancel()
		l.post(func(l *loop) { l.mended(err) })
		select {
		case <-l.ctx.Done():
		case <-l.mend:
		case <-time.After(cmp.Or(l.o.LookEvery, mendEvery)):
		}
	}
}

// mendNow ends the pause between two calls.
func (l *loop) mendNow() {
	select {
	case l.mend <- struct{}{}:
	default:
	}
}

// mended notes how the mender got on: one line when that changes.
func (l *loop) mended(err error) {
	switch {
	case l.ctx.Err() != nil:
	case err == nil && l.unmended != nil:
		l.log.Info("what containers need of the device is whole again")
		l.events.Emit(Event{Kind: EventRepaired, Message: "what containers need of the device is whole again"})
		l.unmended = nil
	case err != nil:
		if l.unmended == nil {
			l.log.Error("what containers need of the device is not whole; repairing it is tried again", "err", err)
			l.unmendedAt = l.o.Now()
		}
		l.unmended = err
	}
}
