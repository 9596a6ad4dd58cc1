package agenttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// world runs f on a device in memory, in a bubble where time takes no time.
func world(t *testing.T, edit func(*runtimetest.Memory), f func(t *testing.T, w *agenttest.World, m *runtimetest.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var m *runtimetest.Memory
		e := memoryEnv(func(x *runtimetest.Memory) {
			m = x
			if edit != nil {
				edit(x)
			}
		})(t)
		e.Patience = 5 * time.Minute
		f(t, agenttest.NewWorld(t, e), m)
	})
}

func app(id int, services ...agenttest.Service) agenttest.App {
	name := fmt.Sprintf("app-%d", id)
	return agenttest.App{ID: id, Name: name, Components: []agenttest.Comp{{Name: name, Services: services}}}
}

func web(image string) agenttest.Service { return agenttest.Service{Name: "web", Image: image} }

func kinds(requests []string) map[string]int {
	out := map[string]int{}
	for _, r := range requests {
		k, _, _ := strings.Cut(r, " ")
		out[k]++
	}
	return out
}

func TestOneChangeAmongMany(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		var apps []agenttest.App
		for i := range 30 {
			apps = append(apps, app(i+1, web("web:1")))
		}
		w.Publish(t, 1, apps...)
		r := w.Start(t)
		w.Sync(t, r)
		got := w.Registry.Requests()
		states := 0
		for _, q := range got {
			if strings.HasPrefix(q, "blob "+agenttest.Repository) {
				states++
			}
		}
		if states != 1 {
			t.Errorf("a fresh device asked for %d blobs of the state, want 1: the bundle", states)
		}
		apps[7] = app(8, web("web:2"))
		apps[7].Components[0].Version = "1.0.1"
		w.Publish(t, 2, apps...)
		w.Sync(t, r)
		got = w.Registry.Requests()
		want := map[string]int{"resolve": 1, "manifest": 2, "blob": 1} // the state's manifest, with the State Manifest, and the deployment; the component's, with its archive
		if k := kinds(got); k["resolve"] != want["resolve"] || k["manifest"] > want["manifest"] || k["blob"] > want["blob"] {
			t.Errorf("requests for one change: %v", got)
		}
	})
}

func TestUnpinnedReferencesAreResolvedOnce(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		a := app(1, web("web:1"))
		a.Components[0].Unpinned, a.Components[0].NoLock = true, true
		img := artifacts.Blob{Data: []byte("image one")}
		img.Descriptor.Digest = digest.FromBytes(img.Data)
		w.Registry.Tag("registry.example/images/web", "1", img.Descriptor)
		w.Publish(t, 1, a)
		r := w.Start(t)
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
			t.Fatalf("sync = %+v", res)
		}
		before := w.Observe(t)
		if got := before["app-1/web"].Image; got != "registry.example/images/web@"+img.Descriptor.Digest.String() {
			t.Errorf("image %s", got)
		}
		r.Stop(t)
		b := a // the tags move
		b.Components = []agenttest.Comp{{Name: "app-1", Services: []agenttest.Service{web("web:2")}}}
		w.Component(t, b.Components[0])
		moved := img.Descriptor
		moved.Digest = digest.FromString("image two")
		w.Registry.Tag("registry.example/images/web", "1", moved)
		m.Reboot()
		r = w.Start(t)
		w.Sync(t, r)
		w.Wait(t, "the same container", func() bool { return w.Observe(t)["app-1/web"].Status == workload.Running })
		if after := w.Observe(t); after["app-1/web"].ID != before["app-1/web"].ID {
			t.Errorf("a moved tag changed the device: %v", after)
		}
	})
}

func TestExpiredWhileRunning(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		s := w.State(t, 1, func(o *artifacts.StateOptions) { o.Expires = w.Now().Add(time.Hour) }, app(1, web("web:1")))
		w.Verifier.Sign(s.Descriptor.Digest)
		w.Registry.Push(agenttest.Repository, s, agenttest.Device.Tag())
		r := w.Start(t)
		w.Sync(t, r)
		before := w.Observe(t)
		time.Sleep(2 * time.Hour)
		st := r.Status()
		if !st.Stale || len(st.Problems) != 1 || st.Problems[0].Code != codes.Stale {
			t.Errorf("stale %v, problems %+v", st.Stale, st.Problems)
		}
		if after := w.Observe(t); after["app-1/web"].PID != before["app-1/web"].PID {
			t.Error("an expired state stopped what runs")
		}
		if !w.Extra(t).Stale {
			t.Error("the fleet endpoint does not know")
		}
	})
}

func TestDamagedContentIsFetchedAgain(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		before := w.Observe(t)
		r.Stop(t)
		w.Content.Damage(nil)
		w.Registry.Fail(func(string) error { return fault.ErrTemporary })
		r = w.Start(t)
		w.Wait(t, "the problem", func() bool { return len(r.Status().Problems) > 0 })
		if p := r.Status().Problems[0]; p.Code != codes.ContentDamaged {
			t.Errorf("problem %+v", p)
		}
		if after := w.Observe(t); after["app-1/web"].PID != before["app-1/web"].PID {
			t.Error("damage stopped what runs")
		}
		w.Registry.Fail(nil)
		if res := w.Sync(t, r); res.Outcome != status.SyncUnchanged {
			t.Errorf("sync = %+v", res)
		}
		if err := m.Exit(before["app-1/web"].ID, 0); err != nil {
			t.Fatal(err)
		}
		w.Publish(t, 2)
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled || len(w.Observe(t)) != 0 {
			t.Errorf("sync = %+v, containers %v", res, w.Observe(t))
		}
	})
}

func TestRefusalsAreRemembered(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 5, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		s := w.State(t, 4, nil, app(1, web("web:2")))
		w.Verifier.Sign(s.Descriptor.Digest)
		w.Registry.Push(agenttest.Repository, s, agenttest.Device.Tag())
		w.Sync(t, r)
		w.Registry.Requests()
		time.Sleep(time.Hour)
		if k := kinds(w.Registry.Requests()); k["manifest"]+k["blob"] != 0 || k["resolve"] < 50 || k["resolve"] > 70 {
			t.Errorf("requests in an hour: %v, want about 60 and no more than a HEAD each", k)
		}
		w.SetPolicy("another")
		time.Sleep(2 * time.Minute)
		if k := kinds(w.Registry.Requests()); k["manifest"] != 1 {
			t.Errorf("requests after the policy changed: %v, want the state held against the checks once more", k)
		}
		if p := r.Status().Problems[0]; p.Code != codes.Rollback || !strings.Contains(p.Hint, "--generation 6") {
			t.Errorf("problem %s, hint %q, want that the next number is told", p.Code, p.Hint)
		}
	})
}

func TestQuietPolls(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var log bytes.Buffer
		w.Log = slog.New(slog.NewTextHandler(&log, nil))
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		w.Registry.Requests()
		synctest.Wait()
		log.Reset()
		calls, reports := len(m.Calls()), len(w.Fleet.Reports())
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		got := w.Registry.Requests()
		if k := kinds(got); k["resolve"] != len(got) || len(got) < 1300 || len(got) > 1600 {
			t.Errorf("%d requests in a day: %v", len(got), k)
		}
		if log.Len() != 0 || len(m.Calls()) != calls || len(w.Fleet.Reports()) != reports {
			t.Errorf("a quiet day: log %q, %d calls, %d reports", log.String(), len(m.Calls())-calls, len(w.Fleet.Reports())-reports)
		}
	})
}

func TestBackoffWhileTheRegistryIsAway(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		w.Registry.Fail(func(string) error { return fault.ErrTemporary })
		w.Sync(t, r)
		w.Registry.Requests()
		time.Sleep(time.Hour)
		if n := len(w.Registry.Requests()); n < 10 || n > 20 {
			t.Errorf("%d requests in an hour, want about one in 5 minutes", n)
		}
		w.Registry.Fail(func(string) error { return fault.WithRetryAfter(fault.ErrTemporary, 20*time.Minute) })
		w.Sync(t, r)
		w.Registry.Requests()
		time.Sleep(15 * time.Minute)
		if n := len(w.Registry.Requests()); n != 0 {
			t.Errorf("%d requests although the registry said when to come back", n)
		}
		w.Registry.Fail(nil)
		time.Sleep(10 * time.Minute)
		if p := r.Status().Problems; len(p) != 0 {
			t.Errorf("problems after the registry came back: %+v", p)
		}
	})
}

// A registry that asks to be left alone for years is asked again within an hour, and one that asks for no pause at all after
// the usual ones; status says what it asks for.
func TestWhatARegistryAsksForIsBoundedAndTold(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		w.Registry.Fail(func(string) error { return fault.WithRetryAfter(fault.ErrTemporary, 24*time.Hour) })
		w.Sync(t, r)
		w.Registry.Requests()
		time.Sleep(59 * time.Minute)
		if n := len(w.Registry.Requests()); n != 0 {
			t.Errorf("%d requests within an hour", n)
		}
		p := r.Status().Problems
		if len(p) != 1 || !strings.Contains(p[0].Doing, "next try in ") || !strings.Contains(p[0].Doing, "it asks to wait 24h0m0s, and gets at most 1h0m0s") {
			t.Errorf("problems do not say what it asked for: %+v", p)
		}
		time.Sleep(2 * time.Minute)
		if n := len(w.Registry.Requests()); n != 1 {
			t.Errorf("%d requests after an hour, want one", n)
		}
		w.Registry.Fail(func(string) error { return fault.WithRetryAfter(fault.ErrTemporary, 0) })
		w.Sync(t, r)
		w.Registry.Requests()
		time.Sleep(time.Hour)
		if n := len(w.Registry.Requests()); n < 10 || n > 20 {
			t.Errorf("%d requests in an hour of a registry that asks for no pause, want about one in 5 minutes", n)
		}
	})
}

// A configuration that cannot be used is told as such: the registry was not asked, so nothing is refused and nothing looks like
// an attack.
func TestBrokenConfigurationIsNoAttack(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, app(1, web("web:1")))
		broken := fmt.Errorf("/etc/containerd/certs.d/registry.example/hosts.toml:2:5: array is incomplete: %w", fault.ErrConfig)
		var images atomic.Bool // they meet it, too
		m.Images = func(workload.Image) error {
			if images.Load() {
				return broken
			}
			return nil
		}
		r := w.Start(t)
		w.Sync(t, r)
		alone := func(what string) {
			t.Helper()
			s := r.Status()
			if len(s.Problems) != 1 || s.Problems[0].Code != codes.Config || s.Problems[0].Hint == "" || len(s.Security) != 0 || s.Committed.Generation != 1 {
				t.Errorf("%s: problems %+v, security events %+v, want %s alone", what, s.Problems, s.Security, codes.Config)
			}
		}
		for _, what := range []string{"resolve", "manifest", "blob"} {
			w.Registry.Fail(func(request string) error {
				if strings.HasPrefix(request, what) {
					return broken
				}
				return nil
			})
			w.Publish(t, 2, app(1, web("web:2")))
			time.Sleep(10 * time.Minute)
			alone(what)
		}
		w.Registry.Fail(nil)
		images.Store(true)
		time.Sleep(10 * time.Minute)
		s := r.Status()
		if len(s.Security) != 0 || len(s.Problems) == 0 || s.Problems[0].Code != codes.Config {
			t.Errorf("images: problems %+v, security events %+v", s.Problems, s.Security)
		}
		images.Store(false)
		time.Sleep(10 * time.Minute)
		if s := r.Status(); len(s.Problems) != 0 || s.Committed.Generation != 2 {
			t.Errorf("after it was repaired: generation %d, problems %+v", s.Committed.Generation, s.Problems)
		}
	})
}

// A check that hangs is a problem in status, and the next one is made when it ends.
func TestCheckThatHangsIsTold(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		hang := make(chan struct{})
		w.Registry.Fail(func(string) error {
			<-hang
			return fault.ErrTemporary
		})
		time.Sleep(10 * time.Minute)
		p := r.Status().Problems
		if len(p) != 1 || p[0].Code != codes.SourceUnreachable || !strings.Contains(p[0].Message, "has not ended") || p[0].Since.IsZero() {
			t.Errorf("problems while a check hangs: %+v", p)
		}
		close(hang)
		time.Sleep(time.Second)
		w.Registry.Fail(nil)
		w.Publish(t, 2, app(1, web("web:2")))
		time.Sleep(10 * time.Minute)
		if s := r.Status(); len(s.Problems) != 0 || s.Committed.Generation != 2 {
			t.Errorf("after it ended: generation %d, problems %+v", s.Committed.Generation, s.Problems)
		}
	})
}

func TestSupervisionDoesNotWaitForADownload(t *testing.T) {
	var hang chan struct{}
	var hanging atomic.Bool
	world(t, func(m *runtimetest.Memory) {
		hang = make(chan struct{}) // belongs to the bubble
		m.Images = func(i workload.Image) error {
			if strings.HasSuffix(i.Repository, "slow") {
				hanging.Store(true)
				<-hang
				return fault.ErrTemporary
			}
			return nil
		}
	}, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		first := web("web:1")
		first.Extra = "    restart: always\n"
		w.Publish(t, 1, app(1, first))
		r := w.Start(t)
		w.Sync(t, r)
		before := w.Observe(t)["app-1/web"]
		w.Publish(t, 2, app(1, web("slow:1")))
		time.Sleep(3 * time.Minute)
		if st := r.Status(); !hanging.Load() || st.Phase != status.Phase(store.PhaseDownloading) || st.Loading == nil || st.Loading.Generation != 2 {
			t.Errorf("status while an image is being pulled: %s %+v", st.Phase, st.Loading)
		}
		if err := m.Exit(before.ID, 1); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "the restart", func() bool { return w.Observe(t)["app-1/web"].Status == workload.Running })
		close(hang)
		w.Publish(t, 3, app(1, web("web:2"))) // supersedes what is still being pulled
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled || res.Generation != 3 {
			t.Errorf("sync = %+v", res)
		}
	})
}

func TestComponentsComeInOrderAndInTime(t *testing.T) {
	var sick atomic.Bool
	sick.Store(true)
	health := "    healthcheck:\n      test: [CMD, \"true\"]\n      interval: 5s\n      timeout: 1s\n      retries: 3\n"
	world(t, func(m *runtimetest.Memory) {
		m.Probing = func(context.Context, workload.Observation, workload.Probe) error {
			if sick.Load() {
				return errors.New("503")
			}
			return nil
		}
	}, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		a := agenttest.App{ID: 1, Name: "two", Components: []agenttest.Comp{
			{Name: "base", Services: []agenttest.Service{{Name: "db", Image: "web:1", Extra: health}}, Extra: "          timeout: 0m10s\n"},
			{Name: "front", Services: []agenttest.Service{web("web:1")}},
		}}
		w.Publish(t, 1, a)
		r := w.Start(t)
		res := w.Sync(t, r)
		if res.Outcome != status.SyncFailed || res.Code != codes.Timeout && res.Code != codes.Unhealthy {
			t.Errorf("sync = %+v, want failed by time or health", res)
		}
		if got := w.Observe(t); len(got) != 1 || got["base/db"].Status != workload.Running {
			t.Errorf("containers %v, want the first component only", got)
		}
		d := r.Status().Deployments[0]
		if d.State != margo.StateFailed || d.Components[1].State != margo.StatePending {
			t.Errorf("deployment %s, second component %s", d.State, d.Components[1].State)
		}
		time.Sleep(time.Minute)
		if h := r.Status().Deployments[0].Components[0].Services[0]; h.Health != plan.HealthUnhealthy || h.Output != "503" {
			t.Errorf("health %+v", h)
		}
		sick.Store(false)
		w.Committed(t, r, 1)
		sick.Store(true)
		w.Wait(t, "unhealthy after it was installed", func() bool { return r.Status().Deployments[0].State == margo.StateFailed })
		if e := r.Status().Deployments[0].Error; e.Code != string(codes.Unhealthy) || e.Source != "two" {
			t.Errorf("error %+v", e)
		}
		if got := w.Observe(t); len(got) != 2 {
			t.Errorf("containers %v: nothing may be stopped for being unhealthy", got)
		}
		sick.Store(false)
		w.Wait(t, "healthy again", func() bool { return r.Status().Phase == status.PhaseInSync })
	})
}

func TestACrashLoopIsReportedOnce(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	world(t, func(m *runtimetest.Memory) {
		m.Running = func(workload.Observation) int {
			if broken.Load() {
				return 3
			}
			return -1
		}
	}, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		s := web("web:1")
		s.Extra = "    restart: always\n"
		w.Publish(t, 1, app(1, s))
		r := w.Start(t)
		if res := w.Sync(t, r); res.Outcome != status.SyncFailed || res.Code != codes.ContainerExited || res.Hint != "look at its output: longshore-agent logs app-1" {
			t.Errorf("sync = %+v", res)
		}
		if p := r.Status().Problems; len(p) != 1 || p[0].Hint != "look at its output: longshore-agent logs app-1/web" {
			t.Errorf("problems %+v", p)
		}
		time.Sleep(10 * time.Minute)
		starts := 0
		for _, c := range m.Calls() {
			if strings.HasPrefix(c, "start ") {
				starts++
			}
		}
		if starts < 15 || starts > 25 {
			t.Errorf("%d starts in 10 minutes, want pauses that double up to a minute", starts)
		}
		broken.Store(false)
		w.Committed(t, r, 1)
		w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
		got := strings.Join(w.States(t, app(1).DeploymentID()), " ")
		if want := "pending@1 installing@1 failed@1 installed@1"; got != want {
			t.Errorf("states %s, want %s", got, want)
		}
	})
}

func TestTheRuntimeGoesAwayAndComesBack(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		rt := &flaky{Memory: m}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return rt }
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		rt.away.Store(true)
		w.Publish(t, 2, app(1, web("web:2")))
		w.Wait(t, "the problem", func() bool { return r.Status().Phase == status.PhaseUnavailable })
		rt.away.Store(false)
		w.Committed(t, r, 2)
	})
}

// flaky is a runtime that is away at times.
type flaky struct {
	*runtimetest.Memory
	away atomic.Bool
}

func (f *flaky) Observe(ctx context.Context) (workload.Observed, error) {
	if f.away.Load() {
		return workload.Observed{}, fault.ErrTemporary
	}
	return f.Memory.Observe(ctx)
}

func TestALostImageIsPulledAgain(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		c := w.Observe(t)["app-1/web"]
		m.Lose(c.Image)
		if err := m.Remove(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "the container", func() bool {
			time.Sleep(time.Minute)
			return w.Observe(t)["app-1/web"].Status == workload.Running
		})
		w.Committed(t, r, 1)
	})
}

func TestTidy(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		r := w.Start(t)
		for g := range uint64(6) {
			a := app(1, web(fmt.Sprintf("web:%d", g)))
			a.Components[0].Version = fmt.Sprintf("1.0.%d", g)
			w.Publish(t, g+1, a)
			w.Sync(t, r)
		}
		time.Sleep(time.Minute)
		if got := m.Pulled(); len(got) != 2 {
			t.Errorf("images %v, want those of the running and the last good generation", got)
		}
		if n := w.Content.Len(); n > 10 {
			t.Errorf("%d blobs are kept, want those of two generations", n)
		}
	})
}

func TestWithoutAFleetEndpoint(t *testing.T) {
	world(t, nil, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Reporter = nil }
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		w.Sync(t, r)
		if o := r.Status().Outbox; o.Enabled || o.Depth != 0 {
			t.Errorf("outbox %+v", o)
		}
		r.Stop(t)
		if _, err := r.Sync(t.Context()); err == nil {
			t.Error("sync of a stopped agent: no error")
		}
		if err := r.Run(t.Context()); err == nil {
			t.Error("run twice: no error")
		}
	})
}
