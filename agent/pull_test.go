package agent_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// TestASlowUpdateKeepsNothingFromComingBack: while the next generation's image hardly comes, a container whose image was lost with it
// comes back, and the slow pull is a problem that is shown. It goes on where it is when bytes come again.
func TestASlowUpdateKeepsNothingFromComingBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		release := make(chan struct{})
		m.Pulling = func(ctx context.Context, i workload.Image, progress func(done, total int64)) error {
			if !strings.HasSuffix(i.Repository, "/web") || i.Tag != "2" {
				return nil
			}
			progress(1000, 1000000)
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		w.Publish(t, 2, anApp(1, "web:2"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = r.Sync(ctx) }() // ends with the test
		w.Wait(t, "the slow pull begins", func() bool { return r.Status().Loading != nil && r.Status().Loading.Done > 0 })
		if hasProblem(r.Status(), codes.PullStalled) {
			t.Error("a pull that has just begun is a problem")
		}
		c := w.Observe(t)["app-1/web"]
		m.Lose(c.Image)
		if err := m.Delete(c.ID); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "the container comes back beside the slow pull", func() bool { return w.Observe(t)["app-1/web"].Status == workload.Running })
		w.Wait(t, "the slow pull is a problem", func() bool { return hasProblem(r.Status(), codes.PullStalled) })
		for _, p := range r.Status().Problems {
			if p.Code == codes.PullStalled && (!strings.Contains(p.Message, "images/web:2") && !strings.Contains(p.Message, "images/web@") || p.Hint == "" || p.Since.IsZero()) {
				t.Errorf("problem = %+v, want the image, a hint and since when", p)
			}
		}
		close(release)
		w.Committed(t, r, 2)
		if hasProblem(r.Status(), codes.PullStalled) {
			t.Error("the problem stayed")
		}
	})
}

// TestAnImageLostAtAStart: what a start finds gone is pulled again, and the start is tried again at once.
func TestAnImageLostAtAStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		m.Starting = func(_ context.Context, _ workload.Observation, image bool) error {
			if !image {
				return workload.ErrImageGone
			}
			return nil
		}
		app := anApp(1, "web:1")
		app.Components[0].Services[0].Extra = "    restart: always\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Committed(t, r, 1)
		c := w.Observe(t)["app-1/web"]
		m.Lose(c.Image)
		if err := m.Exit(c.ID, 1); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "it runs again", func() bool { return w.Observe(t)["app-1/web"].Status == workload.Running })
	})
}

// TestAStartTriedDuringTheRefill: other failures while the image is pulled again do not lengthen the wait after the pull.
func TestAStartTriedDuringTheRefill(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var lost, pulling atomic.Bool
		var tries atomic.Int32
		var ended time.Time
		m.Starting = func(_ context.Context, _ workload.Observation, image bool) error {
			switch {
			case image:
				return nil
			case pulling.Load():
				tries.Add(1)
				return fault.ErrTemporary
			}
			return workload.ErrImageGone
		}
		m.Pulling = func(context.Context, workload.Image, func(done, total int64)) error {
			if !lost.Load() {
				return nil
			}
			pulling.Store(true)
			time.Sleep(10*time.Minute + 7*time.Second)
			ended = time.Now()
			return nil
		}
		w.Patience = time.Hour
		app := anApp(1, "web:1")
		app.Components[0].Services[0].Extra = "    restart: always\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Committed(t, r, 1)
		c := w.Observe(t)["app-1/web"]
		lost.Store(true)
		m.Lose(c.Image)
		if err := m.Exit(c.ID, 1); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "it runs again", func() bool { return w.Observe(t)["app-1/web"].Status == workload.Running })
		if late := time.Since(ended); late > 5*time.Second || tries.Load() == 0 {
			t.Errorf("it runs %v after the pull, and %d starts were tried meanwhile; want 5 s at most, and some", late, tries.Load())
		}
	})
}

// TestImagesThatDoNotFitBesideEachOther: as many images at a time as the options say, and one at a time once the disk was full.
func TestImagesThatDoNotFitBesideEachOther(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var begun, now, most atomic.Int32
		m.Pulling = func(context.Context, workload.Image, func(done, total int64)) error {
			beside, since := now.Add(1), begun.Add(1)
			defer now.Add(-1)
			most.Store(max(most.Load(), beside))
			time.Sleep(time.Second)
			if beside > 1 || begun.Load() != since {
				return unix.ENOSPC
			}
			return nil
		}
		w.Publish(t, 1, anApp(1, "a:1"), anApp(2, "b:1"), anApp(3, "c:1"), anApp(4, "d:1"))
		w.Committed(t, w.Start(t), 1)
		if most.Load() != 2 {
			t.Errorf("%d images were pulled at a time, want 2", most.Load())
		}
	})
}

// TestALongPreStart: what comes before a start may take its time, holds no other container up, and ends when it is not wanted any more.
func TestALongPreStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Patience = 3 * time.Hour
		var begun, ended atomic.Int32
		m.Starting = func(ctx context.Context, o workload.Observation, _ bool) error {
			if o.Service != "web" {
				return nil
			}
			begun.Add(1)
			defer ended.Add(1)
			select {
			case <-time.After(time.Hour):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		apps := []agenttest.App{{ID: 99, Name: "other", Components: []agenttest.Comp{{Name: "other", Services: []agenttest.Service{{Name: "other", Image: "web:1"}}}}}}
		for id := range 12 { // more than there are steps at a time
			a := anApp(id+1, "web:1")
			a.Components[0].Services[0].Extra = "    pre_start:\n      - image: registry.example/images/web:1\n        command: [migrate]\n"
			apps = append(apps, a)
		}
		w.Publish(t, 1, apps...)
		r := w.Start(t)
		w.Wait(t, "another container runs meanwhile", func() bool { return w.Observe(t)["other/other"].Status == workload.Running && begun.Load() == 12 })
		if ended.Load() > 0 {
			t.Error("the other container has waited")
		}
		w.Committed(t, r, 1)
		if begun.Load() != 12 {
			t.Errorf("what comes before 12 starts was begun %d times", begun.Load())
		}
		begun.Store(0)
		ended.Store(0)
		apps[1].Components[0].Version, apps[1].Components[0].Services[0].Image = "2.0.0", "web:2"
		apps[1].Components[0].Services[0].Extra = strings.ReplaceAll(apps[1].Components[0].Services[0].Extra, "web:1", "web:2")
		w.Publish(t, 2, apps...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = r.Sync(ctx) }() // ends with the test
		w.Wait(t, "the new revision's migration", func() bool { return begun.Load() > 0 })
		asked := time.Now()
		w.Publish(t, 3, apps[0])
		go func() { _, _ = r.Sync(ctx) }()
		w.Committed(t, r, 3)
		if took := time.Since(asked); took > 10*time.Minute {
			t.Errorf("what is not wanted any more was waited for: %v", took)
		}
	})
}

// TestAnImageHealthCheckSurvivesARestart: what an image says is saved with the target, so that an agent that starts without the
// registry and without the image probes at once.
func TestAnImageHealthCheckSurvivesARestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var sick atomic.Bool
		m.Inspect = func(workload.Image) workload.ImageInfo {
			return workload.ImageInfo{Health: &workload.Health{
				Probe: workload.Probe{Exec: []string{"check"}}, Interval: 10 * time.Second, Timeout: time.Second, Retries: 3,
			}}
		}
		m.Probing = func(context.Context, workload.Observation, workload.Probe) error {
			if sick.Load() {
				return errors.New("no answer")
			}
			return nil
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		r.Stop(t)
		m.Lose(w.Observe(t)["app-1/web"].Image)
		m.Images = func(workload.Image) error { return fault.ErrTemporary }
		w.Registry.Fail(func(string) error { return fault.ErrTemporary })
		r = w.Start(t)
		health := func() plan.Health {
			for _, d := range r.Status().Deployments {
				return d.Components[0].Services[0].Health
			}
			return ""
		}
		w.Wait(t, "the container is healthy", func() bool { return health() == plan.HealthHealthy })
		sick.Store(true)
		w.Wait(t, "the container is unhealthy", func() bool { return health() == plan.HealthUnhealthy })
	})
}
