package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
)

// offer publishes a state with windows; "": without.
func offer(t *testing.T, w *agenttest.World, generation uint64, list string, apps ...agenttest.App) {
	t.Helper()
	w.Verifier.Sign(w.Offer(t, w.State(t, generation, func(o *artifacts.StateOptions) {
		if list != "" {
			o.Windows = windows(t, list)
		}
	}, apps...)))
}

// at waits until an hour of the first day.
func at(hour, minute int) {
	time.Sleep(time.Until(time.Date(2000, 1, 1, hour, minute, 0, 0, time.UTC)))
}

const (
	from3To5 = `[{hours: "03:00-05:00", zone: UTC}]`
	from4To6 = `[{hours: "04:00-06:00", zone: UTC}]`
)

// The windows of the accepted state hold its changes back, also after a restart; those of the next state are others.
func TestWindowsOfTheState(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) { // it is midnight
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		w.Committed(t, b.r, 1)
		offer(t, w, 2, from3To5, anApp(1, "web:2"))
		b.waiting("app-1", codes.OutsideWindow)
		s := b.r.Status()
		if c := s.ChangeWindow; s.Phase != status.Phase(store.PhaseAwaitingWindow) || c == nil || c.Open || !c.Until.Equal(time.Date(2000, 1, 1, 3, 0, 0, 0, time.UTC)) ||
			fmt.Sprint(c.Sources) != "[{state 2 [every day 03:00-05:00 (UTC)]}]" {
			t.Errorf("%s, window %+v", s.Phase, c)
		}
		b.restart()
		b.waiting("app-1", codes.OutsideWindow)
		at(2, 59)
		if !b.runs("web:1") {
			t.Error("it was changed outside of the window")
		}
		at(3, 1)
		w.Committed(t, b.r, 2)
		at(5, 1)
		offer(t, w, 3, from4To6, anApp(1, "web:3"))
		w.Committed(t, b.r, 3)
		at(7, 0)
		offer(t, w, 4, from4To6, anApp(1, "web:1"))
		b.waiting("app-1", codes.OutsideWindow)
		offer(t, w, 5, "", anApp(1, "web:2")) // and at any time
		w.Committed(t, b.r, 5)
		if s := b.r.Status(); s.ChangeWindow != nil {
			t.Errorf("windows of nobody: %+v", s.ChangeWindow)
		}
		if n := w.Extra(t).Waiting; len(n) > 0 {
			t.Errorf("it is reported to wait: %+v", n)
		}
	})
}

// The owner's windows and the state's must both be open: neither opens a time that the other closes.
func TestWindowsOfOwnerAndState(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Changes = windows(t, from3To5) }
		b := &bench{t, w, m, w.Start(t)}
		at(3, 0)
		offer(t, w, 1, from4To6, anApp(1, "web:1"))
		w.Wait(t, "it waits", func() bool { return b.r.Status().Phase == status.Phase(store.PhaseAwaitingWindow) })
		if c := b.r.Status().ChangeWindow; !c.Until.Equal(time.Date(2000, 1, 1, 4, 0, 0, 0, time.UTC)) ||
			fmt.Sprint(c.Sources) != "[{agent.yaml 0 [every day 03:00-05:00 (UTC)]} {state 1 [every day 04:00-06:00 (UTC)]}]" {
			t.Errorf("window %+v", c)
		}
		at(4, 1)
		w.Committed(t, b.r, 1)
		at(5, 1) // the owner's has closed
		offer(t, w, 2, from4To6, anApp(1, "web:2"))
		b.waiting("app-1", codes.OutsideWindow)
		offer(t, w, 3, `[{hours: "10:00-11:00", zone: UTC}]`, anApp(1, "web:2")) // never open together
		time.Sleep(48 * time.Hour)
		c := b.waiting("app-1", codes.OutsideWindow)
		if s := b.r.Status(); !c.Waiting.Until.IsZero() || s.ChangeWindow.Open || !s.ChangeWindow.Until.IsZero() || !b.runs("web:1") {
			t.Errorf("it waits %+v, window %+v", c.Waiting, s.ChangeWindow)
		}
	})
}

// A change that has begun is completed, whatever windows come meanwhile.
func TestWindowsComeDuringAChange(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Probation = 10 * time.Minute }
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		b.reaches(store.PhaseProbation, 1)
		time.Sleep(11 * time.Minute)
		w.Committed(t, b.r, 1)
		w.Publish(t, 2, anApp(1, "web:2"))
		b.reaches(store.PhaseProbation, 2)
		began := w.Observe(t)["app-1/web"].StartedAt
		offer(t, w, 3, from3To5, anApp(1, "web:3"))
		if p := b.reaches(store.PhaseStaged, 3); !strings.Contains(p.Message, "generation 2") {
			t.Errorf("it says %q", p.Message)
		}
		b.restart()
		b.reaches(store.PhaseStaged, 3)
		time.Sleep(11 * time.Minute)
		b.reaches(store.PhaseAwaitingWindow, 3)
		if c := w.Observe(t)["app-1/web"]; !b.runs("web:2") || b.runs("web:1") || !c.StartedAt.Equal(began) {
			t.Errorf("it was started at %v, and again at %v", began, c.StartedAt)
		}
		at(3, 1)
		b.reaches(store.PhaseProbation, 3)
	})
}

// A change that had begun, gave way to a state without windows, and comes again, waits as any other.
func TestTheSameChangeComesAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Probation = 10 * time.Minute }
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		at(3, 0)
		w.Committed(t, b.r, 1)
		offer(t, w, 2, from3To5, anApp(1, "web:2"))
		b.reaches(store.PhaseProbation, 2)
		w.Publish(t, 3, anApp(1, "web:1"))
		w.Wait(t, "the revision before runs again", func() bool { return b.runs("web:1") && !b.runs("web:2") })
		at(5, 1)
		offer(t, w, 4, from3To5, anApp(1, "web:2"))
		b.reaches(store.PhaseAwaitingWindow, 4)
		b.restart()
		time.Sleep(time.Hour)
		if !b.runs("web:1") || b.runs("web:2") {
			t.Error("it was changed outside of the window")
		}
	})
}

// A failed update goes back at once, also when its window has closed meanwhile.
func TestRollbackOutsideOfTheStatesWindow(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Probation = 10 * time.Minute }
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		at(4, 55)
		w.Committed(t, b.r, 1)
		offer(t, w, 2, from3To5, anApp(1, "web:2"))
		b.reaches(store.PhaseProbation, 2)
		at(5, 1)
		if b.r.Status().ChangeWindow.Open {
			t.Fatal("the window is open")
		}
		if err := m.Exit(w.Observe(t)["app-1/web"].ID, 3); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "it goes back", func() bool { return b.runs("web:1") })
	})
}

// Nobody knows what time it is: the state's windows are closed, as the owner's.
func TestWindowsOfTheStateOfAClockInDoubt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		c := clock.New(w.Now, func() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) })
		c.Hint("the registry", time.Now().Add(30*24*time.Hour))
		w.Edit = func(o *agent.Options) { o.Clock = c }
		b := &bench{t, w, m, w.Start(t)}
		offer(t, w, 1, `[{hours: "00:00-12:00", zone: UTC}]`, anApp(1, "web:1"))
		time.Sleep(3 * time.Hour)
		if s := b.r.Status(); s.Phase != status.Phase(store.PhaseAwaitingWindow) || s.ChangeWindow.Open || !s.ChangeWindow.ClockUnknown {
			t.Errorf("%s, window %+v", s.Phase, s.ChangeWindow)
		}
		c.Hint("the registry", time.Time{})
		time.Sleep(5 * time.Minute)
		w.Committed(t, b.r, 1)
	})
}

// Who rejected a change rejected it: also when the next state has no windows any more.
func TestRejectionOutlastsWindows(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		w.Committed(t, b.r, 1)
		offer(t, w, 2, from3To5, anApp(1, "web:2"))
		if err := b.decide(b.waiting("app-1", codes.OutsideWindow), store.Rejected, "the shift", time.Time{}); err != nil {
			t.Fatal(err)
		}
		offer(t, w, 3, "", anApp(1, "web:2"), anApp(2, "other:1"))
		w.Wait(t, "the other runs", func() bool { return b.runs("other:1") })
		b.restart()
		time.Sleep(time.Hour)
		c := b.waiting("app-1", codes.ChangeRejected)
		if !b.runs("web:1") {
			t.Error("what was rejected was made")
		}
		if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		w.Committed(t, b.r, 3)
	})
}

// A generation of which one change is made and another waits is the running one.
func TestRunningInPart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Approvals = updates }
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "other:1"))
		w.Committed(t, b.r, 1)
		w.Publish(t, 2, anApp(1, "web:2"), anApp(2, "other:2"))
		c := b.waiting("app-1", codes.ApprovalNeeded)
		if r := b.r.Status().Running; r == nil || r.Generation != 1 {
			t.Errorf("before the approval %+v runs", r)
		}
		if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "one change is made", func() bool { return b.runs("web:2") && b.r.Status().Progress != nil })
		time.Sleep(time.Hour)
		b.waiting("app-2", codes.ApprovalNeeded)
		b.restart()
		b.waiting("app-2", codes.ApprovalNeeded)
		if r := b.r.Status().Running; r == nil || r.Generation != 2 || !b.runs("other:1") {
			t.Errorf("with one change made %+v runs", r)
		}
	})
}
