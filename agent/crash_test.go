package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// slowStart is a runtime in which a start takes time, as containerd's does: first the ended task goes, so that the container
// looks as if it had never run, then the process begins, and ends while the start is not over.
type slowStart struct{ *runtimetest.Memory }

func (s slowStart) Start(ctx context.Context, p *workload.Project, c workload.Container) error {
	if err := s.Edit(c.ID, func(o *workload.Observation) {
		if o.Status == workload.Exited {
			o.Status, o.End, o.ExitCode, o.ExitedAt = workload.Created, "", 0, time.Time{}
		}
	}); err != nil {
		return err
	}
	time.Sleep(30 * time.Millisecond)
	err := s.Memory.Start(ctx, p, c)
	time.Sleep(30 * time.Millisecond)
	return err
}

// keeper is a runtime that does not remove the containers of an image.
type keeper struct {
	*runtimetest.Memory
	image string
}

func (k keeper) Remove(ctx context.Context, id string) error {
	o, err := k.Observe(ctx)
	if slices.ContainsFunc(o.Containers, func(c workload.Observation) bool { return c.ID == id && c.Image == k.image }) {
		return fault.ErrTemporary
	}
	return errors.Join(err, k.Memory.Remove(ctx, id))
}

// The old container of an update that fails may still be there when it is wanted again: that the agent has stopped it is no failure.
func TestARollbackStartsAgainWhatWasNotRemoved(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		old, broken := w.Image("web:1"), w.Image("web:2")
		m.Running = func(o workload.Observation) int {
			if strings.HasSuffix(o.Image, broken.Digest.String()) {
				return 7
			}
			return -1
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		r.Stop(t)
		before := w.Observe(t)["app-1/web"]
		if !strings.HasSuffix(before.Image, old.Digest.String()) {
			t.Fatalf("%+v runs", before)
		}
		w.Edit = func(o *agent.Options) { o.Runtime = keeper{m, before.Image} }
		r = w.Start(t)
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Sync(t, r)
		w.Wait(t, "the rollback", func() bool {
			o, err := m.Observe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			now := o.Containers[0]
			return len(o.Containers) == 1 && now.ID == before.ID && now.Run != before.Run && now.Status == workload.Running
		})
		w.Wait(t, "its report", func() bool {
			e := r.Status().Deployments[0].Error
			return e != nil && strings.Contains(e.Message, "; rolled back to generation 1")
		})
	})
}

// A container whose process ends before its start is over is started as often, and at such pauses, as its policy says.
func TestACrashAtOnceCountsOnce(t *testing.T) {
	for _, tc := range []struct {
		name, policy string
		within       time.Duration
		runs         int
	}{
		{"on-failure:1", "on-failure:1", 10 * time.Minute, 2},
		{"on-failure:4", "on-failure:4", 10 * time.Minute, 5},
		{"no", `"no"`, 10 * time.Minute, 1},
		{"always", "always", 6 * time.Second, 6}, // pauses of 0.1, 0.2, 0.4, 0.8, 1.6 and 3.2 s
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				m.Running = func(workload.Observation) int { return 7 }
				w.Edit = func(o *agent.Options) { o.Runtime = slowStart{m} }
				w.Publish(t, 1, agenttest.App{ID: 1, Name: "app", Components: []agenttest.Comp{{
					Name: "app", Services: []agenttest.Service{{Name: "web", Image: "web:1", Extra: "    restart: " + tc.policy + "\n"}},
				}}})
				r := w.Start(t)
				time.Sleep(tc.within)
				runs := 0
				for _, c := range m.Calls() {
					if strings.HasPrefix(c, "start ") {
						runs++
					}
				}
				if runs != tc.runs {
					t.Errorf("it ran %d times in %v, want %d", runs, tc.within, tc.runs)
				}
				if got := r.Containers()[0].Restarts; got != runs-1 {
					t.Errorf("%d restarts are told after %d runs", got, runs)
				}
				kinds := map[status.EventKind]int{}
				if err := r.Events(t.Context(), status.EventRequest{}, func(e status.Event) error { kinds[e.Kind]++; return nil }); err != nil {
					t.Fatal(err)
				}
				if kinds[status.EventStarted] != 1 || kinds[status.EventRestarted] != runs-1 || kinds[status.EventExited] != runs {
					t.Errorf("events of %d runs: %v", runs, kinds)
				}
			})
		})
	}
}
