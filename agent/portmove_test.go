package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// onePort is a runtime in which every published port is the same, and held while a container of its project exists, as the networks hold it.
type onePort struct {
	*runtimetest.Memory
	holder string // project
}

func (r *onePort) Prepare(ctx context.Context, p *workload.Project) error {
	if len(p.Services[0].Ports) > 0 {
		have, err := r.Observe(ctx)
		if err != nil {
			return err
		}
		if r.holder != p.Name && slices.ContainsFunc(have.Containers, func(c workload.Observation) bool { return c.Project == r.holder }) {
			return fmt.Errorf("port 8080/tcp is held by %s: %w", r.holder, fault.ErrConflict)
		}
		r.holder = p.Name
	}
	return r.Memory.Prepare(ctx, p)
}

// TestAPortMovesToAnotherApplication: the container that holds the port takes its time to stop, which is no failure of the update that waits.
func TestAPortMovesToAnotherApplication(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Env.Runtime = func(*testing.T) agent.Runtime { return &onePort{Memory: m} }
		m.Stopping = time.Minute
		publishing := func(a agenttest.App) agenttest.App {
			a.Components[0].Services[0].Extra = "    ports: [\"8080:80\"]\n"
			return a
		}
		second := anApp(2, "web:2")
		w.Publish(t, 1, publishing(anApp(1, "web:1")), second)
		r := w.Start(t)
		w.Sync(t, r)
		w.Publish(t, 2, publishing(anApp(2, "web:3")))
		w.Sync(t, r)
		time.Sleep(10 * time.Minute)
		if s := r.Status(); s.Committed.Generation != 2 {
			t.Errorf("generation %d is committed, problems %+v", s.Committed.Generation, s.Problems)
		}
		if states := strings.Join(w.States(t, second.DeploymentID()), " "); strings.Contains(states, "failed") {
			t.Errorf("states %s", states)
		}
		if got := w.Observe(t)["app-2/web"].Image; !strings.HasSuffix(got, digest.FromString("web:3").String()) {
			t.Errorf("image %s", got)
		}
	})
}
