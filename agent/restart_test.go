package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const byAna = "user ana (1000)"

// pair is an application whose service web depends on the service db.
func pair(db, web string) agenttest.App {
	return agenttest.App{ID: 1, Name: "app-1", Components: []agenttest.Comp{{Name: "app-1", Services: []agenttest.Service{
		{Name: "db", Image: "db:1", Extra: db}, {Name: "web", Image: "web:1", Extra: "    depends_on: [db]\n" + web},
	}}}}
}

// A paused container is resumed, stopped and started: the restart is over after the start.
func TestRestartOfAPausedContainer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		before := w.Observe(t)["app-1/web"]
		m.Stopping = 5 * time.Second
		if err := m.Pause(before.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Restart(t.Context(), []string{"web"}, byAna); err != nil {
			t.Fatal(err)
		}
		if after := w.Observe(t)["app-1/web"]; after.Run == before.Run || after.Status != workload.Running {
			t.Errorf("after the restart %+v, before %+v", after, before)
		}
	})
}

// What runs is not stopped while what it depends on is not there: it could not be started again.
func TestRestartBesideACrashedDependency(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, pair("    restart: \"no\"\n", ""))
		r := w.Start(t)
		w.Committed(t, r, 1)
		before := w.Observe(t)
		if err := m.Exit(before["app-1/db"].ID, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := r.Restart(ctx, []string{"web"}, byAna)
		if after := w.Observe(t)["app-1/web"]; after.Run != before["app-1/web"].Run || after.Status != workload.Running {
			t.Errorf("web: %+v, before %+v; %v", after, before["app-1/web"], err)
		}
		if !errors.Is(err, fault.ErrConflict) {
			t.Errorf("restart = %v, want a conflict", err)
		}
		if _, err := r.Restart(t.Context(), []string{"app-1"}, byAna); err != nil {
			t.Errorf("restart of both: %v", err)
		}
		for name, o := range w.Observe(t) {
			if o.Status != workload.Running || o.Run == before[name].Run {
				t.Errorf("%s: %+v", name, o)
			}
		}
	})
}

// The stop of a restart that the agent did not live to see is finished by the next one; a crash afterwards is a crash.
func TestRestartThatIsCutOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		app := anApp(1, "web:1")
		app.Components[0].Services[0].Extra = "    restart: \"no\"\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Committed(t, r, 1)
		before := w.Observe(t)["app-1/web"]
		m.Stopping = time.Hour
		done := make(chan error, 1)
		go func() {
			_, err := r.Restart(t.Context(), []string{"web"}, byAna)
			done <- err
		}()
		time.Sleep(time.Second)
		r.Stop(t)
		if err := <-done; !errors.Is(err, fault.ErrTemporary) {
			t.Errorf("restart = %v, want a temporary error", err)
		}
		m.Stopping = 0
		r = w.Start(t)
		w.Committed(t, r, 1)
		w.Wait(t, "the rest of the restart", func() bool {
			o := w.Observe(t)["app-1/web"]
			return o.Run != before.Run && o.Status == workload.Running
		})
		time.Sleep(time.Minute)
		if err := m.Exit(w.Observe(t)["app-1/web"].ID, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if o := w.Observe(t)["app-1/web"]; o.Status != workload.Exited {
			t.Errorf("after a crash with restart: no: %+v", o)
		}
	})
}

// A restart in the middle of an update does not fail it, and one beside a stop-first replacement is a conflict or comes to the new container.
func TestRestartDuringAnUpdate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Probation = time.Minute }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		w.Publish(t, 2, anApp(1, "web:2"))
		m.Stopping = 10 * time.Second
		go func() { _, _ = r.Sync(t.Context()) }()
		time.Sleep(5 * time.Second) // the old container is being stopped
		if _, err := r.Restart(t.Context(), []string{"web"}, byAna); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("restart of what is being replaced = %v", err)
		}
		time.Sleep(20 * time.Second) // in probation
		if _, err := r.Restart(t.Context(), []string{"web"}, byAna); err != nil {
			t.Error(err)
		}
		w.Committed(t, r, 2)
		if d := r.Status().Deployments[0]; d.Refused != nil || d.Error != nil {
			t.Errorf("%+v", d)
		}
	})
}

// After a reboot in which a service failed, the deployment can be restarted as a whole: what waits for that service starts behind it.
func TestRestartOfWhatNeverStarted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		broken := false
		m.Running = func(o workload.Observation) int {
			if broken && o.Service == "db" {
				return 1
			}
			return -1
		}
		w.Publish(t, 1, pair("    restart: \"no\"\n", ""))
		r := w.Start(t)
		w.Committed(t, r, 1)
		r.Stop(t)
		broken = true
		m.Reboot()
		r = w.Start(t)
		time.Sleep(time.Minute)
		if o := w.Observe(t); o["app-1/db"].Status != workload.Exited || o["app-1/web"].Status != workload.Created {
			t.Fatalf("%+v", o)
		}
		if _, err := r.Restart(t.Context(), []string{"web"}, byAna); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("restart of what depends on it = %v, want a conflict", err)
		}
		broken = false
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := r.Restart(ctx, []string{"app-1"}, byAna); err != nil {
			t.Errorf("restart of both: %v", err)
		}
		for name, o := range w.Observe(t) {
			if o.Status != workload.Running {
				t.Errorf("%s: %+v", name, o)
			}
		}
	})
}

// What could not be started is tried again at once.
func TestRestartEndsThePauseBeforeAStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var broken atomic.Bool
		var tries atomic.Int64
		m.Starting = func(context.Context, workload.Observation, bool) error {
			if broken.Load() {
				tries.Add(1)
				return errors.New("the device is busy")
			}
			return nil
		}
		app := anApp(1, "web:1")
		app.Components[0].Services[0].Extra = "    restart: always\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Committed(t, r, 1)
		broken.Store(true)
		if err := m.Exit(w.Observe(t)["app-1/web"].ID, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		last := tries.Load()
		w.Wait(t, "another try", func() bool { return tries.Load() > last })
		synctest.Wait() // it has failed
		broken.Store(false)
		before := time.Now()
		if _, err := r.Restart(t.Context(), []string{"web"}, byAna); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// One that cannot be started ends with the reason, also that of a start in progress when it came.
func TestRestartThatCannotStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var broken atomic.Bool
		m.Starting = func(context.Context, workload.Observation, bool) error {
			if broken.Load() {
				time.Sleep(5 * time.Second)
				return errors.New("the device is busy")
			}
			return nil
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		broken.Store(true)
		for _, moment := range []string{"runs", "is being started"} {
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			_, err := r.Restart(ctx, []string{"web"}, byAna)
			if !errors.Is(err, fault.ErrTemporary) || !strings.Contains(err.Error(), "app-1/web-1: ") || !strings.Contains(err.Error(), ": the device is busy") {
				t.Errorf("restart of what %s = %v", moment, err)
			}
			cancel()
			time.Sleep(2 * time.Second)
		}
	})
}

// One that is unhealthy again and again is started without the pause that follows such an end, also if it does so while it is being stopped.
func TestRestartOfWhatIsUnhealthy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var sick atomic.Bool
		m.Probing = func(context.Context, workload.Observation, workload.Probe) error {
			if sick.Load() {
				return errors.New("it does not answer")
			}
			return nil
		}
		app := anApp(1, "web:1")
		app.Components[0].Services[0].Extra = "    restart: always\n    deploy: {restart_policy: {condition: any, delay: 10m}}\n    healthcheck: {test: [CMD, /ok], interval: 1s, timeout: 1s, retries: 1}\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Committed(t, r, 1)
		before := w.Observe(t)["app-1/web"]
		m.Stopping = 10 * time.Second
		sick.Store(true)
		w.Wait(t, "it is stopped", func() bool { return r.Containers()[0].Health == "unhealthy" })
		asked := time.Now()
		if _, err := r.Restart(t.Context(), []string{"web"}, byAna); err != nil {
			t.Fatal(err)
		}
		if after := w.Observe(t)["app-1/web"]; after.Run == before.Run || after.Status != workload.Running || time.Since(asked) > time.Minute {
			t.Errorf("after %v: %+v, before %+v", time.Since(asked), after, before)
		}
	})
}

// slowLook is a runtime that takes its time to say what runs.
type slowLook struct {
	*runtimetest.Memory
	slow *atomic.Bool
}

func (s slowLook) Observe(ctx context.Context) (workload.Observed, error) {
	seen, err := s.Memory.Observe(ctx)
	if s.slow.Load() {
		time.Sleep(5 * time.Second)
	}
	return seen, err
}

// crashed runs f after the end of a container of which the loop does not know yet, because each look is slow from now on.
func crashed(t *testing.T, restart string, f func(t *testing.T, w *agenttest.World, r *agenttest.Running, m *runtimetest.Memory)) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var slow atomic.Bool
		w.Edit = func(o *agent.Options) { o.Runtime = slowLook{m, &slow} }
		app := anApp(1, "web:1")
		app.Components[0].Services[0].Extra = "    restart: " + restart + "\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Committed(t, r, 1)
		slow.Store(true)
		if err := m.Exit(w.Observe(t)["app-1/web"].ID, 1); err != nil {
			t.Fatal(err)
		}
		f(t, w, r, m)
	})
}

// startedAgain waits until the container of crashed has been started again, which the loop has not seen yet.
func startedAgain(t *testing.T, r *agenttest.Running) {
	t.Helper()
	started := errors.New("started")
	if err := r.Events(t.Context(), status.EventRequest{Follow: true}, func(e status.Event) error {
		if e.Kind == status.EventRestarted {
			return started
		}
		return nil
	}); !errors.Is(err, started) {
		t.Fatal(err)
	}
}

// A container that has just started is restarted too, although the loop has not seen that start yet.
func TestRestartOfWhatIsNotSeenYet(t *testing.T) {
	crashed(t, "always", func(t *testing.T, w *agenttest.World, r *agenttest.Running, _ *runtimetest.Memory) {
		startedAgain(t, r)
		before := w.Observe(t)["app-1/web"]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := r.Restart(ctx, []string{"web"}, byAna); err != nil {
			t.Error(err)
		}
		if after := w.Observe(t)["app-1/web"]; after.Run == before.Run || after.Status != workload.Running {
			t.Errorf("after the restart %+v, before %+v", after, before)
		}
	})
}

// The end of a container during a look that has seen it run is followed by another look at once.
func TestExitDuringASlowLook(t *testing.T) {
	crashed(t, "always", func(t *testing.T, w *agenttest.World, r *agenttest.Running, m *runtimetest.Memory) {
		startedAgain(t, r)
		time.Sleep(2 * time.Second)
		before := w.Observe(t)["app-1/web"]
		if err := m.Exit(before.ID, 1); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		w.Wait(t, "another start", func() bool { return w.Observe(t)["app-1/web"].Run != before.Run && w.Observe(t)["app-1/web"].Run != "" })
		if took := time.Since(ended); took > 15*time.Second {
			t.Errorf("it was started %v after its end", took)
		}
	})
}

// A restart whose caller has gone before the loop knows what runs is not begun.
func TestRestartThatIsGivenUp(t *testing.T) {
	crashed(t, `"no"`, func(t *testing.T, w *agenttest.World, r *agenttest.Running, _ *runtimetest.Memory) {
		time.Sleep(100 * time.Millisecond) // the loop looks
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := r.Restart(ctx, []string{"web"}, byAna); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("restart = %v", err)
		}
		time.Sleep(time.Minute)
		if o := w.Observe(t)["app-1/web"]; o.Status != workload.Exited {
			t.Errorf("started all the same: %+v", o)
		}
	})
}

// lateStop is a runtime that stops a container and says once that it could not.
type lateStop struct {
	*runtimetest.Memory
	failed *atomic.Bool
}

func (s lateStop) Stop(ctx context.Context, id string) error {
	err := s.Memory.Stop(ctx, id)
	if err == nil && !s.failed.Swap(true) {
		err = errors.New("the answer was lost")
	}
	return err
}

// What the agent stops has not exited by itself, also if the stop is said to have failed.
func TestStopThatFailsLate(t *testing.T) {
	for _, update := range []bool{false, true} {
		inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
			var failed atomic.Bool
			w.Edit = func(o *agent.Options) { o.Runtime = lateStop{m, &failed} }
			w.Publish(t, 1, anApp(1, "web:1"))
			r := w.Start(t)
			w.Committed(t, r, 1)
			if update {
				w.Publish(t, 2, anApp(1, "web:2"))
				w.Sync(t, r)
				w.Committed(t, r, 2)
			} else if _, err := r.Restart(t.Context(), []string{"web"}, byAna); err != nil {
				t.Fatal(err)
			}
			if got := kinds(eventsOf(t, r.Agent, status.EventRequest{})); !failed.Load() || slices.Contains(got, status.EventExited) {
				t.Errorf("update: %t: a stop failed: %t; events %v", update, failed.Load(), got)
			}
		})
	}
}

// Neither have containers whose stops end together, so that one look follows.
func TestStopsThatEndTogether(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, pair("", ""))
		r := w.Start(t)
		w.Committed(t, r, 1)
		m.Stopping = 5 * time.Second
		if _, err := r.Restart(t.Context(), []string{"app-1"}, byAna); err != nil {
			t.Fatal(err)
		}
		if got := kinds(eventsOf(t, r.Agent, status.EventRequest{})); slices.Contains(got, status.EventExited) {
			t.Errorf("events %v", got)
		}
	})
}
