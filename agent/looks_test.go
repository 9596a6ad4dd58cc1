package agent_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
)

// looks counts how often a runtime is asked what runs: in all, when a stop ended, and when a start began.
type looks struct {
	*runtimetest.Memory
	all, stopped, started atomic.Int64
}

func (r *looks) Observe(ctx context.Context) (workload.Observed, error) {
	r.all.Add(1)
	return r.Memory.Observe(ctx)
}

func (r *looks) Stop(ctx context.Context, id string) error {
	err := r.Memory.Stop(ctx, id)
	r.stopped.Store(r.all.Load())
	return err
}

func (r *looks) Start(ctx context.Context, p *workload.Project, c workload.Container) error {
	r.started.Store(r.all.Load())
	return r.Memory.Start(ctx, p, c)
}

// Nothing runs in a stop-first update until the new container starts: what the end of the old one changes is known without a look at the runtime,
// also when its exit is an event.
func TestNoLookBetweenStopAndStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		rt := &looks{Memory: m}
		w.Edit = func(o *agent.Options) { o.Runtime = rt }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Sync(t, r)
		w.Committed(t, r, 2)
		if stopped, started := rt.stopped.Load(), rt.started.Load(); stopped == 0 || started != stopped {
			t.Errorf("%d looks between the stop and the start, want none", started-stopped)
		}
		if all := w.Observe(t); len(all) != 1 || all["app-1/web"].Status != workload.Running {
			t.Errorf("runs %+v", all)
		}
	})
}
