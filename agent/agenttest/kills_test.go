package agenttest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// change is something that a state does to a device.
type change struct {
	name          string
	before, after []App    // before: nil is a device that never saw a state
	want          []string // containers in the end
	keep          []string // of them, those that must not be touched
	states        []string // what the fleet endpoint is told about the application, not more and not less
	fails         bool     // the device goes back to what it was
	asks          bool     // it needs an approval, which the test gives
}

// other is an application that stays as it is.
func other() App {
	return App{ID: 2, Name: "other", Components: []Comp{{Name: "other", Services: []Service{{Name: "sensor", Image: "sensor:1"}}}}}
}

func changes() []change {
	all := []string{line + "/broker", line + "/sensor", line + "/web"}
	first := []string{"pending@1", "installing@1", "installed@1"}
	return []change{
		{"add", nil, []App{Line("1")}, all, nil, first, false, false},
		{
			"update",
			[]App{Line("1"), other()},
			[]App{Line("2"), other()},
			append([]string{"other/sensor"}, all...),
			[]string{line + "/broker", line + "/sensor", "other/sensor"},
			append(first[:3:3], "pending@2", "installing@2", "installed@2"),
			false, false,
		},
		{
			"remove",
			[]App{Line("1"), other()},
			[]App{other()},
			[]string{"other/sensor"},
			[]string{"other/sensor"},
			append(first[:3:3], "removing@2", "removed@2"),
			false, false,
		},
	}
}

// Kills kills an agent at every boundary of an addition, an update and a removal, starts another one, and wants the same
// end each time: the same containers, what was not to change untouched, volumes with what was in them, and every status
// reported once and in order. With stride n it takes every n-th boundary.
func Kills(t *testing.T, s Setup, stride int) { kills(t, s, stride, changes()) }

// KillsOfUpdates is Kills for updates that take turns, start first, and go back. Containers of the image "crash:1" must
// exit at once.
func KillsOfUpdates(t *testing.T, s Setup, stride int) { kills(t, s, stride, updates()) }

// updates are changes of a service that has no volume.
func updates() []change {
	front := func(image, extra string) App {
		return App{ID: 1, Name: "front", Components: []Comp{{Name: "front", Version: "1.0." + image[len(image)-1:], Services: []Service{
			{Name: "broker", Image: "broker:1"},
			{Name: "web", Image: image, Extra: "    restart: always\n    depends_on: {broker: {condition: service_started, restart: true}}\n    deploy:\n" + extra},
		}}}}
	}
	const (
		first = "      update_config: {order: start-first}\n      rollback_config: {order: start-first}\n"
		turns = "      replicas: 3\n      update_config: {order: start-first, parallelism: 1}\n"
		stop  = "      replicas: 2\n      update_config: {parallelism: 1}\n      rollback_config: {parallelism: 1}\n"
	)
	states := []string{"pending@1", "installing@1", "installed@1", "pending@2", "installing@2", "installed@2"}
	failed := append(states[:5:5], "failed@2")
	web := []string{"front/broker", "front/web"}
	keep := []string{"front/broker"}
	return []change{
		{"start-first", []App{front("web:1", first)}, []App{front("web:2", first)}, web, keep, states, false, false},
		{"in turns", []App{front("web:1", turns)}, []App{front("web:2", turns)}, append(web[:2:2], "front/web/2", "front/web/3"), keep, states, false, false},
		{"approved", []App{front("web:1", first)}, []App{front("web:2", first)}, web, keep, states, false, true},
		{"back, start-first", []App{front("web:1", first)}, []App{front("crash:1", first)}, web, web, failed, true, false},
		{"back, in turns", []App{front("web:1", stop)}, []App{front("crash:1", stop)}, append(web[:2:2], "front/web/2"), append(keep[:1:1], "front/web/2"), failed, true, false},
	}
}

// boundaries counts the boundaries that kill meets with 0, and then kills at every one of them, or with stride n at every n-th.
func (s Setup) boundaries(t *testing.T, stride int, kill func(t *testing.T, w *World, at int) int) {
	t.Helper()
	n := 0
	s.scenario(t, func(t *testing.T, w *World) { n = kill(t, w, 0) })
	if n < 10 && !t.Failed() {
		t.Errorf("met %d boundaries only", n)
	}
	t.Logf("%d boundaries", n)
	var scenes []scene
	for at := 1; at <= n; at += stride {
		scenes = append(scenes, scene{fmt.Sprint(at), func(t *testing.T) {
			s.scenario(t, func(t *testing.T, w *World) { kill(t, w, at) })
		}})
	}
	s.each(t, scenes)
}

func kills(t *testing.T, s Setup, stride int, changes []change) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			s.boundaries(t, stride, c.kill)
		})
	}
}

// kill makes the change with an agent that dies at a boundary; 0: it lives. It returns how many boundaries were met.
func (c change) kill(t *testing.T, w *World, at int) int {
	const life = 1000 * time.Hour
	w.Pulse.Require("pulse")
	if edit := w.Edit; c.asks {
		w.Edit = func(o *agent.Options) {
			if edit != nil {
				edit(o)
			}
			o.Approvals = approval.Policy{Kinds: []plan.Kind{plan.Images}}
		}
	}
	generation := uint64(1)
	check := func(*testing.T) {}
	var before map[string]workload.Observation
	if c.before != nil {
		w.Pulse.Renew(w.Publish(t, 1, c.before...), "pulse", w.Now(), life)
		r := w.Start(t)
		w.Sync(t, r)
		before = w.Observe(t)
		if c.before[0].Name == line {
			check = w.mark(t, Line("1"))
		}
		w.delivered(t, r)
		r.Stop(t)
		generation = 2
	}
	w.Pulse.Renew(w.Publish(t, generation, c.after...), "pulse", w.Now(), life)
	k := &Killer{At: at}
	r := w.StartToDie(t, k)
	w.Wait(t, "the kill, or the end", func() bool {
		if k.Where() != "" {
			return true
		}
		if c.asks {
			approveAll(t, r)
		}
		s := r.Status()
		done := s.Committed != nil && s.Committed.Generation == generation
		if c.fails {
			done = wentBack(s)
		}
		return done && s.Outbox.Depth == 0 && w.quiet(k)
	})
	r.Stop(t)
	if at != 0 {
		t.Logf("killed at %q", k.Where())
	}
	if k.Where() == "" && at != 0 {
		t.Logf("boundary %d was not met: the order differs a little from run to run", at)
	}
	w.savedProgress(t)
	r = w.Start(t)
	res := w.Sync(t, r)
	for c.asks && res.Outcome == status.SyncWaiting {
		approveAll(t, r)
		res = w.Sync(t, r)
	}
	if (res.Outcome == status.SyncFailed) != c.fails || res.Generation != generation {
		t.Fatalf("sync after the kill = %+v", res)
	}
	if c.fails {
		w.Wait(t, "the way back", func() bool { return wentBack(r.Status()) })
	}
	w.delivered(t, r)
	if s := r.Status(); s.Stale || s.Freshness == nil || s.Freshness.By != "pulse" || len(s.Security) != 0 {
		t.Errorf("after the kill: stale %t, freshness %+v, security %+v", s.Stale, s.Freshness, s.Security)
	}
	end := store.PhaseCommitted
	if c.fails {
		end = store.PhaseRolledBack
	}
	if p := r.Status().Progress; p == nil || p.Phase != end || p.Generation != generation || len(p.History) != int(generation) || p.History[generation-1].Outcome != end {
		t.Errorf("after the kill the progress is %+v, want %s of generation %d", p, end, generation)
	}
	after := w.allRun(t, c.want...)
	for _, name := range c.keep {
		if a, b := before[name], after[name]; a.ID != b.ID || a.PID != b.PID {
			t.Errorf("%s was touched: %s (%d), now %s (%d)", name, a.ID, a.PID, b.ID, b.PID)
		}
	}
	check(t)
	expect(t, "states", w.States(t, Line("1").DeploymentID()), c.states)
	r.Stop(t)
	return k.Met()
}

// savedProgress checks that what an agent that died has saved of its progress fits what else it has saved.
func (w *World) savedProgress(t *testing.T) {
	t.Helper()
	s, err := store.Open(store.Options{Path: w.Path, Device: string(Device)})
	if err != nil {
		t.Fatal(err)
	}
	err = s.View(func(tx *store.Tx) error {
		p, err := tx.Progress()
		accepted, err1 := tx.State(store.Accepted)
		target, err2 := tx.State(store.Target)
		committed, err3 := tx.State(store.Committed)
		is := func(s *store.State, of digest.Digest) bool { return s != nil && s.Digest == of }
		fits := false
		switch {
		case accepted == nil:
			fits = p == nil || p.Phase.Found()
		case p == nil:
		case p.Phase.Found():
			fits = is(committed, accepted.Digest) && p.Digest != accepted.Digest
		case p.Phase == store.PhaseCommitted || is(committed, accepted.Digest):
			fits = p.Phase == store.PhaseCommitted && p.Digest == accepted.Digest && is(committed, accepted.Digest)
		default:
			fits = p.Digest == accepted.Digest && is(target, accepted.Digest) == (p.Phase != store.PhaseDownloading)
		}
		if !fits {
			t.Errorf("saved: progress %+v, accepted %+v, target %+v, committed %+v", p, accepted, target, committed)
		}
		return errors.Join(err, err1, err2, err3)
	})
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
}

// approveAll approves all changes that wait. Errors are ignored: the agent may have been killed.
func approveAll(t *testing.T, r *Running) {
	all, _ := r.Changes(t.Context())
	for _, x := range all {
		if x.Waiting != nil {
			_, _ = r.Decide(t.Context(), agent.DecisionRequest{Deployment: x.DeploymentID, ID: x.ID, Verdict: store.Approved, By: "root", Via: "command"})
		}
	}
}

// wentBack reports whether an application's update was undone.
func wentBack(s status.Status) bool {
	return len(s.Deployments) == 1 && s.Deployments[0].Error != nil && strings.Contains(s.Deployments[0].Error.Message, "rolled back to")
}

// quiet waits a moment to see that nothing is done any more: tidying comes last.
func (w *World) quiet(k *Killer) bool {
	for range 5 {
		n := k.Met()
		time.Sleep(pause)
		if k.Met() != n {
			return false
		}
	}
	return true
}

// delivered waits until the fleet endpoint has everything.
func (w *World) delivered(t *testing.T, r *Running) {
	t.Helper()
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
}
