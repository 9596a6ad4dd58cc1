package agent

import (
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// windows are what the site's windows say, as of the last pass. It is part of the loop.
type windows struct {
	closed, clockUnknown bool      // of changes
	at                   time.Time // when one of them opens or closes; zero: never, as far as can be seen
}

// windowAt is when windows open next, seen from a time of the device's clock, and when they close then; opens is now itself when they
// are open. They go by the time that is believed, which is later than the clock where that is known to be behind.
func (a *Agent) windowAt(w schedule.Windows, now time.Time) (opens, closes time.Time) {
	believed := a.clock.Now().Add(now.Sub(a.o.Now()))
	opens, closes = w.Next(believed)
	if !opens.IsZero() {
		opens = now.Add(opens.Sub(believed))
	}
	if !closes.IsZero() {
		closes = now.Add(closes.Sub(believed))
	}
	return opens, closes
}

// downtime reports whether it is declared that nothing can be reached now, and until when; zero: no end is in sight.
func (a *Agent) downtime(now time.Time) (until time.Time, down bool) {
	if a.o.Downtime.Always() { // none is declared
		return time.Time{}, false
	}
	opens, closes := a.windowAt(a.o.Downtime, now)
	return closes, opens.Equal(now)
}

// changeWindow is [Options.ChangeWindow] by [Options.Changes].
func (a *Agent) changeWindow(now time.Time) (closed, clockUnknown bool, opens time.Time) {
	if a.clock.Doubt() != nil && !a.o.ChangesClockUnknown {
		return true, true, time.Time{}
	}
	opens, _ = a.windowAt(a.o.Changes, now)
	return !opens.Equal(now), false, opens
}

// inPollWindow is the first time from at on at which the source may be asked; zero: never.
func (l *loop) inPollWindow(at time.Time) time.Time {
	if l.o.PollWindows.Always() || at.IsZero() {
		return at
	}
	from := at
	if now := l.o.Now(); at.Before(now) {
		from = now
	}
	if opens, _ := l.windowAt(l.o.PollWindows, from); !opens.Equal(from) {
		return opens
	}
	return at
}

// lookAtWindows notes when the windows change next, and has the gate look again when that of changes did: also by a clock that was set.
func (l *loop) lookAtWindows(now time.Time) {
	w := &l.windows
	w.at = time.Time{}
	for _, x := range []schedule.Windows{l.o.Changes, l.o.PollWindows, l.o.Downtime} {
		if x.Always() {
			continue
		}
		opens, closes := l.windowAt(x, now)
		if opens.Equal(now) {
			opens = closes
		}
		if !opens.IsZero() && (w.at.IsZero() || opens.Before(w.at)) {
			w.at = opens
		}
	}
	if l.o.ChangeWindow == nil {
		return
	}
	closed, unknown, _ := l.o.ChangeWindow(now)
	if closed != w.closed || unknown != w.clockUnknown {
		w.closed, w.clockUnknown = closed, unknown
		l.gate.built = -1
	}
}

// windowStatus is what windows say now; nil: there are none.
func (l *loop) windowStatus(w schedule.Windows, now time.Time) *status.Window {
	if w.Always() {
		return nil
	}
	out := &status.Window{Windows: w.Strings()}
	opens, closes := l.windowAt(w, now)
	if out.Open = opens.Equal(now); out.Open {
		opens = closes
	}
	out.Until = opens.UTC()
	if opens.IsZero() {
		out.Until = time.Time{}
	}
	return out
}

// showWindows completes a status.
func (l *loop) showWindows(now time.Time, s *status.Status) {
	s.PollWindow, s.ChangeWindow = l.windowStatus(l.o.PollWindows, now), l.windowStatus(l.o.Changes, now)
	if c := s.ChangeWindow; c != nil && l.windows.clockUnknown {
		c.Open, c.ClockUnknown, c.Until = false, true, time.Time{}
	}
	if d := l.windowStatus(l.o.Downtime, now); d != nil && d.Open {
		s.Downtime = d
	}
}

// communication reports whether a code says that something could not be reached, which is no error in a declared downtime.
func communication(c codes.Code) bool {
	switch c {
	case codes.SourceUnreachable, codes.TrustUnreachable, codes.FleetUnreachable, codes.PullStalled:
		return true
	}
	return false
}

// excused reports whether an error is expected now, by a declared downtime.
func (a *Agent) excused(now time.Time, err error) bool {
	if err == nil || !communication(codes.Of(err)) {
		return false
	}
	_, down := a.downtime(now)
	return down
}
