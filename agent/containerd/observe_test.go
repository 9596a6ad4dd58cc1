package containerd_test

import (
	"context"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// What somebody else does to containers of ours is told, what we do is not, and what is not ours is never told.
func TestEventsOfOthers(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	p := project("drift", server(img))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := r.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := r.up(p)[0]
	r.serving(c.ID)
	ctr := func(args ...string) {
		t.Helper()
		if out, err := r.daemon.Ctr(ctx, append([]string{"-n", r.o.Namespace}, args...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	next := func(want workload.Event) {
		t.Helper()
		select {
		case e := <-ch:
			if e != want {
				t.Errorf("event %+v, want %+v", e, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no event %+v", want)
		}
	}
	changed := workload.Event{Kind: workload.EventChanged, ID: c.ID}
	ctr("tasks", "pause", c.ID)
	next(changed)
	if o := r.seen(c.ID); o.Status != workload.Paused || o.PID == 0 {
		t.Errorf("after a pause by hand: %+v", o)
	}
	if err := r.start(c); err != nil {
		t.Fatal(err)
	}
	if o := r.seen(c.ID); o.Status != workload.Running {
		t.Errorf("Start of a paused container: %+v, want it resumed", o)
	}
	ctr("containers", "label", c.ID, "note=by-hand")
	next(changed)
	ctr("tasks", "kill", "-s", "SIGKILL", c.ID)
	next(workload.Event{Kind: workload.EventExit, ID: c.ID})
	r.exited(c.ID)
	ctr("containers", "delete", c.ID)
	next(changed)
	if o, err := r.Observe(ctx); err != nil || len(o.Containers) != 0 {
		t.Errorf("after a deletion by hand: %+v, %v", o, err)
	}
	if err := r.Create(ctx, p, c); err != nil {
		t.Fatal(err)
	}
	if err := r.start(c); err != nil {
		t.Errorf("made again: %v", err)
	}
	ctr("containers", "create", "--snapshotter", r.o.Snapshotter, "--label", "a=b", img.Name(), "foreign", "/toolbox", "sleep")
	ctr("containers", "delete", "foreign")
	next(workload.Event{Kind: workload.EventChanged, ID: "foreign"}) // gone: whose it was nobody can say
	testenv.Eventually(t, time.Minute, "it is removed", func() error { return r.Remove(ctx, c.ID) })
	for quiet := false; !quiet; {
		select {
		case e := <-ch:
			if e.Kind == workload.EventChanged && e.ID != "foreign" { // of which one event or two are handled after its end
				t.Errorf("event %+v of our own doing", e)
			}
		case <-time.After(500 * time.Millisecond):
			quiet = true
		}
	}
}
