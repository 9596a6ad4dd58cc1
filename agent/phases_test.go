package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// reaches waits for a phase of a generation; 0: any.
func (b *bench) reaches(p store.Phase, generation uint64) status.Progress {
	b.t.Helper()
	var at *status.Progress
	b.w.Wait(b.t, fmt.Sprintf("%s of generation %d", p, generation), func() bool {
		at = b.r.Status().Progress
		return at != nil && at.Phase == p && (generation == 0 || at.Generation == generation)
	})
	return *at
}

// told are the phases of events, "phase@generation".
func (b *bench) told() (out []string) {
	b.t.Helper()
	for _, e := range eventsOf(b.t, b.r.Agent, status.EventRequest{Kind: status.EventPhase}) {
		out = append(out, fmt.Sprintf("%s@%d", e.Message, e.Generation))
	}
	return out
}

// outcomes are what became of states, "outcome@generation".
func (b *bench) outcomes() (out []string) {
	b.t.Helper()
	for _, o := range b.r.Status().Progress.History {
		out = append(out, fmt.Sprintf("%s@%d", o.Outcome, o.Generation))
	}
	return out
}

func same[T comparable](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Each phase is told once, lasts through restarts of the agent since the same time, and is in the report.
func TestPhases(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		block := make(chan struct{})
		var resolving, verifying, pulling atomic.Bool
		hang := func(ctx context.Context) {
			select {
			case <-block:
			case <-ctx.Done():
			}
		}
		boot := "1"
		w.Edit = func(o *agent.Options) {
			o.Approvals, o.Probation, o.BootID = updates, 10*time.Minute, boot
			o.Source = slowSource{o.Source, func(ctx context.Context) {
				if resolving.Load() {
					hang(ctx)
				}
			}}
			o.Verifier = slowVerifier{o.Verifier, func(ctx context.Context) {
				if verifying.Load() {
					hang(ctx)
				}
			}}
		}
		m.Pulling = func(ctx context.Context, _ workload.Image, progress func(done, total int64)) error {
			if pulling.Load() {
				progress(30, 100)
				hang(ctx)
			}
			return ctx.Err()
		}
		b := &bench{t, w, m, w.Start(t)}
		if s := b.r.Status(); s.Phase != status.PhaseEmpty || s.Progress != nil {
			t.Errorf("an empty device: %s, %+v", s.Phase, s.Progress)
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		b.reaches(store.PhaseProbation, 1)
		time.Sleep(11 * time.Minute)
		committed := b.reaches(store.PhaseCommitted, 1)

		resolving.Store(true)
		w.Publish(t, 2, anApp(1, "web:2"))
		b.reaches(store.PhaseResolved, 0)
		if s := b.r.Status(); s.Phase != status.PhaseInSync {
			t.Errorf("the device is %q while a newer state is looked at", s.Phase)
		}
		resolving.Store(false)
		verifying.Store(true)
		block <- struct{}{}
		verifies := b.reaches(store.PhaseVerifying, 0)
		if s := b.r.Status(); s.Phase != status.PhaseInSync {
			t.Errorf("the device is %q while a newer state is verified", s.Phase)
		}
		time.Sleep(time.Minute)
		if p := b.reaches(store.PhaseVerifying, 0); !p.Since.Equal(verifies.Since) {
			t.Errorf("a minute later it verifies since %v, before since %v", p.Since, verifies.Since)
		}
		verifying.Store(false)
		pulling.Store(true)
		block <- struct{}{}
		loads := b.reaches(store.PhaseDownloading, 2)
		w.Wait(t, "bytes", func() bool { p := b.r.Status().Progress; return p.Done == 30 && p.Total == 100 })
		w.Wait(t, "bytes in the report", func() bool { p := w.Extra(t).Progress; return p != nil && p.Done == 30 && p.Total == 100 })
		b.restart()
		if p := b.reaches(store.PhaseDownloading, 2); !p.Since.Equal(loads.Since) {
			t.Errorf("after a restart it loads since %v, before since %v", p.Since, loads.Since)
		}
		pulling.Store(false)
		block <- struct{}{}

		waits := b.reaches(store.PhaseAwaitingApproval, 2)
		if waits.Code != string(codes.ApprovalNeeded) || !strings.Contains(waits.Message, "app-1") {
			t.Errorf("it waits: %+v", waits)
		}
		time.Sleep(time.Hour)
		b.restart()
		if p := b.reaches(store.PhaseAwaitingApproval, 2); !p.Since.Equal(waits.Since) {
			t.Errorf("after a restart it waits since %v, before since %v", p.Since, waits.Since)
		}
		w.Wait(t, "the report", func() bool {
			p := w.Extra(t).Progress
			return p != nil && p.Phase == store.PhaseAwaitingApproval && p.Since.Equal(waits.Since)
		})
		if err := b.decide(b.waiting("app-1", codes.ApprovalNeeded), store.Approved, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		if p := b.reaches(store.PhaseProbation, 2); p.Attempt != 1 {
			t.Errorf("attempt %d, want 1", p.Attempt)
		}
		boot = "2"
		b.r.Stop(t)
		m.Reboot()
		b.r = w.Start(t)
		if p := b.reaches(store.PhaseProbation, 2); p.Attempt != 2 {
			t.Errorf("after a reboot it is attempt %d, want 2", p.Attempt)
		}
		time.Sleep(11 * time.Minute)
		b.reaches(store.PhaseCommitted, 2)
		same(t, "outcomes", b.outcomes(), "committed@1", "committed@2")
		same(t, "events", b.told(), "applying@2", "probation@2", "committed@2")
		if h := b.r.Status().Progress.History; !h[0].At.Equal(committed.Since) {
			t.Errorf("history %+v, committed at %v", h, committed.Since)
		}
	})
}

// A long download is a few reports, of bytes that only grow.
func TestLoadedBytesInReports(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		m.Pulling = func(ctx context.Context, _ workload.Image, progress func(done, total int64)) error {
			for n := range int64(1000) {
				progress(n, 1000)
				select {
				case <-time.After(5 * time.Second):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		b.reaches(store.PhaseDownloading, 1)
		time.Sleep(2 * time.Hour)
		b.reaches(store.PhaseCommitted, 1)
		var said []int64
		for _, r := range w.Fleet.Reports() {
			var x struct {
				Extra status.Extra `json:"x-longshore-extensions"`
			}
			if r.Kind != store.KindCapabilities {
				continue
			}
			if err := json.Unmarshal(r.Body, &x); err != nil {
				t.Fatal(err)
			}
			if p := x.Extra.Progress; p != nil && p.Total > 0 {
				said = append(said, p.Done/100)
			}
		}
		same(t, "tenths", said, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		if p := w.Extra(t).Progress; p.Phase != store.PhaseCommitted || p.Total != 0 {
			t.Errorf("at the end it reports %+v", p)
		}
	})
}

// What has begun is finished, and does not give way to the revision before it while a newer state waits.
func TestWhatHasBegunIsFinished(t *testing.T) {
	for name, do := range map[string]func(t *testing.T, b *bench){
		"good": func(t *testing.T, b *bench) {
			time.Sleep(6 * time.Minute)
			b.reaches(store.PhaseAwaitingApproval, 3)
			if !b.runs("web:2") || b.runs("web:1") {
				t.Error("the good revision does not run")
			}
			same(t, "outcomes", b.outcomes(), "committed@1", "superseded@2")
			if err := b.decide(b.waiting("app-1", codes.ApprovalNeeded), store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.reaches(store.PhaseProbation, 3)
			time.Sleep(11 * time.Minute)
			b.reaches(store.PhaseCommitted, 3)
		},
		"good, after a restart": func(t *testing.T, b *bench) {
			b.restart()
			b.reaches(store.PhaseStaged, 3)
			if !b.runs("web:2") || b.runs("web:1") {
				t.Error("it went back at the restart")
			}
			time.Sleep(11 * time.Minute)
			b.reaches(store.PhaseAwaitingApproval, 3)
			if !b.runs("web:2") || b.runs("web:1") {
				t.Error("the good revision does not run")
			}
		},
		"bad": func(t *testing.T, b *bench) {
			if err := b.m.Exit(b.w.Observe(t)["app-1/web"].ID, 3); err != nil {
				t.Fatal(err)
			}
			b.w.Wait(t, "the way back", func() bool { return b.runs("web:1") && !b.runs("web:2") })
			b.reaches(store.PhaseAwaitingApproval, 3)
			if b.runs("web:3") {
				t.Error("it began without an approval")
			}
		},
		"approved meanwhile": func(t *testing.T, b *bench) {
			if err := b.decide(b.waiting("app-1", codes.ApprovalNeeded), store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Wait(t, "the approved one runs", func() bool { return b.runs("web:3") && !b.runs("web:2") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				w.Edit = func(o *agent.Options) { o.Approvals, o.Probation = updates, 10*time.Minute }
				b := &bench{t, w, m, w.Start(t)}
				w.Publish(t, 1, anApp(1, "web:1"))
				b.reaches(store.PhaseProbation, 1)
				time.Sleep(11 * time.Minute)
				w.Committed(t, b.r, 1)
				w.Publish(t, 2, anApp(1, "web:2"))
				if err := b.decide(b.waiting("app-1", codes.ApprovalNeeded), store.Approved, "", time.Time{}); err != nil {
					t.Fatal(err)
				}
				b.reaches(store.PhaseProbation, 2)
				w.Publish(t, 3, anApp(1, "web:3"))
				if p := b.reaches(store.PhaseStaged, 3); !strings.Contains(p.Message, "generation 2") {
					t.Errorf("it says %q", p.Message)
				}
				time.Sleep(4 * time.Minute)
				if !b.runs("web:2") || b.runs("web:1") {
					t.Fatal("it went back to what ran before")
				}
				do(t, b)
			})
		})
	}
}

// A state that gives way to a newer one before it came to an end is superseded, wherever it stood.
func TestSuperseded(t *testing.T) {
	for name, x := range map[string]struct {
		edit func(o *agent.Options, m *runtimetest.Memory)
		at   store.Phase
	}{
		"while it waits": {func(o *agent.Options, _ *runtimetest.Memory) { o.Approvals = updates }, store.PhaseAwaitingApproval},
		"while it loads": {func(_ *agent.Options, m *runtimetest.Memory) {
			m.Pulling = func(ctx context.Context, i workload.Image, _ func(done, total int64)) error {
				if i.Tag == "2" {
					<-ctx.Done()
				}
				return ctx.Err()
			}
		}, store.PhaseDownloading},
		"in probation": {func(o *agent.Options, _ *runtimetest.Memory) { o.Probation = 10 * time.Minute }, store.PhaseProbation},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				b := &bench{t, w, m, nil}
				w.Publish(t, 1, anApp(1, "web:1"))
				b.r = w.Start(t)
				w.Committed(t, b.r, 1)
				w.Edit = func(o *agent.Options) { x.edit(o, m) }
				b.restart()
				w.Publish(t, 2, anApp(1, "web:2"))
				b.reaches(x.at, 2)
				w.Publish(t, 3, anApp(1, "web:1"))
				b.w.Wait(t, "generation 3", func() bool { return b.r.Status().Progress.Generation == 3 })
				time.Sleep(11 * time.Minute)
				b.reaches(store.PhaseCommitted, 3)
				same(t, "outcomes", b.outcomes(), "committed@1", "superseded@2", "committed@3")
			})
		})
	}
}

// Ends other than a commit: an update that is taken back, an installation that fails and then succeeds, and a rollback by hand.
func TestPhasesOfFailures(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var broken atomic.Bool
		m.Running = func(o workload.Observation) int {
			if strings.HasSuffix(o.Image, w.Image("crash:1").Digest.String()) || broken.Load() {
				return 3
			}
			return -1
		}
		b := &bench{t, w, m, w.Start(t)}
		broken.Store(true)
		first := anApp(1, "web:1")
		first.Components[0].Services[0].Extra = "    restart: always\n"
		w.Publish(t, 1, first)
		if p := b.reaches(store.PhaseFailed, 1); p.Code != string(codes.ContainerExited) || p.Message == "" {
			t.Errorf("it failed: %+v", p)
		}
		broken.Store(false)
		b.reaches(store.PhaseCommitted, 1)
		w.Publish(t, 2, anApp(1, "web:2"))
		b.reaches(store.PhaseCommitted, 2)
		w.Publish(t, 3, anApp(1, "crash:1"))
		back := b.reaches(store.PhaseRolledBack, 3)
		if back.Code != string(codes.ContainerExited) {
			t.Errorf("it was rolled back: %+v", back)
		}
		told := b.told()
		same(t, "events of the rollback", told[len(told)-2:], "rolling-back@3", "rolled-back@3")
		time.Sleep(time.Hour)
		b.restart()
		time.Sleep(time.Hour)
		if p := b.reaches(store.PhaseRolledBack, 3); !p.Since.Equal(back.Since) {
			t.Errorf("rolled back since %v, after a restart since %v", back.Since, p.Since)
		}
		same(t, "outcomes", b.outcomes(), "committed@1", "committed@2", "rolled-back@3")
		w.Publish(t, 4, anApp(1, "web:4"))
		b.reaches(store.PhaseCommitted, 4)
		if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command", Reason: "noise"}); err != nil {
			t.Fatal(err)
		}
		if p := b.reaches(store.PhaseRolledBack, 4); p.Code != string(codes.Held) || !strings.Contains(p.Message, "noise") {
			t.Errorf("rolled back by hand: %+v", p)
		}
		if _, err := b.r.Release(t.Context(), "ana", "command"); err != nil {
			t.Fatal(err)
		}
		b.w.Committed(t, b.r, 4)
		same(t, "outcomes", b.outcomes(), "committed@1", "committed@2", "rolled-back@3", "committed@4", "rolled-back@4", "committed@4")
		for g := uint64(5); g < 12; g++ {
			w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
			b.reaches(store.PhaseCommitted, g)
		}
		if n := len(b.outcomes()); n != 8 {
			t.Errorf("%d outcomes are kept", n)
		}
	})
}

// A change that waits for the device's admission has not begun: its window may close again.
func TestAdmissionIsNoBegin(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var open, full atomic.Bool
		open.Store(true)
		w.Edit = func(o *agent.Options) {
			o.ChangeWindow = func(now time.Time) (bool, bool, time.Time) { return !open.Load(), false, now.Add(time.Hour) }
		}
		m.Admitting = func(projects []*workload.Project) error {
			if !full.Load() {
				return nil
			}
			return workload.Conflicts{{Deployment: anApp(1, "").DeploymentID(), Component: "app-1", Path: "services.web.ports", Reason: errors.New("the port is taken")}}
		}
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		w.Committed(t, b.r, 1)
		full.Store(true)
		w.Publish(t, 2, anApp(1, "web:2"))
		b.reaches(store.PhaseFailed, 2)
		all, err := b.r.Changes(t.Context())
		if err != nil || len(all) != 1 || !all[0].Begun.IsZero() {
			t.Fatalf("Changes = %+v, %v: it has not begun", all, err)
		}
		open.Store(false)
		b.waiting("app-1", codes.OutsideWindow)
		full.Store(false)
		time.Sleep(3 * time.Hour)
		if b.runs("web:2") {
			t.Error("it began outside of its window")
		}
		b.reaches(store.PhaseAwaitingWindow, 2)
		open.Store(true)
		w.Committed(t, b.r, 2)
	})
}

// Documents of a state that waits are damaged, or all of them: what runs runs on, it is told, and it waits again when they were read again.
func TestDamagedWhileItWaits(t *testing.T) {
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all ", all), func(t *testing.T) {
			asked(t, updates, func(b *bench) {
				t, w := b.t, b.w
				b.waiting("app-1", codes.ApprovalNeeded)
				before := w.Observe(t)["app-1/web"]
				since := b.reaches(store.PhaseAwaitingApproval, 2).Since
				newest := b.r.Status().Accepted.Digest
				b.r.Stop(t)
				w.Content.Damage(func(d digest.Digest, _ string) bool { return all || d == newest })
				w.Registry.Fail(func(string) error { return fault.ErrTemporary })
				b.r = w.Start(t)
				time.Sleep(time.Hour)
				s := b.r.Status()
				if !hasProblem(s, codes.ContentDamaged) || s.Accepted.Digest != newest {
					t.Errorf("status %+v", s.Problems)
				}
				if p := s.Progress; p.Phase != store.PhaseAwaitingApproval || p.Code != string(codes.ContentDamaged) || !p.Since.Equal(since) {
					t.Errorf("progress %+v", p)
				}
				w.Registry.Fail(nil)
				time.Sleep(10 * time.Minute)
				c := b.waiting("app-1", codes.ApprovalNeeded)
				if hasProblem(b.r.Status(), codes.ContentDamaged) {
					t.Error("it is damaged still")
				}
				if now := w.Observe(t)["app-1/web"]; now.ID != before.ID || now.PID != before.PID {
					t.Error("what ran was touched")
				}
				if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
					t.Fatal(err)
				}
				w.Committed(t, b.r, 2)
			})
		})
	}
}

// A removal that waits is not carried out early, also where its room is needed.
func TestARemovalThatWaitsMakesNoRoom(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var full atomic.Bool
		m.Disks = func() []workload.Space { return []workload.Space{{Dir: "/", Free: 1 << 30, Size: 1 << 31}} }
		m.Taken = func(string) int64 { return 1 << 30 }
		m.Images = func(workload.Image) error {
			if full.Load() {
				return short(1)
			}
			return nil
		}
		w.Edit = func(o *agent.Options) { o.Approvals.Kinds = []plan.Kind{plan.Removal} }
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "broker:1"))
		w.Committed(t, b.r, 1)
		full.Store(true)
		w.Publish(t, 2, anApp(1, "web:2"))
		b.reaches(store.PhaseDownloading, 2)
		c := b.waiting("app-2", codes.ApprovalNeeded)
		time.Sleep(time.Hour)
		if !b.runs("broker:1") {
			t.Fatal("it was removed without an approval")
		}
		if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "its removal makes room", func() bool { return !b.runs("broker:1") })
	})
}

// An agent that is told to stop while it reads what was saved has read nothing that is damaged.
func TestStoppedWhileItBoots(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		b := &bench{t, w, m, w.Start(t)}
		for g := uint64(1); g < 3; g++ {
			w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
			w.Committed(t, b.r, g)
		}
		if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "root"}); err != nil {
			t.Fatal(err)
		}
		b.reaches(store.PhaseRolledBack, 2)
		b.r.Stop(t)
		var log bytes.Buffer
		reading := make(chan struct{}, 16)
		w.Edit = func(o *agent.Options) {
			o.Logger, o.Content = slog.New(slog.NewTextHandler(&log, nil)), slowContent{o.Content, reading}
		}
		b.r = w.Start(t)
		<-reading
		b.r.Stop(t)
		if text := log.String(); strings.Contains(text, "damaged") {
			t.Errorf("it logs\n%s", text)
		}
		w.Edit = nil
		b.r = w.Start(t)
		if p := b.reaches(store.PhaseRolledBack, 2); p.Code != string(codes.Held) {
			t.Errorf("the hold is lost: %+v", p)
		}
	})
}

// slowSource calls wait before it reads the manifest of a state.
type slowSource struct {
	intake.Source
	wait func(context.Context)
}

func (s slowSource) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if repository == agenttest.Repository {
		s.wait(ctx)
	}
	return s.Source.Manifest(ctx, repository, d)
}

// slowVerifier calls wait before it verifies anything.
type slowVerifier struct {
	intake.Verifier
	wait func(context.Context)
}

func (s slowVerifier) Verify(ctx context.Context, kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
	s.wait(ctx)
	return s.Verifier.Verify(ctx, kind, repository, d)
}

// slowContent answers no question before the agent stops.
type slowContent struct {
	intake.Content
	reading chan struct{}
}

func (c slowContent) Get(ctx context.Context, _ digest.Digest) ([]byte, error) {
	c.reading <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}
