package agent_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// stuck is the one thing of a device that goes no further.
type stuck struct{ at atomic.Value }

// in hangs while the device is stuck there.
func (s *stuck) in(ctx context.Context, where string) {
	for s.at.Load() == where && ctx.Err() == nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// Each phase is reached by a device that does all that a device does, is in its database, in its status as the socket tells it and in its
// reports, and is so again after the agent has ended there.
func TestEveryPhase(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var s stuck
		var open, full atomic.Bool
		var db *store.Store
		s.at.Store("")
		open.Store(true)
		w.Prepare = func(st *store.Store) { db = st }
		w.Edit = func(o *agent.Options) {
			o.Approvals, o.Probation, o.ReportInterval = updates, 3*time.Minute, time.Second
			o.Source = slowSource{o.Source, func(ctx context.Context) { s.in(ctx, "resolving") }}
			o.Verifier = slowVerifier{o.Verifier, func(ctx context.Context) { s.in(ctx, "verifying") }}
			o.ChangeWindow = func(now time.Time) (bool, bool, time.Time) { return !open.Load(), false, now.Add(time.Minute) }
		}
		m.Pulling = func(ctx context.Context, _ workload.Image, progress func(done, total int64)) error {
			if s.at.Load() == "pulling" {
				progress(30, 100)
				s.in(ctx, "pulling")
			}
			return ctx.Err()
		}
		m.Starting = func(ctx context.Context, o workload.Observation, _ bool) error {
			if strings.HasSuffix(o.Image, w.Image("web:2").Digest.String()) {
				s.in(ctx, "starting web:2")
			}
			return ctx.Err()
		}
		m.Running = func(o workload.Observation) int {
			if strings.HasSuffix(o.Image, w.Image("crash:1").Digest.String()) {
				s.at.Store("starting web:2") // the way back takes a while
				return 3
			}
			return -1
		}
		m.Admitting = func([]*workload.Project) error {
			if !full.Load() {
				return nil
			}
			return workload.Conflicts{{Deployment: anApp(1, "").DeploymentID(), Component: "app-1", Path: "services.web.ports", Reason: context.DeadlineExceeded}}
		}
		app := func(image string) agenttest.App {
			a := anApp(1, image)
			a.Components[0].Compose = "services:\n  web:\n    image: " + w.Image(image).Reference + "\n    volumes: [\"update-lock:/lock\"]\nvolumes: {update-lock: {}}\n"
			a.Components[0].Services = []agenttest.Service{{Name: "web", Image: image}}
			return a
		}
		lock := func(text string) {
			if err := m.Write(app("").Project("app-1")+"/"+approval.LockVolume, text); err != nil {
				t.Fatal(err)
			}
		}
		b := &bench{t, w, m, w.Start(t)}
		approve := func(c codes.Code) {
			if err := b.decide(b.waiting("app-1", c), store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		w.Publish(t, 1, app("web:1"))
		for _, step := range []struct {
			phase      store.Phase
			generation uint64
			do         func()
		}{
			{store.PhaseCommitted, 1, func() {}},
			{store.PhaseResolved, 0, func() { s.at.Store("resolving"); w.Publish(t, 2, app("web:2")) }},
			{store.PhaseVerifying, 0, func() { s.at.Store("verifying") }},
			{store.PhaseDownloading, 2, func() { s.at.Store("pulling") }},
			{store.PhaseAwaitingApproval, 2, func() { s.at.Store("") }},
			{store.PhaseAwaitingLock, 2, func() { lock(`{"expires": "2100-01-01T00:00:00Z"}`); approve(codes.ApprovalNeeded) }},
			{store.PhaseAwaitingWindow, 2, func() { open.Store(false); lock("") }},
			{store.PhaseApplying, 2, func() { s.at.Store("starting web:2"); open.Store(true) }},
			{store.PhaseProbation, 2, func() { s.at.Store("") }},
			{store.PhaseStaged, 3, func() { w.Publish(t, 3, app("web:3")) }}, // what has begun is finished first
			{store.PhaseCommitted, 4, func() { w.Publish(t, 4, app("web:2")) }},
			{store.PhaseRollingBack, 5, func() { w.Publish(t, 5, app("crash:1")); approve(codes.ApprovalNeeded) }},
			{store.PhaseRolledBack, 5, func() { s.at.Store("") }},
			{store.PhaseFailed, 6, func() { full.Store(true); w.Publish(t, 6, app("web:6")); approve(codes.ApprovalNeeded) }},
		} {
			t.Logf("%s of generation %d", step.phase, step.generation)
			step.do()
			b.reaches(step.phase, step.generation)
			time.Sleep(20 * time.Second)
			since := b.known(db, step.phase, step.generation)
			b.restart()
			time.Sleep(20 * time.Second)
			if again := b.known(db, step.phase, step.generation); !again.Equal(since) && !step.phase.Found() {
				t.Errorf("after a restart it is %s since %v, before since %v", step.phase, again, since)
			}
		}
		superseded := func(what string, p store.Progress) {
			if !slices.ContainsFunc(p.History, func(o store.Outcome) bool { return o.Generation == 2 && o.Outcome == store.PhaseSuperseded }) {
				t.Errorf("%s: generation 2 is not superseded: %+v", what, p.History)
			}
		}
		superseded("database", *b.kept(db))
		superseded("status", b.r.Status().Progress.Progress)
		superseded("report", w.Extra(t).Progress.Progress)
	})
}

// longCheck starts a device whose check of generation 2 lasts until the device is not stuck any more, after a change of its options.
func longCheck(t *testing.T, w *agenttest.World, m *runtimetest.Memory, s *stuck, change func(*agent.Options)) *bench {
	s.at.Store("")
	w.Edit = func(o *agent.Options) {
		change(o)
		o.Verifier = slowVerifier{o.Verifier, func(ctx context.Context) { s.in(ctx, "verifying") }}
	}
	b := &bench{t, w, m, w.Start(t)}
	w.Publish(t, 1, anApp(1, "web:1"))
	b.reaches(store.PhaseCommitted, 1)
	s.at.Store("verifying")
	w.Publish(t, 2, anApp(1, "web:2"))
	b.reaches(store.PhaseVerifying, 0)
	return b
}

// A check that lasts longer than 10 s does not stop the loop of a device without a fleet endpoint.
func TestALongCheckWithoutAnEndpoint(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var s stuck
		b := longCheck(t, w, m, &s, func(o *agent.Options) { o.Reporter = nil })
		time.Sleep(30 * time.Second)
		s.at.Store("")
		b.reaches(store.PhaseCommitted, 2)
	})
}

// A runtime that does not answer while a check lasts does not make the loop spin.
func TestALongCheckBesideARuntimeThatHangs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var s stuck
		var reads atomic.Int64 // of the clock
		rt := &slow{Memory: m}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return rt }
		b := longCheck(t, w, m, &s, func(o *agent.Options) {
			now := o.Now
			o.Now = func() time.Time { reads.Add(1); return now() }
		})
		free := make(chan struct{})
		rt.held.Store(&free)
		o, err := m.Observe(t.Context())
		if err == nil {
			err = m.Exit(o.Containers[0].ID, 1) // asks for a look
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		reads.Store(0)
		time.Sleep(5 * time.Second)
		if n := reads.Load(); n > 500 {
			t.Errorf("the clock was read %d times in 5 s", n)
		}
		close(free)
		s.at.Store("")
		b.reaches(store.PhaseCommitted, 2)
	})
}

// kept is the progress in the database.
func (b *bench) kept(db *store.Store) (p *store.Progress) {
	b.t.Helper()
	if err := db.View(func(tx *store.Tx) (err error) { p, err = tx.Progress(); return err }); err != nil {
		b.t.Fatal(err)
	}
	return p
}

// known wants a phase of a generation to be in the database, the status and the newest report, and returns since when it lasts.
func (b *bench) known(db *store.Store, phase store.Phase, generation uint64) time.Time {
	b.t.Helper()
	b.reaches(phase, generation)
	type progress struct {
		Phase      store.Phase
		Since      time.Time
		Generation uint64
	}
	read := func(what string, v any) (at progress) {
		b.t.Helper()
		data, err := json.Marshal(v)
		if err != nil {
			b.t.Fatal(err)
		}
		if err := json.Unmarshal(data, &at); err != nil || at.Phase != phase || generation != 0 && at.Generation != generation {
			b.t.Errorf("%s: %s, %v, want %s of generation %d", what, data, err, phase, generation)
		}
		return at
	}
	var told struct{ Progress json.RawMessage }
	text, err := json.Marshal(b.r.Status())
	if err == nil {
		err = json.Unmarshal(text, &told)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	at := read("database", b.kept(db))
	if x := read("status", told.Progress); !x.Since.Equal(at.Since) {
		b.t.Errorf("status: since %v, the database says %v", x.Since, at.Since)
	}
	b.w.Wait(b.t, "the report", func() bool {
		p := b.w.Extra(b.t).Progress
		return p != nil && p.Phase == phase && (phase.Found() || p.Since.Equal(at.Since)) // a check that begins again is no news
	})
	read("report", b.w.Extra(b.t).Progress)
	return at.Since
}
