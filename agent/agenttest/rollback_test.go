package agenttest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// KillsOfRollbacks kills an agent at every boundary of a rollback by hand that is released at once, and starts another one. It fails if the
// agent applies the rolled back generation again before an approval. With stride n it takes every n-th boundary.
func KillsOfRollbacks(t *testing.T, s Setup, stride int) {
	s.boundaries(t, stride, func(t *testing.T, w *World, at int) int { return w.killRollback(t, at) })
}

// killRollback makes a rollback with an agent that dies at a boundary; 0: it lives. It returns how many boundaries were met.
func (w *World) killRollback(t *testing.T, at int) int {
	t.Helper()
	app := func(image string) App {
		return App{ID: 1, Name: "front", Components: []Comp{{Name: "front", Version: "1.0." + image[len(image)-1:], Services: []Service{{Name: "web", Image: image}}}}}
	}
	w.Publish(t, 1, app("web:1"))
	r := w.Start(t)
	w.Committed(t, r, 1)
	w.Publish(t, 2, app("web:2"), other())
	w.Sync(t, r)
	w.Committed(t, r, 2)
	r.Stop(t)
	before := w.Observe(t)

	edit := w.Edit
	w.Edit = func(o *agent.Options) {
		if edit != nil {
			edit(o)
		}
		o.Approvals = approval.Policy{Kinds: []plan.Kind{plan.Install, plan.Images}}
	}
	k := &Killer{At: at}
	r = w.StartToDie(t, k)
	w.Wait(t, "the agent, or its end", func() bool { return k.Where() != "" || r.Status().Phase == status.PhaseInSync })
	_, _ = r.RollBack(t.Context(), agent.RollbackRequest{By: "root", Via: "command"}) // an error: it is dead
	_, _ = r.Release(t.Context(), "root", "command")
	w.Wait(t, "the kill, or the end", func() bool { return k.Where() != "" || w.backAndWaits(t, r) && w.quiet(k) })
	r.Stop(t)
	t.Logf("killed at %q", k.Where())

	back, held := w.savedRollback(t)
	r = w.Start(t)
	if !back { // it died before that was saved
		w.Committed(t, r, 2)
		w.Same(t, before)
		r.Stop(t)
		return k.Met()
	}
	if held {
		w.Wait(t, "the release", func() bool { _, err := r.Release(t.Context(), "root", "command"); return err == nil })
	}
	w.Wait(t, "what was rolled back waits", func() bool { return w.backAndWaits(t, r) })
	time.Sleep(time.Minute)
	if s := r.Status(); !w.backAndWaits(t, r) || s.Committed.Generation != 1 || s.Running.Generation != 1 {
		t.Errorf("a minute later: phase %s, committed %+v, running %+v, containers %+v", s.Phase, s.Committed, s.Running, w.Observe(t))
	}
	approveAll(t, r)
	w.Committed(t, r, 2)
	after := w.allRun(t, "front/web", "other/sensor")
	if after["front/web"].Image != before["front/web"].Image {
		t.Errorf("front/web runs %s, want %s", after["front/web"].Image, before["front/web"].Image)
	}
	r.Stop(t)
	return k.Met()
}

// backAndWaits reports whether generation 1 runs and nothing else, and both changes of generation 2 wait.
func (w *World) backAndWaits(t *testing.T, r *Running) bool {
	t.Helper()
	all, err := r.Changes(t.Context())
	if err != nil || len(all) != 2 || all[0].Waiting == nil || all[1].Waiting == nil {
		return false
	}
	seen := w.Observe(t)
	x := seen["front/web"]
	return len(seen) == 1 && x.Status == workload.Running && strings.HasSuffix(x.Image, w.Image("web:1").Digest.String())
}

// savedRollback is what an agent that died has saved: whether generation 1 is what changes are compared with, and whether it is held there.
func (w *World) savedRollback(t *testing.T) (back, held bool) {
	t.Helper()
	s, err := store.Open(store.Options{Path: w.Path, Device: string(Device)})
	if err != nil {
		t.Fatal(err)
	}
	err = s.View(func(tx *store.Tx) error {
		good, err1 := tx.Good()
		hold, err2 := tx.Hold()
		back, held = len(good) == 1 && good[0].Generation == 1, hold != nil
		return errors.Join(err1, err2)
	})
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return back, held
}
