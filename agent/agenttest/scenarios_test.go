package agenttest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Setup says where the scenarios run.
type Setup struct {
	// Open makes an empty device, for one scenario.
	Open func(t *testing.T) Env
	// Around wraps each scenario, as synctest.Test does; nil: nothing.
	Around func(t *testing.T, f func(*testing.T))
	// Prepare is called with each scenario's world first; nil: it stays as it is.
	Prepare func(t *testing.T, w *World)
	// Parallel is how many scenarios run at a time: those on real programs mostly wait. 0: one.
	Parallel int
	// Stride takes every n-th of the refusals of which the runtime sees nothing; 0: all.
	Stride int
}

// scene is one named test.
type scene struct {
	name string
	run  func(t *testing.T)
}

// each runs scenes, as many at a time as the setup says, however many processors there are.
func (s Setup) each(t *testing.T, scenes []scene) {
	t.Helper()
	Each(s.Parallel, scenes, func(x scene) { t.Run(x.name, x.run) })
}

// Each calls f with every item, n calls at a time, and waits for all. 0 is one.
func Each[T any](n int, items []T, f func(T)) {
	slots := make(chan struct{}, max(n, 1))
	var calls sync.WaitGroup
	for _, x := range items {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			f(x)
		})
	}
	calls.Wait()
}

// Run runs every scenario, each on a device of its own.
func Run(t *testing.T, s Setup) {
	var scenes []scene
	for _, sc := range []struct {
		name string
		run  func(t *testing.T, w *World)
	}{
		{"install", install},
		{"update keeps what did not change", update},
		{"remove", remove},
		{"offline", offline},
		{"restart of the agent", restart},
		{"reboot", reboot},
		{"crash of a container", crash},
		{"a refused state changes nothing", refused},
		{"a newer generation supersedes", supersede},
		{"logs", logs},
		{"restart by hand", restartByHand},
	} {
		scenes = append(scenes, scene{sc.name, func(t *testing.T) { s.scenario(t, sc.run) }})
	}
	s.each(t, scenes)
}

func (s Setup) scenario(t *testing.T, f func(t *testing.T, w *World)) {
	t.Helper()
	around := s.Around
	if around == nil {
		around = func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	around(t, func(t *testing.T) {
		w := NewWorld(t, s.Open(t))
		if s.Prepare != nil {
			s.Prepare(t, w)
		}
		f(t, w)
	})
}

// Line is the line-monitoring application, with its web front in a version: web keeps a volume and waits for the broker.
func Line(web string) App {
	return App{ID: 1, Name: "line-monitor", Components: []Comp{{Name: "line-monitor", Version: "1.0." + web, Services: []Service{
		{Name: "broker", Image: "broker:1"},
		{Name: "sensor", Image: "sensor:1", Extra: "    depends_on: [broker]\n"},
		{Name: "web", Image: "web:" + web, Extra: "    restart: always\n    depends_on: [broker]\n    volumes:\n      - data:/data\n"},
	}}}}
}

const line = "line-monitor"

// mark writes into the web front's volume; the check says that it is still there.
func (w *World) mark(t *testing.T, a App) (check func(t *testing.T)) {
	t.Helper()
	if w.WriteVolume == nil {
		return func(*testing.T) {}
	}
	w.WriteVolume(t, a.Project(line), "data", "precious")
	return func(t *testing.T) {
		t.Helper()
		if got := w.ReadVolume(t, a.Project(line), "data"); got != "precious" {
			t.Errorf("volume holds %q, want %q", got, "precious")
		}
	}
}

func (w *World) allRun(t *testing.T, want ...string) map[string]workload.Observation {
	t.Helper()
	got := w.Observe(t)
	for _, name := range want {
		if got[name].Status != workload.Running || got[name].PID == 0 {
			t.Errorf("%s is %+v, want it running", name, got[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("containers %v, want %v", got, want)
	}
	return got
}

func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func install(t *testing.T, w *World) {
	d := w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	expect(t, "sync", w.Sync(t, r), status.SyncResult{Outcome: status.SyncInstalled, Generation: 1})
	w.allRun(t, line+"/broker", line+"/sensor", line+"/web")
	s := r.Status()
	if s.Phase != status.PhaseInSync || len(s.Problems) != 0 || s.Running.Digest != d || len(s.Deployments) != 1 || len(s.Deployments[0].Components[0].Services) != 3 {
		t.Errorf("status %+v", s)
	}
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
	expect(t, "states", w.States(t, Line("1").DeploymentID()), []string{"pending@1", "installing@1", "installed@1"})
	x := w.Extra(t)
	if p := x.Progress; p == nil || p.Phase != store.PhaseCommitted || p.Digest != d || p.Generation != 1 {
		t.Errorf("the report has the progress %+v", p)
	}
	x.Progress = nil
	expect(t, "extension", x, status.Extra{
		AgentVersion: "0.0.0-test", AcceptedGeneration: 1, Digest: d.String(), RunningGeneration: 1, CommittedGeneration: 1, Insecure: []string{},
	})
	w.Registry.Requests()
	expect(t, "second sync", w.Sync(t, r), status.SyncResult{Outcome: status.SyncUnchanged, Generation: 1})
	expect(t, "requests of an unchanged poll", w.Registry.Requests(), w.unchanged())
}

func update(t *testing.T, w *World) {
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	before := w.allRun(t, line+"/broker", line+"/sensor", line+"/web")
	check := w.mark(t, Line("1"))
	w.Publish(t, 2, Line("2"))
	expect(t, "sync", w.Sync(t, r), status.SyncResult{Outcome: status.SyncInstalled, Generation: 2})
	after := w.allRun(t, line+"/broker", line+"/sensor", line+"/web")
	for _, name := range []string{"broker", "sensor"} {
		if a, b := before[line+"/"+name], after[line+"/"+name]; a.ID != b.ID || a.PID != b.PID {
			t.Errorf("%s was replaced: %s (%d), now %s (%d)", name, a.ID, a.PID, b.ID, b.PID)
		}
	}
	if a, b := before[line+"/web"], after[line+"/web"]; a.ID == b.ID || b.Image == a.Image {
		t.Errorf("web was not replaced: %s", b.ID)
	}
	check(t)
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
	expect(t, "states", w.States(t, Line("1").DeploymentID()),
		[]string{"pending@1", "installing@1", "installed@1", "pending@2", "installing@2", "installed@2"})
}

func remove(t *testing.T, w *World) {
	other := other()
	w.Publish(t, 1, Line("1"), other)
	r := w.Start(t)
	w.Sync(t, r)
	before := w.allRun(t, line+"/broker", line+"/sensor", line+"/web", "other/sensor")
	check := w.mark(t, Line("1"))
	w.Publish(t, 2, other)
	expect(t, "sync", w.Sync(t, r), status.SyncResult{Outcome: status.SyncInstalled, Generation: 2})
	after := w.allRun(t, "other/sensor")
	if a, b := before["other/sensor"], after["other/sensor"]; a.PID != b.PID {
		t.Errorf("the deployment that stays was restarted")
	}
	check(t)
	w.Publish(t, 3)
	expect(t, "sync to nothing", w.Sync(t, r), status.SyncResult{Outcome: status.SyncInstalled, Generation: 3})
	w.allRun(t)
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
	expect(t, "states", w.States(t, Line("1").DeploymentID()),
		[]string{"pending@1", "installing@1", "installed@1", "removing@2", "removed@2"})
	expect(t, "states of the other", w.States(t, other.DeploymentID()),
		[]string{"pending@1", "installing@1", "installed@1", "installed@2", "removing@3", "removed@3"})
	if d := r.Status().Deployments; len(d) != 0 {
		t.Errorf("deployments left in the status: %v", d)
	}
}

func offline(t *testing.T, w *World) {
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	before := w.Observe(t)
	w.Registry.Fail(unreachable)
	w.Fleet.Fail(func(store.Report) error { return unreachable("deliver") })
	res := w.Sync(t, r)
	if res.Outcome != status.SyncUnreachable || res.Code != codes.SourceUnreachable {
		t.Errorf("sync = %+v, want unreachable", res)
	}
	w.Same(t, before)
	r.Stop(t)
	r = w.Start(t) // everything comes from the disk
	w.Sync(t, r)
	w.Wait(t, "status after a start without a network", func() bool {
		s := r.Status()
		return s.Committed != nil && len(s.Deployments) == 1 && len(s.Problems) > 0 && s.Problems[0].Code == codes.SourceUnreachable
	})
	w.Same(t, before)
	expect(t, "state", r.Status().Deployments[0].State, margo.StateInstalled)
	w.Registry.Fail(nil)
	w.Publish(t, 2, Line("2"))
	expect(t, "sync", w.Sync(t, r), status.SyncResult{Outcome: status.SyncInstalled, Generation: 2})
	if n := r.Status().Outbox.Depth; n == 0 {
		t.Error("no report waits although the fleet endpoint is away")
	}
	w.Fleet.Fail(nil)
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
	expect(t, "states", w.States(t, Line("1").DeploymentID()),
		[]string{"pending@1", "installing@1", "installed@1", "pending@2", "installing@2", "installed@2"})
}

func restart(t *testing.T, w *World) {
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	before := w.Observe(t)
	r.Stop(t)
	w.Same(t, before)
	for range 2 {
		r = w.Start(t)
		expect(t, "sync", w.Sync(t, r), status.SyncResult{Outcome: status.SyncUnchanged, Generation: 1})
		w.Same(t, before)
		w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
		r.Stop(t)
	}
	expect(t, "states", w.States(t, Line("1").DeploymentID()), []string{"pending@1", "installing@1", "installed@1"})
}

func reboot(t *testing.T, w *World) {
	if w.Reboot == nil {
		t.Skip("this runtime does not reboot")
	}
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	before := w.Observe(t)
	check := w.mark(t, Line("1"))
	r.Stop(t)
	w.Reboot(t)
	w.Registry.Fail(unreachable)
	r = w.Start(t)
	w.Wait(t, "containers after a reboot without a network", func() bool {
		for name, c := range w.Observe(t) {
			if c.Status != workload.Running || c.ID != before[name].ID {
				return false
			}
		}
		return len(w.Observe(t)) == len(before)
	})
	check(t)
	expect(t, "state", r.Status().Deployments[0].State, margo.StateInstalled)
}

func crash(t *testing.T, w *World) {
	if w.Exit == nil {
		t.Skip("this runtime's containers do not crash on demand")
	}
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	before := w.Observe(t)
	w.Exit(t, before[line+"/web"].ID)
	w.Wait(t, "the restart", func() bool {
		c := w.Observe(t)[line+"/web"]
		return c.Status == workload.Running && c.PID != before[line+"/web"].PID
	})
	w.Wait(t, "the count of restarts", func() bool {
		for _, s := range r.Status().Deployments[0].Components[0].Services {
			if s.Name == "web" {
				return s.Restarts == 1
			}
		}
		return false
	})
	expect(t, "state after one restart", r.Status().Deployments[0].State, margo.StateInstalled)
	w.Exit(t, before[line+"/sensor"].ID) // restart: no
	w.Wait(t, "failed", func() bool { return r.Status().Deployments[0].State == margo.StateFailed })
	s := r.Status()
	expect(t, "code", s.Deployments[0].Error.Code, string(codes.ContainerExited))
	expect(t, "phase", s.Phase, status.PhaseDegraded)
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
	expect(t, "states", w.States(t, Line("1").DeploymentID()), []string{"pending@1", "installing@1", "installed@1", "failed@1"})
}

func refused(t *testing.T, w *World) {
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	before := w.Observe(t)
	d := w.Offer(t, w.State(t, 2, nil, Line("2"))) // not signed
	res := w.Sync(t, r)
	signed := Repository + "@" + d.String()
	if margo.IsManager(r.Status().Repository) {
		signed = "REFERENCE" // where the manager has it is not known
	}
	if res.Outcome != status.SyncRefused || res.Code != codes.SignatureMissing || !strings.Contains(res.Hint, " --key KEY "+signed) {
		t.Errorf("sync = %+v, want refused for want of a signature", res)
	}
	w.Same(t, before)
	st := r.Status()
	if len(st.Problems) != 1 || st.Problems[0].Code != codes.SignatureMissing || st.Accepted.Generation != 1 {
		t.Errorf("status %+v", st)
	}
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
	if x := w.Extra(t); x.Refused == nil || x.Refused.Code != string(codes.SignatureMissing) || x.Refused.Digest != d || x.AcceptedGeneration != 1 {
		t.Errorf("extension %+v", x)
	}
	w.Verifier.Sign(d)
	expect(t, "sync once signed", w.Sync(t, r), status.SyncResult{Outcome: status.SyncInstalled, Generation: 2})
	w.Wait(t, "reports", func() bool { return w.Extra(t).Refused == nil && w.Extra(t).AcceptedGeneration == 2 })
}

func supersede(t *testing.T, w *World) {
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	before := w.Observe(t)
	broken := Line("2")
	broken.Components[0].Services[0].Image = "missing:1" // is in no registry
	w.Publish(t, 2, broken)
	res := w.Sync(t, r)
	if res.Outcome != status.SyncFailed || !strings.HasPrefix(string(res.Code), "image-") || res.Generation != 2 {
		t.Errorf("sync = %+v, want failed: an image is missing", res)
	}
	w.Same(t, before)
	expect(t, "accepted", fmt.Sprint(r.Status().Accepted.Generation, r.Status().Running.Generation), "2 1")
	w.Publish(t, 3, Line("2"))
	expect(t, "sync", w.Sync(t, r), status.SyncResult{Outcome: status.SyncInstalled, Generation: 3})
	after := w.allRun(t, line+"/broker", line+"/sensor", line+"/web")
	if a, b := before[line+"/broker"], after[line+"/broker"]; a.PID != b.PID {
		t.Error("the broker was restarted by a generation that never ran")
	}
}

func logs(t *testing.T, w *World) {
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	for _, q := range []status.LogRequest{{Targets: []string{line + "/web"}}, {Targets: []string{"web"}}, {}} {
		rc, err := r.Logs(t.Context(), q)
		if err != nil {
			t.Fatalf("logs %+v: %v", q, err)
		}
		if err := rc.Close(); err != nil {
			t.Errorf("logs %+v: close: %v", q, err)
		}
	}
	for _, q := range []status.LogRequest{{Targets: []string{"none"}}, {Targets: []string{line + "/none"}}} {
		if _, err := r.Logs(t.Context(), q); err == nil {
			t.Errorf("logs %+v: no error", q)
		}
	}
}

func restartByHand(t *testing.T, w *World) {
	w.Publish(t, 1, Line("1"))
	r := w.Start(t)
	w.Sync(t, r)
	names := []string{line + "/broker", line + "/sensor", line + "/web"}
	before := w.allRun(t, names...)
	done, err := r.Restart(t.Context(), []string{"web", line + "/sensor"}, "user ana (1000)")
	if err != nil || len(done) != 2 {
		t.Fatalf("restarted %+v, %v", done, err)
	}
	after := w.allRun(t, names...)
	for _, c := range done {
		if x := after[line+"/"+c.Service]; c.State != workload.Running || c.PID != x.PID || !c.StartedAt.Equal(x.StartedAt) {
			t.Errorf("restarted %+v, and it is %+v", c, x)
		}
	}
	for _, name := range names {
		if again := after[name].Run != before[name].Run; again != (name != line+"/broker") || after[name].ID != before[name].ID {
			t.Errorf("%s: restarted %v, container %s, before %s", name, again, after[name].ID, before[name].ID)
		}
	}
	expect(t, "sync", w.Sync(t, r).Outcome, status.SyncUnchanged)
	for _, targets := range [][]string{{"none"}, {line + "/none"}, nil} {
		if done, err := r.Restart(t.Context(), targets, "user ana (1000)"); err == nil {
			t.Errorf("restarted %v: %+v", targets, done)
		}
	}
}

// unchanged are the requests of a check that finds nothing new.
func (w *World) unchanged() []string {
	if w.Managed() {
		return []string{"manager GET /api/v1/deployments"}
	}
	return []string{"resolve " + Repository + ":press-07"}
}
