package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const life = 48 * time.Hour

// settled starts a device that runs generation 1, fresh for two days by "pulse".
func settled(t *testing.T, w *agenttest.World) (*agenttest.Running, digest.Digest) {
	t.Helper()
	w.Pulse.Require("pulse")
	d := w.Publish(t, 1, anApp(1, "web:1"))
	w.Pulse.Renew(d, "pulse", time.Now(), life)
	r := w.Start(t)
	if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
		t.Fatalf("sync = %+v", res)
	}
	return r, d
}

func codesOf(events []status.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, string(e.Code))
	}
	return out
}

func TestFreezeIsTold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		issued := time.Now()
		r, d := settled(t, w)
		before := w.Observe(t)
		time.Sleep(life/2 - 10*time.Minute)
		if n := w.Pulse.Asked(); n > 2 {
			t.Errorf("in the first half of its life a statement was looked for %d times, want once, and once for sync", n)
		}
		w.Registry.Requests()
		time.Sleep(5 * time.Minute)
		for _, q := range w.Registry.Requests() {
			if !strings.HasPrefix(q, "resolve ") {
				t.Errorf("an unchanged poll asked %s", q)
			}
		}
		time.Sleep(life/2 - 5*time.Minute) // 10 min before the end
		if n := w.Pulse.Asked(); n < 8 || n > 34 {
			t.Errorf("in the second half a newer one was looked for %d times", n)
		}
		if s := r.Status(); s.Stale || s.Freshness == nil || !s.Freshness.NotAfter.Equal(issued.Add(life)) || s.Freshness.By != "pulse" || len(s.Problems) > 0 {
			t.Errorf("before the end: %+v, %+v", s.Freshness, s.Problems)
		}
		time.Sleep(25 * time.Minute)
		look := func(r *agenttest.Running, reachable bool) {
			t.Helper()
			s := r.Status()
			if !s.Stale || !s.StaleSince.Equal(issued.Add(life)) || !s.Freshness.Stale || s.Accepted.Digest != d || s.Phase != status.PhaseInSync {
				t.Errorf("after the end: stale %t since %v, %s", s.Stale, s.StaleSince, s.Phase)
			}
			if len(s.Problems) == 0 || s.Problems[0].Code != codes.StateStale || !s.Problems[0].Since.Equal(issued.Add(life)) {
				t.Fatalf("problems = %+v", s.Problems)
			}
			if !reachable && strings.Contains(s.Problems[0].Message, "withholds") {
				t.Errorf("the source does not answer, and: %s", s.Problems[0].Message)
			}
			if len(s.Security) != 1 || s.Security[0].Code != codes.StateStale || s.Security[0].Digest != d || s.Security[0].Count != 1 {
				t.Errorf("security = %+v", s.Security)
			}
			if n := r.Counts().Security[codes.StateStale]; n != 1 {
				t.Errorf("%d security events are counted", n)
			}
			if got := eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventSecurity}); len(got) != 1 || got[0].Code != codes.StateStale {
				t.Errorf("security events = %+v", got)
			}
			w.Same(t, before)
		}
		look(r, true)
		if got := codesOf(eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventStale})); !slices.Equal(got, []string{"state-stale"}) {
			t.Errorf("events = %v", got)
		}
		r.Stop(t) // power cut; and then nothing answers
		w.Registry.Fail(func(string) error { return fmt.Errorf("no route: %w", fault.ErrTemporary) })
		r = w.Start(t)
		time.Sleep(time.Minute)
		look(r, false)
		if x := w.Extra(t); !x.Stale || !x.StaleSince.Equal(issued.Add(life)) || len(x.Security) != 1 {
			t.Errorf("the fleet endpoint was told %+v", x)
		}
		w.Registry.Fail(nil)
		w.Pulse.Renew(d, "pulse", time.Now(), life)
		w.Wait(t, "the device to be fresh again", func() bool { return !r.Status().Stale })
		if s := r.Status(); len(s.Problems) != 0 || len(s.Security) != 1 {
			t.Errorf("renewed: %+v", s.Problems)
		}
		w.Same(t, before)
	})
}

// An earlier statement still counts when a later one is taken away, and what cannot be read says nothing.
func TestKnownFreshnessStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		r, d := settled(t, w)
		w.Pulse.Withhold(d)
		if res := w.Sync(t, r); res.Outcome != status.SyncUnchanged {
			t.Errorf("sync = %+v", res)
		}
		w.Pulse.Renew(d, "pulse", time.Now().Add(-30*time.Hour), life) // an older one is put in its place
		w.Sync(t, r)
		if s := r.Status(); s.Stale || time.Until(s.Freshness.NotAfter) < life-time.Hour {
			t.Errorf("freshness = %+v", s.Freshness)
		}
		w.Pulse.Fail(fmt.Errorf("no route: %w", fault.ErrTemporary))
		w.Sync(t, r)
		if s := r.Status(); s.Stale || s.Freshness.Error == "" || len(s.Problems) != 0 {
			t.Errorf("freshness = %+v, problems %+v", s.Freshness, s.Problems)
		}
		w.Pulse.Fail(nil)
		w.Pulse.Require("another") // the key was lost: what it said counts no more
		w.SetPolicy("2")
		w.Sync(t, r)
		if s := r.Status(); !s.Stale || s.Problems[0].Code != codes.StateStale {
			t.Errorf("freshness by a key that is not trusted any more: %+v", s.Freshness)
		}
		w.Pulse.Require()
		w.SetPolicy("3")
		w.Sync(t, r)
		if s := r.Status(); s.Stale || s.Freshness != nil {
			t.Errorf("freshness that nobody asks for: %+v", s.Freshness)
		}
	})
}

// A statement that is dated further ahead than the clock follows would never end. It does not count, neither in the place of
// one that does nor for a new state.
func TestFreshnessDatedFarAhead(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		issued := time.Now()
		r, d := settled(t, w)
		w.Pulse.Renew(d, "pulse", issued.Add(century), life)
		w.Sync(t, r)
		if s := r.Status(); s.Stale || !s.Freshness.NotAfter.Equal(issued.Add(life)) {
			t.Errorf("before the end of the one that counts: stale %t, %+v", s.Stale, s.Freshness)
		}
		next := w.Publish(t, 2, anApp(1, "web:2"))
		w.Pulse.Renew(next, "pulse", issued.Add(century), life)
		if res := w.Sync(t, r); res.Code != codes.StateStale || !strings.Contains(res.Message, "is dated 2") {
			t.Errorf("a new state with a statement of the next century: %+v", res)
		}
		w.Pulse.Renew(next, "pulse", time.Now(), life)
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
			t.Errorf("sync = %+v", res)
		}
		w.Pulse.Renew(next, "pulse", issued.Add(century), life)
		time.Sleep(life + time.Hour)
		if s := r.Status(); !s.Stale {
			t.Errorf("after the end of the one that counts: stale %t, %+v", s.Stale, s.Freshness)
		}
	})
}

func TestNewStateMustBeFresh(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		r, _ := settled(t, w)
		before := w.Observe(t)
		two := w.Publish(t, 2, anApp(1, "web:2"))
		if res := w.Sync(t, r); res.Outcome != status.SyncRefused || res.Code != codes.StateStale || res.Generation != 2 ||
			!strings.Contains(res.Hint, " freshen --key KEY --for 48h "+agenttest.Repository+":"+r.Status().Tag+";") {
			t.Errorf("sync to a state without a statement = %+v", res)
		}
		w.Pulse.Renew(two, "thief", time.Now(), life)
		if res := w.Sync(t, r); res.Code != codes.StateStale {
			t.Errorf("sync to a state with another's statement = %+v", res)
		}
		w.Pulse.Renew(two, "pulse", time.Now().Add(-life-time.Minute), life)
		if res := w.Sync(t, r); res.Code != codes.StateStale {
			t.Errorf("sync to a state whose statement has ended = %+v", res)
		}
		w.Same(t, before)
		if s := r.Status(); s.Problems[0].Code != codes.ClockWrong && s.Problems[0].Code != codes.StateStale {
			t.Errorf("problems = %+v", s.Problems)
		}
		w.Pulse.Renew(two, "pulse", time.Now(), life)
		w.Committed(t, r, 2) // by itself
		w.Wait(t, "no problem to be left", func() bool { return len(r.Status().Problems) == 0 })
		if len(r.Status().Security) != 0 {
			t.Errorf("a schedule that is late is no attack: %+v", r.Status().Security)
		}
	})
}

// wrongClock lets the device's clock be off, with a timer that is right.
func wrongClock(w *agenttest.World, skew *atomic.Int64) {
	w.Edit = func(o *agent.Options) {
		start := time.Now()
		o.Clock = clock.New(func() time.Time { return time.Now().Add(time.Duration(skew.Load())).Round(0) }, func() time.Duration { return time.Since(start) })
	}
}

func TestClockBehind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		var skew atomic.Int64
		skew.Store(int64(-20 * 365 * 24 * time.Hour))
		built := time.Now().Add(-time.Hour * 24 * 365)
		wrongClock(w, &skew)
		edit := w.Edit
		w.Edit = func(o *agent.Options) { edit(o); o.Built = built }
		issued := time.Now()
		r, d := settled(t, w)
		s := r.Status()
		if s.Clock == nil || s.Clock.ProvenBy != "freshness pulse" || s.Clock.Believed.Before(issued) || !hasProblem(s, codes.ClockWrong) {
			t.Errorf("clock = %+v, problems %+v", s.Clock, s.Problems)
		}
		time.Sleep(life / 3)
		r.Stop(t)
		time.Sleep(time.Hour) // without power, and the clock says 2006 again
		r = w.Start(t)
		if s := r.Status(); s.Stale {
			t.Errorf("stale after %v", time.Since(issued))
		}
		time.Sleep(life/3*2 + 2*time.Hour)
		if s := r.Status(); !s.Stale || !s.StaleSince.Equal(issued.Add(life)) {
			t.Errorf("%v after it was issued: %+v", time.Since(issued), s.Freshness)
		}
		// A state that has expired is refused, whatever the clock says.
		old := w.State(t, 2, func(o *artifacts.StateOptions) { o.Expires = issued }, anApp(1, "web:2"))
		w.Verifier.Sign(old.Descriptor.Digest)
		w.Registry.Push(agenttest.Repository, old, agenttest.Device.Tag())
		if res := w.Sync(t, r); res.Code != codes.Expired {
			t.Errorf("sync to an expired state = %+v", res)
		}
		_ = d
	})
}

// A date in a signature that nothing else speaks for, and one that the publisher wrote into the state, move no time.
func TestAWrongDateMovesNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		var skew atomic.Int64
		wrongClock(w, &skew)
		edit := w.Edit
		w.Edit = func(o *agent.Options) { edit(o); o.Built = time.Now().Add(-time.Hour) }
		far := time.Now().AddDate(8, 0, 0)
		w.Verifier.Rule(func(k intake.Kind, _ string, _ ocispec.Descriptor) (intake.Verdict, error) {
			return intake.Verdict{SignedBy: []string{"release"}, SignedAt: far}, nil
		})
		w.Registry.Push(agenttest.Repository, w.State(t, 1, func(o *artifacts.StateOptions) { o.Created = far }, anApp(1, "web:1")), agenttest.Device.Tag())
		r := w.Start(t)
		w.Committed(t, r, 1)
		s := r.Status()
		if s.Clock == nil || s.Clock.ProvenBy != "" || s.Clock.From != "a signature by release" || s.Clock.Believed.After(time.Now()) || !hasProblem(s, codes.ClockWrong) {
			t.Errorf("clock = %+v, problems %+v", s.Clock, s.Problems)
		}
		// What expires before that date is taken.
		w.Verifier.Rule(nil)
		next := w.State(t, 2, func(o *artifacts.StateOptions) { o.Expires = time.Now().AddDate(1, 0, 0) }, anApp(1, "web:2"))
		w.Verifier.Sign(next.Descriptor.Digest)
		w.Registry.Push(agenttest.Repository, next, agenttest.Device.Tag())
		w.Committed(t, r, 2)
		r.Stop(t)
		r = w.Start(t)
		w.Sync(t, r)
		if s := r.Status(); s.Clock != nil || s.Stale {
			t.Errorf("after a restart: clock = %+v, stale %t", s.Clock, s.Stale)
		}
	})
}

func TestClockAhead(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		var skew atomic.Int64
		wrongClock(w, &skew)
		r, d := settled(t, w)
		before := w.Observe(t)
		r.Stop(t)
		skew.Store(int64(400 * 24 * time.Hour))
		r = w.Start(t)
		time.Sleep(time.Hour)
		w.Pulse.Renew(d, "pulse", time.Now(), life)
		w.Sync(t, r)
		s := r.Status()
		if !s.Stale || s.Clock == nil || s.Clock.ProvenBy != "" || s.Problems[0].Code != codes.StateStale || s.Problems[1].Code != codes.ClockWrong {
			t.Errorf("status = %+v, %+v", s.Clock, s.Problems)
		}
		w.Same(t, before)
		two := w.Publish(t, 2, anApp(1, "web:2"))
		w.Pulse.Renew(two, "pulse", time.Now(), life)
		if res := w.Sync(t, r); res.Code != codes.StateStale {
			t.Errorf("sync = %+v", res)
		}
		w.Same(t, before)
		skew.Store(0) // the clock is set right, and nothing of the wrong time is left
		time.Sleep(15 * time.Minute)
		w.Committed(t, r, 2)
		if s := r.Status(); s.Stale || s.Clock != nil || len(s.Problems) != 0 {
			t.Errorf("clock set right: %+v, %+v", s.Clock, s.Problems)
		}
	})
}

// What was proven while nothing could be saved is saved with the next thing that can be.
func TestProvenTimesAreKeptLater(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		r, d := settled(t, w)
		r.Stop(t)
		var full atomic.Bool
		st, err := store.Open(store.Options{Path: w.Path, Device: string(agenttest.Device), Commit: func(bool) error {
			if full.Load() {
				return errors.New("no space")
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		o := w.Options(t)
		o.Store = st
		a, err := agent.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		sync := func() status.SyncResult {
			res, err := a.Sync(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		sync()
		time.Sleep(time.Hour)
		full.Store(true)
		issued := time.Now()
		w.Pulse.Renew(d, "pulse", issued, life)
		if res := sync(); res.Outcome == status.SyncUnchanged {
			t.Errorf("sync without a disk = %+v", res)
		}
		full.Store(false)
		sync()
		if err := st.View(func(tx *store.Tx) error {
			all, err := tx.Proofs()
			if len(all) != 1 || all[0].Time.Before(issued) {
				t.Errorf("kept are %+v, want %v", all, issued)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		cancel()
		if err := errors.Join(<-done, st.Close()); err != nil {
			t.Error(err)
		}
	})
}

// What looks like an attack is kept with the time that the device believes, not that of a clock that has forgotten everything.
func TestSecurityEventsHaveTheBelievedTime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		var skew atomic.Int64
		skew.Store(int64(-20 * 365 * 24 * time.Hour))
		wrongClock(w, &skew)
		edit, built := w.Edit, time.Now().Add(-24*time.Hour)
		w.Edit = func(o *agent.Options) {
			edit(o)
			o.Built, o.Now = built, func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
		}
		r := w.Start(t)
		w.Registry.Push(agenttest.Repository, w.State(t, 1, nil, anApp(1, "web:1")), agenttest.Device.Tag()) // unsigned
		w.Sync(t, r)
		s := r.Status()
		if len(s.Security) != 1 || s.Security[0].Last.Before(built) || s.Security[0].First.Before(built) {
			t.Errorf("security = %+v, want one since %v", s.Security, built)
		}
	})
}

// Security events are told once for each thing that happened, and outlive the agent.
func TestSecurityEventsOutliveTheAgent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		one := w.State(t, 1, nil, anApp(1, "web:1"))
		w.Verifier.Sign(one.Descriptor.Digest)
		w.Publish(t, 2, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		w.Registry.Push(agenttest.Repository, one, agenttest.Device.Tag()) // replayed
		if res := w.Sync(t, r); res.Code != codes.Rollback {
			t.Fatalf("sync = %+v", res)
		}
		time.Sleep(3 * time.Hour)
		forged := w.State(t, 9, nil, anApp(1, "web:2"))
		w.Registry.Push(agenttest.Repository, forged, agenttest.Device.Tag())
		w.Sync(t, r)
		want := []string{"generation-rollback", "signature-missing"}
		if got := codesOf(eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventSecurity})); !slices.Equal(got, want) {
			t.Errorf("security events = %v", got)
		}
		for range 1500 {
			r.Emit(status.Event{Kind: status.EventOOM})
		}
		if got := codesOf(eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventSecurity})); !slices.Equal(got, want) {
			t.Errorf("security events in much noise = %v", got)
		}
		r.Stop(t)
		r = w.Start(t)
		w.Sync(t, r)
		got := eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventSecurity})
		if !slices.Equal(codesOf(got), want) || got[0].Digest != one.Descriptor.Digest || got[0].Generation != 1 || time.Since(got[0].Time) < 2*time.Hour {
			t.Errorf("security events of the run before = %+v", got)
		}
		if n := r.Counts(); n.Security[codes.Rollback] != 1 || n.Events[status.EventSecurity] != 0 {
			t.Errorf("counts = %+v", n)
		}
		for n := range 100 { // the tag is moved to and fro for days
			w.Registry.Push(agenttest.Repository, []*artifacts.Artifact{one, forged}[n%2], agenttest.Device.Tag())
			w.Sync(t, r)
		}
		s := r.Status()
		if len(s.Security) != 2 || s.Security[0].Count+s.Security[1].Count != 102 {
			t.Errorf("security = %+v", s.Security)
		}
	})
}
