package agent_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// What a release or a newer state brings after a rollback by hand waits for a decision, at whatever moment of the way back it comes: also what
// the rollback takes off the device.
func TestReleaseBeforeTheRollbackIsComplete(t *testing.T) {
	release := func(t *testing.T, b *bench) uint64 {
		if _, err := b.r.Release(t.Context(), "root", "command"); err != nil {
			t.Fatal(err)
		}
		return 2
	}
	newer := func(t *testing.T, b *bench) uint64 {
		b.w.Publish(t, 3, anApp(1, "web:3"), anApp(2, "broker:1"))
		b.w.Sync(t, b.r)
		return 3
	}
	for _, x := range []struct {
		name  string
		pause time.Duration // before it
		then  func(t *testing.T, b *bench) uint64
		again bool // the agent starts again before and after it
	}{
		{"released at once", 0, release, false},
		{"released at once, and the agent starts again", 0, release, true},
		{"released during the way back", 90 * time.Second, release, false},
		{"released during the way back, and the agent starts again", 90 * time.Second, release, true},
		{"released after the way back", 30 * time.Minute, release, false},
		{"a newer state at once", 0, newer, false},
		{"a newer state during the way back", 90 * time.Second, newer, false},
		{"a newer state during the way back, and the agent starts again", 90 * time.Second, newer, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				m.Stopping = time.Minute
				b := &bench{t, w, m, w.Start(t)}
				w.Publish(t, 1, anApp(1, "web:1"))
				w.Committed(t, b.r, 1)
				w.Publish(t, 2, anApp(1, "web:2"), anApp(2, "broker:1"))
				w.Committed(t, b.r, 2)
				w.Edit = func(o *agent.Options) { o.Approvals = approval.Policy{Kinds: []plan.Kind{plan.Install, plan.Images}} }
				b.restart()
				w.Committed(t, b.r, 2)
				before := w.Observe(t)
				if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(x.pause)
				if x.again {
					b.restart()
				}
				generation := x.then(t, b)
				if x.again {
					b.restart()
				}
				b.waiting("app-1", codes.ApprovalNeeded)
				b.waiting("app-2", codes.ApprovalNeeded)
				w.Wait(t, "generation 1 runs, and nothing else", func() bool { return b.runs("web:1") && len(w.Observe(t)) == 1 })
				time.Sleep(time.Hour)
				if s := b.r.Status(); !b.runs("web:1") || len(w.Observe(t)) != 1 || s.Hold != nil || s.Accepted.Generation != generation ||
					s.Running.Generation != 1 || s.Committed.Generation != 1 || s.Phase != status.Phase(store.PhaseAwaitingApproval) {
					t.Errorf("an hour later: phase %s, accepted %+v, running %+v, committed %+v", s.Phase, s.Accepted, s.Running, s.Committed)
				}
				want := []string{"ana rolled back to generation 1", "root released to generation 2"}
				if generation == 3 {
					want = want[:1]
				}
				for i, d := range b.w.Extra(t).Decisions {
					if i >= len(want) || !strings.HasSuffix(d.String(), "Z: "+want[i]) || d.Digest == "" {
						t.Errorf("reported decision %d: %s, want %v", i+1, d, want)
					}
				}
				if n := len(b.w.Extra(t).Decisions); n != len(want) {
					t.Errorf("%d decisions are reported, want %d", n, len(want))
				}
				untouched(t, m, before, x.again)
				for _, app := range []string{"app-1", "app-2"} {
					if err := b.decide(b.waiting(app, codes.ApprovalNeeded), store.Approved, "", time.Time{}); err != nil {
						t.Fatal(err)
					}
				}
				w.Committed(t, b.r, generation)
				if !b.runs(fmt.Sprint("web:", generation)) || !b.runs("broker:1") || b.runs("web:1") {
					t.Errorf("generation %d does not run: %+v", generation, w.Observe(t))
				}
			})
		})
	}
}

// A device whose record of a rollback by hand is damaged stays at the generation that was chosen, and says why, until it is released.
func TestADamagedHoldHolds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		b := &bench{t, w, m, w.Start(t)}
		for i, image := range []string{"web:1", "web:2"} {
			w.Publish(t, uint64(i+1), anApp(1, image))
			w.Committed(t, b.r, uint64(i+1))
		}
		if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "generation 1", func() bool { return b.runs("web:1") })
		b.r.Stop(t)
		breakRecord(t, w, `{"generation":1,"state":`)
		b.r = w.Start(t)
		time.Sleep(time.Hour)
		s := b.r.Status()
		if !b.runs("web:1") || b.runs("web:2") || s.Hold == nil || s.Hold.Generation != 1 || !strings.Contains(s.Hold.Reason, "damaged") || !hasProblem(s, codes.Held) {
			t.Errorf("an hour later: hold %+v, problems %+v, containers %+v", s.Hold, s.Problems, w.Observe(t))
		}
		if _, err := b.r.Release(t.Context(), "root", "command"); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "generation 2", func() bool { return b.runs("web:2") })
	})
}

// untouched wants none of some containers to have been started a second time.
func untouched(t *testing.T, m *runtimetest.Memory, before map[string]workload.Observation, again bool) {
	t.Helper()
	calls := m.Calls()
	for name, o := range before {
		n := 0
		for _, c := range calls {
			if c == "start "+o.ID {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s was started %d times (the agent was restarted: %t): %v", name, n, again, calls[max(0, len(calls)-20):])
		}
	}
}

// Without approvals a release that comes early is an update like any other: it is complete when generation 2 runs.
func TestReleaseWithoutApprovals(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		m.Stopping = time.Minute
		b := &bench{t, w, m, w.Start(t)}
		for g := uint64(1); g < 3; g++ {
			w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
			w.Committed(t, b.r, g)
		}
		if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * time.Second)
		if _, err := b.r.Release(t.Context(), "ana", "command"); err != nil {
			t.Fatal(err)
		}
		w.Committed(t, b.r, 2)
		if !b.runs("web:2") || b.runs("web:1") {
			t.Errorf("it is committed, and %+v runs", w.Observe(t))
		}
	})
}

// A revision that fails after a rollback to it by hand stays: the device does not apply the newer revision without an approval.
func TestRollbackByHandThatFails(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var broken atomic.Bool
		m.Running = func(o workload.Observation) int {
			if broken.Load() && strings.HasSuffix(o.Image, w.Image("web:1").Digest.String()) {
				return 3
			}
			return -1
		}
		b := &bench{t, w, m, w.Start(t)}
		for g := uint64(1); g < 3; g++ {
			w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
			w.Committed(t, b.r, g)
		}
		broken.Store(true)
		if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		s := b.r.Status()
		if b.runs("web:2") || s.Hold == nil || len(s.Deployments) != 1 || s.Deployments[0].Error == nil || s.Deployments[0].Error.Code != string(codes.ContainerExited) {
			t.Errorf("an hour later: hold %+v, deployments %+v", s.Hold, s.Deployments)
		}
		if _, err := b.r.Release(t.Context(), "ana", "command"); err != nil {
			t.Fatal(err)
		}
		w.Committed(t, b.r, 2)
	})
}

// What the agent itself stopped on the way back has not failed: it starts again when it is wanted again.
func TestReleaseWhatTheRollbackStops(t *testing.T) {
	for _, pause := range []time.Duration{0, 30 * time.Second, 59 * time.Second, 61 * time.Second, 90 * time.Second} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v %v", pause, again), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
					m.Stopping = time.Minute
					b := &bench{t, w, m, w.Start(t)}
					for g := uint64(1); g <= 2; g++ {
						w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
						w.Committed(t, b.r, g)
					}
					if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(pause)
					if again {
						b.restart()
					}
					if _, err := b.r.Release(t.Context(), "ana", "command"); err != nil {
						t.Fatal(err)
					}
					if again {
						b.restart()
					}
					time.Sleep(time.Hour)
					if s := b.r.Status(); !b.runs("web:2") || s.Committed.Generation != 2 || len(s.Problems) > 0 {
						t.Errorf("web:2 runs: %v, committed %+v, problems %+v", b.runs("web:2"), s.Committed, s.Problems)
					}
				})
			})
		}
	}
}
