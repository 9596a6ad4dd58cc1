package containerd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestProbes(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	web := server(img)
	idle := workload.Service{Name: "idle", Image: img, Command: []string{"sleep"}}
	cs := r.up(project("ask", web, idle))
	r.serving(cs[0].ID)
	exec := func(argv ...string) workload.Probe {
		return workload.Probe{Exec: append([]string{"/toolbox"}, argv...)}
	}
	http := func(path string) workload.Probe {
		return workload.Probe{HTTP: &workload.HTTPProbe{Port: 8080, Path: path}}
	}
	for name, tc := range map[string]struct {
		id    string
		probe workload.Probe
		good  bool
	}{
		"exec 0":               {cs[0].ID, exec("get", "http://localhost:8080/"), true},
		"exec 3":               {cs[0].ID, exec("exit", "3"), false},
		"exec without program": {cs[0].ID, workload.Probe{Exec: []string{"/nowhere"}}, false},
		"http 200":             {cs[0].ID, http("/env"), true},
		"http without a path":  {cs[0].ID, http(""), true},
		"http 404":             {cs[0].ID, http("/nowhere"), false},
		"http refused":         {cs[1].ID, http("/"), false},
		"tcp":                  {cs[0].ID, workload.Probe{TCP: 8080}, true},
		"tcp closed":           {cs[0].ID, workload.Probe{TCP: 9}, false},
		"empty":                {cs[0].ID, workload.Probe{}, false},
		"no container":         {"nobody", workload.Probe{TCP: 8080}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := r.Probe(t.Context(), tc.id, tc.probe); (err == nil) != tc.good {
				t.Errorf("Probe = %v, want good: %v", err, tc.good)
			}
		})
	}
	t.Run("exec in time", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := r.Probe(ctx, cs[0].ID, exec("stubborn")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Probe = %v, want %v", err, context.DeadlineExceeded)
		}
	})
	t.Run("given up anywhere", func(t *testing.T) {
		for limit := time.Millisecond; limit < 300*time.Millisecond; limit = limit * 3 / 2 {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			if err := r.Probe(ctx, cs[0].ID, exec("stubborn")); err == nil {
				t.Errorf("a probe that does not end is good after %v", limit)
			}
			cancel()
		}
	})
	// Probes leave no process behind: the first one's namespace holds the server alone.
	pid := r.seen(cs[0].ID).PID
	inside, err := os.Readlink(filepath.Join("/proc", itoa(pid), "ns/pid"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range all {
		if at, err := os.Readlink(p); err == nil && at == inside {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d processes in the container, want 1", n)
	}
	out, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "tasks", "list")
	if err != nil || strings.Contains(out, "probe-") {
		t.Errorf("tasks = %s, %v, want no probes", out, err)
	}
	if err := r.Stop(t.Context(), cs[0].ID); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]workload.Probe{"exec": exec("exit", "0"), "http": http("/"), "tcp": {TCP: 8080}} {
		if err := r.Probe(t.Context(), cs[0].ID, p); err == nil {
			t.Errorf("%s probe of a stopped container succeeded", name)
		}
	}
}

func TestEvents(t *testing.T) {
	r := ownRig(t)
	img := r.pulled(nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := r.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := func(ch <-chan workload.Event) (workload.Event, bool) {
		t.Helper()
		select {
		case e, ok := <-ch:
			return e, ok
		case <-time.After(time.Minute):
			t.Fatal("no event came")
			return workload.Event{}, false
		}
	}
	cs := r.up(project("ev", server(img), workload.Service{Name: "short", Image: img, Command: []string{"exit", "4"}}))
	if e, ok := next(events); !ok || e != (workload.Event{Kind: workload.EventExit, ID: cs[1].ID}) {
		t.Errorf("event = %+v, want the exit of %s", e, cs[1].ID)
	}
	// A probe's process ends without an event: the next one is the container's.
	r.serving(cs[0].ID)
	if err := r.Probe(t.Context(), cs[0].ID, workload.Probe{Exec: []string{"/toolbox", "env"}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), cs[0].ID); err != nil {
		t.Fatal(err)
	}
	if e, ok := next(events); !ok || e != (workload.Event{Kind: workload.EventExit, ID: cs[0].ID}) {
		t.Errorf("event = %+v, want the exit of %s", e, cs[0].ID)
	}
	r.daemon.Kill()
	if e, ok := next(events); !ok || e.Kind != workload.EventLost {
		t.Errorf("event = %+v, %v, want %s", e, ok, workload.EventLost)
	}
	if e, ok := next(events); ok {
		t.Errorf("event = %+v after the connection was lost, want a closed channel", e)
	}
	if err := r.daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if events, err = r.Events(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if e, ok := next(events); ok {
		t.Errorf("event = %+v after the context ended, want a closed channel", e)
	}
}

func TestForeignObjectsAreLeftAlone(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	p := project("mine", server(img))
	c := r.up(p)[0]
	other := r.o
	other.Device = "press-08"
	r2 := r.reopened(other)
	seen, err := r2.Observe(t.Context())
	if err != nil || len(seen.Containers) != 0 {
		t.Errorf("Observe of another device = %v, %v, want nothing", seen.Containers, err)
	}
	for name, err := range map[string]error{
		"Create": r2.Create(t.Context(), p, c), "Start": r2.Start(t.Context(), p, c), "Stop": r2.Stop(t.Context(), c.ID),
		"Remove": r2.Remove(t.Context(), c.ID),
	} {
		if !errors.Is(err, fault.ErrConflict) {
			t.Errorf("%s of another device's container = %v, want %v", name, err, fault.ErrConflict)
		}
	}
	if err := r2.Collect(t.Context(), nil); err != nil {
		t.Error(err)
	}
	r.serving(c.ID)
	if err := errors.Join(r.Stop(t.Context(), c.ID), r.start(c)); err != nil {
		t.Error(err)
	}
	foreign := "mine-x-1-00000000"
	if _, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "snapshots", "prepare", foreign); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), foreign); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Remove with somebody else's snapshot = %v, want %v", err, fault.ErrConflict)
	}
	if _, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "snapshots", "rm", foreign); err != nil {
		t.Errorf("the snapshot is gone: %v", err)
	}
}
