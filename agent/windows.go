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

	list    string            // of the accepted state, as it was written; "": it has none
	state   schedule.Windows  // the same
	changes *schedule.Outlook // of the device's owner and the accepted state: all must be open; nil: not looked at yet
}

// changeWindows are the windows for changes of the device's owner and of the accepted state: all must be open.
func (l *loop) changeWindows() *schedule.Outlook {
	w, list := &l.windows, ""
	if l.accepted != nil {
		list = l.accepted.Windows
	}
	if w.changes != nil && w.list == list {
		return w.changes
	}
	w.list, w.state = list, schedule.Windows{}
	if list != "" {
		var err error
		if w.state, err = schedule.ParseJSON("windows", []byte(list)); err != nil { // they were read when it was accepted
			l.log.Error("the accepted state's windows for changes cannot be read; nothing is changed", "generation", l.accepted.Generation, "err", err)
		}
	}
	w.changes = &schedule.Outlook{Windows: schedule.All(l.o.Changes, w.state)}
	return w.changes
}

// hasChangeWindow reports whether there are times at which changes are not made.
func (l *loop) hasChangeWindow() bool { return l.o.ChangeWindow != nil || !l.changeWindows().Always() }

// downtime reports whether it is declared that nothing can be reached now, and until when; zero: no end is in sight.
func (a *Agent) downtime(now time.Time) (until time.Time, down bool) {
	if a.o.Downtime.Always() { // none is declared
		return time.Time{}, false
	}
	opens, closes := a.windowTimes.Next(a.o.Downtime, now)
	return closes, opens.Equal(now)
}

// changeWindow is as [Options.ChangeWindow].
func (l *loop) changeWindow(now time.Time) (closed, clockUnknown bool, opens time.Time) {
	if l.o.ChangeWindow != nil {
		return l.o.ChangeWindow(now)
	}
	if l.clock.Doubt() != nil && !l.o.ChangesClockUnknown {
		return true, true, time.Time{}
	}
	opens, _ = l.windowTimes.Next(l.changeWindows(), now)
	return !opens.Equal(now), false, opens
}

// lookAtWindows notes when the windows change next, and has the gate look again when that of changes did: also by a clock that was set.
func (l *loop) lookAtWindows(now time.Time) {
	w := &l.windows
	w.at = l.windowTimes.Change(now, l.changeWindows(), l.o.PollWindows, l.o.Downtime)
	closed, unknown := false, false
	if l.hasChangeWindow() {
		closed, unknown, _ = l.changeWindow(now)
	}
	if closed != w.closed || unknown != w.clockUnknown {
		w.closed, w.clockUnknown = closed, unknown
		l.gate.built = -1
	}
}

func (l *loop) showWindows(now time.Time, s *status.Status) {
	s.PollWindow, s.ChangeWindow = l.windowTimes.Status(l.o.PollWindows, now), l.windowTimes.Status(l.changeWindows(), now)
	if c := s.ChangeWindow; c != nil {
		if own := l.o.Changes.Strings(); len(own) > 0 {
			c.Sources = append(c.Sources, status.WindowSource{From: status.WindowsOfOwner, Windows: own})
		}
		if given := l.windows.state.Strings(); len(given) > 0 {
			c.Sources = append(c.Sources, status.WindowSource{From: status.WindowsOfState, Generation: l.accepted.Generation, Windows: given})
		}
		if l.windows.clockUnknown {
			c.Open, c.ClockUnknown, c.Until = false, true, time.Time{}
		}
	}
	if d := l.windowTimes.Status(l.o.Downtime, now); d != nil && d.Open {
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
