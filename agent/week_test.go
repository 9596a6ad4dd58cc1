package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// answering takes reports as longshore-fleet does, or does not answer. Some answers are lost although the report was taken.
type answering struct {
	mu     sync.Mutex
	down   bool
	loses  int // every so many answers; 0: none
	taken  []store.Report
	repeat int // reports that came once more
}

func (e *answering) Deliver(_ context.Context, r store.Report) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return false, fmt.Errorf("connection refused: %w", fault.ErrTemporary)
	}
	if slices.ContainsFunc(e.taken, func(t store.Report) bool { return t.Sequence == r.Sequence }) {
		e.repeat++
		return false, nil
	}
	e.taken = append(e.taken, r)
	if e.loses > 0 && len(e.taken)%e.loses == 0 {
		return false, fmt.Errorf("connection reset: %w", fault.ErrTemporary)
	}
	return false, nil
}

func (e *answering) set(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = down
}

// states are what was told of a deployment, in the order in which it was taken.
func (e *answering) states(t *testing.T, deployment string) []string {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, r := range e.taken {
		if r.Kind != store.KindStatus || r.Subject != deployment {
			continue
		}
		s, err := margo.ParseDeploymentStatus("report", r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if x := fmt.Sprintf("%s@%d", s.Status.State, s.AdoptedManifestVersion); len(out) == 0 || out[len(out)-1] != x {
			out = append(out, x)
		}
	}
	return out
}

// The fleet endpoint is away for seven days, in which applications are updated, fail, are removed and come back, and the agent
// is restarted daily. Every transition that the device shows is delivered afterwards, in order, and each report counts once.
func TestSevenDaysWithoutTheEndpoint(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		e := &answering{loses: 7}
		w.Edit = func(o *agent.Options) { o.Reporter, o.ReportInterval = e, 5*time.Minute }
		line, press := anApp(1, "web:1"), anApp(2, "web:1")
		w.Publish(t, 1, line)
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Hour)
		e.set(true)

		// What each step makes of the applications, by the documented states.
		want := map[string]string{line.DeploymentID(): "pending@1 installing@1 installed@1"}
		expect := func(app agenttest.App, states string, generation uint64) {
			for _, state := range strings.Fields(states) {
				want[app.DeploymentID()] = strings.TrimSpace(fmt.Sprintf("%s %s@%d", want[app.DeploymentID()], state, generation))
			}
		}
		generation := uint64(1)
		step := func(apps ...agenttest.App) {
			generation++
			w.Publish(t, generation, apps...)
			w.Sync(t, r)
			time.Sleep(time.Hour)
		}
		for day := range 7 {
			image := fmt.Sprintf("web:%d", day%2+1)
			line, press = anApp(1, image), anApp(2, image)
			step(line, press)
			if day > 0 { // on the first day the image of line is the one that runs
				expect(line, "pending installing", generation)
			}
			expect(line, "installed", generation)
			expect(press, "pending installing installed", generation)
			if err := m.Exit(w.Observe(t)["app-1/web"].ID, 1); err != nil { // it has no restart policy
				t.Fatal(err)
			}
			expect(line, "failed", generation)
			time.Sleep(time.Hour)
			step(line)
			expect(line, "failed", generation)
			expect(press, "removing removed", generation)
			r.Stop(t)
			r = w.Start(t)
			time.Sleep(24*time.Hour - 3*time.Hour)
		}
		synctest.Wait()
		waiting := r.Status().Outbox
		if n := len(e.states(t, press.DeploymentID())); n != 0 || waiting.Depth < 50 || waiting.Lost != 0 {
			t.Fatalf("%d transitions were delivered during the outage, outbox %+v", n, waiting)
		}
		if age := time.Since(waiting.Oldest); age < 6*24*time.Hour {
			t.Errorf("the oldest report is of %v ago", age)
		}
		e.set(false)
		time.Sleep(time.Hour)
		synctest.Wait()

		if o := r.Status().Outbox; o.Depth != 0 || o.Lost != 0 {
			t.Errorf("outbox %+v", o)
		}
		for i := 1; i < len(e.taken); i++ {
			if e.taken[i].Kind == store.KindStatus && e.taken[i].Sequence < e.taken[i-1].Sequence {
				t.Errorf("report %d came after %d", e.taken[i].Sequence, e.taken[i-1].Sequence)
			}
		}
		if e.repeat == 0 {
			t.Error("no answer was lost: nothing shows that a report that comes twice counts once")
		}
		for id, states := range want {
			if got := strings.Join(e.states(t, id), " "); got != states {
				t.Errorf("the endpoint was told of %s\n%s, want\n%s", id, got, states)
			}
		}
		t.Logf("%d reports waited", waiting.Depth)
	})
}
