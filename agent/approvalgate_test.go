package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// bench is a device whose changes wait, in memory.
type bench struct {
	t *testing.T
	w *agenttest.World
	m *runtimetest.Memory
	r *agenttest.Running
}

// waiting is the change of a deployment, once it waits for code.
func (b *bench) waiting(name string, code codes.Code) status.Change {
	b.t.Helper()
	var found status.Change
	b.w.Wait(b.t, fmt.Sprintf("%s waits: %s", name, code), func() bool {
		all, err := b.r.Changes(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		for _, c := range all {
			if found = c; c.Deployment == name && c.Waiting != nil && c.Waiting.Code == code {
				return true
			}
		}
		return false
	})
	return found
}

// pending has the newest report of a deployment say that it waits, and for what.
func (b *bench) pending(name string, app agenttest.App, code codes.Code) {
	b.t.Helper()
	b.w.Wait(b.t, name+" is reported as pending", func() bool {
		reports := b.w.Fleet.Reports()
		for i := len(reports) - 1; i >= 0; i-- {
			if r := reports[i]; r.Kind == store.KindStatus && r.Subject == app.DeploymentID() {
				s, err := margo.ParseDeploymentStatus("report", r.Body)
				return err == nil && s.Status.State == margo.StatePending && s.Status.Error != nil && s.Status.Error.Code == string(code) &&
					s.Status.Error.Source == name && len(s.Components) == 1 && s.Components[0].State == margo.StatePending
			}
		}
		return false
	})
}

// images are those of the containers that run, by service.
func (b *bench) runs(image string) bool {
	b.t.Helper()
	want := digest.FromString(image).String()
	for _, o := range b.w.Observe(b.t) {
		if o.Status == workload.Running && strings.HasSuffix(o.Image, want) {
			return true
		}
	}
	return false
}

func (b *bench) decide(c status.Change, v store.Verdict, reason string, until time.Time) error {
	_, err := b.r.Decide(b.t.Context(), agent.DecisionRequest{Deployment: c.Deployment, ID: c.ID, Verdict: v, By: "user ana (1000)", Via: "command", Reason: reason, Until: until})
	return err
}

// decidedAutomatically wants the last decision to be recorded as one that nobody made: as an event, and in the reports.
func (b *bench) decidedAutomatically(name string, change digest.Digest, by string) {
	b.t.Helper()
	all := b.w.Extra(b.t).Decisions
	if len(all) != 1 || all[0].Verdict != string(store.Approved) || all[0].Deployment != name || all[0].Digest != change || all[0].By != by || all[0].Via != "automatic" {
		b.t.Errorf("reported decisions: %+v", all)
	}
	events := slices.DeleteFunc(eventsOf(b.t, b.r.Agent, status.EventRequest{Kind: status.EventChange}), func(e status.Event) bool { return e.Message != "approved by "+by })
	if len(events) != 1 || events[0].Deployment != name {
		b.t.Errorf("events: %+v", events)
	}
}

func (b *bench) restart() {
	b.t.Helper()
	b.r.Stop(b.t)
	b.r = b.w.Start(b.t)
}

// asked has a policy, an application that runs, and an update of it that waits.
func asked(t *testing.T, p approval.Policy, f func(b *bench)) {
	t.Helper()
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.Approvals = p }
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "broker:1"))
		w.Committed(t, b.r, 1)
		w.Publish(t, 2, anApp(1, "web:2"), anApp(2, "broker:1"))
		f(b)
	})
}

var updates = approval.Policy{Kinds: []plan.Kind{plan.Images, plan.Removal}}

func TestApproval(t *testing.T) {
	tests := map[string]struct {
		policy approval.Policy
		do     func(t *testing.T, b *bench, c status.Change)
	}{
		"approved": {updates, func(t *testing.T, b *bench, c status.Change) {
			if !b.runs("web:1") || c.Restarts != 1 || len(c.Images) != 1 || !slices.Contains(c.Kinds, plan.Images) || c.Generation != 2 {
				t.Errorf("the change is %+v", c)
			}
			b.w.Wait(t, "the report says so", func() bool {
				x := b.w.Extra(t)
				return len(x.Waiting) == 1 && x.Waiting[0].Code == string(codes.ApprovalNeeded) && x.AcceptedGeneration == 2 && x.RunningGeneration == 1 && x.CommittedGeneration == 1
			})
			if states := b.w.States(t, anApp(1, "").DeploymentID()); states[len(states)-1] != string(margo.StatePending)+"@2" {
				t.Errorf("reported %v, want pending last", states)
			}
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Committed(t, b.r, 2)
			if !b.runs("web:2") || b.runs("web:1") {
				t.Error("the approved image does not run")
			}
			d := b.w.Extra(t).Decisions
			if len(d) != 1 || d[0].Verdict != "approved" || d[0].By != "user ana (1000)" || d[0].Via != "command" || d[0].Digest != c.ID || d[0].Deployment != "app-1" || d[0].At.Before(c.Since) {
				t.Errorf("the report has the decisions %+v", d)
			}
		}},
		"approved, and the agent dies before it acts": {updates, func(t *testing.T, b *bench, c status.Change) {
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.restart()
			b.w.Committed(t, b.r, 2)
			b.restart()
			b.w.Wait(t, "the events tell who decided", func() bool {
				return slices.ContainsFunc(eventsOf(t, b.r.Agent, status.EventRequest{Kind: status.EventChange}), func(e status.Event) bool {
					return e.Message == "approved by user ana (1000)" && e.Deployment == "app-1" && e.Digest == c.ID && !e.Time.Before(c.Since)
				})
			})
		}},
		"waits through a restart": {updates, func(t *testing.T, b *bench, c status.Change) {
			b.restart()
			if again := b.waiting("app-1", codes.ApprovalNeeded); again.ID != c.ID || !again.Since.Equal(c.Since) || !b.runs("web:1") {
				t.Errorf("after a restart it is %+v, before %+v", again, c)
			}
		}},
		"rejected, then approved after all": {updates, func(t *testing.T, b *bench, c status.Change) {
			if err := b.decide(c, store.Rejected, "", time.Time{}); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("rejected without a reason: %v", err)
			}
			if err := b.decide(c, store.Rejected, "line 3 is busy", time.Time{}); err != nil {
				t.Fatal(err)
			}
			if c = b.waiting("app-1", codes.ChangeRejected); !strings.Contains(c.Waiting.Message, "line 3 is busy") {
				t.Errorf("it waits: %+v", c.Waiting)
			}
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Committed(t, b.r, 2)
		}},
		"postponed": {updates, func(t *testing.T, b *bench, c status.Change) {
			if err := b.decide(c, store.Postponed, "", time.Now().Add(-time.Second)); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("postponed until yesterday: %v", err)
			}
			if err := b.decide(c, store.Postponed, "shift", time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			b.waiting("app-1", codes.ChangePostponed)
			time.Sleep(time.Hour)
			b.waiting("app-1", codes.ApprovalNeeded)
		}},
		"for another change": {updates, func(t *testing.T, b *bench, c status.Change) {
			b.w.Publish(t, 3, anApp(1, "web:3"), anApp(2, "broker:1"))
			b.w.Wait(t, "a newer change", func() bool { return b.waiting("app-1", codes.ApprovalNeeded).ID != c.ID })
			if err := b.decide(c, store.Approved, "", time.Time{}); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("an approval of what was there before: %v", err)
			}
			if err := b.decide(status.Change{Deployment: "app-2"}, store.Approved, "", time.Time{}); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("an approval of what does not change: %v", err)
			}
			if b.runs("web:2") || b.runs("web:3") {
				t.Error("something changed")
			}
		}},
		"superseded by what runs": {updates, func(t *testing.T, b *bench, c status.Change) {
			b.w.Publish(t, 3, anApp(1, "web:1"), anApp(2, "broker:1"))
			b.w.Committed(t, b.r, 3)
			if all, err := b.r.Changes(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("Changes = %+v, %v, want none", all, err)
			}
		}},
		"automatic": {approval.Policy{Kinds: updates.Kinds, Deployments: []string{"app-?"}, AutomaticAfter: 12 * time.Hour}, func(t *testing.T, b *bench, c status.Change) {
			if at := c.Waiting.Until.Sub(c.Since.Add(12 * time.Hour)); at < 0 || at > time.Second {
				t.Errorf("it is approved at %v, since %v", c.Waiting.Until, c.Since)
			}
			time.Sleep(12*time.Hour - time.Minute)
			if b.runs("web:2") {
				t.Error("it began early")
			}
			b.w.Committed(t, b.r, 2)
			b.decidedAutomatically("app-1", c.ID, "automaticAfter 12h")
		}},
		"of one deployment of two": {approval.Policy{Kinds: updates.Kinds, Deployments: []string{"app-1"}}, func(t *testing.T, b *bench, c status.Change) {
			b.w.Publish(t, 3, anApp(1, "web:2"), anApp(2, "broker:2"))
			b.w.Wait(t, "the other moves", func() bool { return b.runs("broker:2") && !b.runs("broker:1") })
			time.Sleep(time.Hour)
			if all, err := b.r.Changes(t.Context()); err != nil || len(all) != 1 || all[0].ID != c.ID || !all[0].Since.Equal(c.Since) || !b.runs("web:1") || b.runs("web:2") {
				t.Errorf("Changes = %+v, %v, want the one that waits as it was", all, err)
			}
			if s := b.r.Status(); s.Running.Generation != 3 || s.Committed.Generation != 1 {
				t.Errorf("it runs generation %d, committed is %d", s.Running.Generation, s.Committed.Generation)
			}
			if states := b.w.States(t, anApp(2, "").DeploymentID()); states[len(states)-1] != string(margo.StateInstalled)+"@3" {
				t.Errorf("the other reported %v, want installed last", states)
			}
			if err := b.decide(b.waiting("app-1", codes.ApprovalNeeded), store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Committed(t, b.r, 3)
			if !b.runs("web:2") {
				t.Error("the approved image does not run")
			}
		}},
		"a removal": {updates, func(t *testing.T, b *bench, c status.Change) {
			b.w.Publish(t, 3, anApp(1, "web:1"))
			c = b.waiting("app-2", codes.ApprovalNeeded)
			if !slices.Equal(c.Kinds, []plan.Kind{plan.Removal}) || !b.runs("broker:1") {
				t.Errorf("the change is %+v", c)
			}
			b.restart()
			b.waiting("app-2", codes.ApprovalNeeded)
			b.pending("app-2", anApp(2, ""), codes.ApprovalNeeded)
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Committed(t, b.r, 3)
			if b.runs("broker:1") {
				t.Error("it runs still")
			}
			if states := b.w.States(t, anApp(2, "").DeploymentID()); !slices.Equal(states[len(states)-3:], []string{"pending@3", "removing@3", "removed@3"}) {
				t.Errorf("reported %v", states)
			}
		}},
		"a removal that waits and then does not": {updates, func(t *testing.T, b *bench, c status.Change) {
			b.w.Publish(t, 3, anApp(1, "web:1"))
			b.waiting("app-2", codes.ApprovalNeeded)
			b.w.Publish(t, 4, anApp(1, "web:1"), anApp(2, "broker:1"))
			b.w.Committed(t, b.r, 4)
			if states := b.w.States(t, anApp(2, "").DeploymentID()); states[len(states)-1] != "installed@4" {
				t.Errorf("reported %v", states)
			}
		}},
		"a removal is made, and another change waits": {updates, func(t *testing.T, b *bench, c status.Change) {
			b.w.Publish(t, 3, anApp(1, "web:2"))
			removal := b.waiting("app-2", codes.ApprovalNeeded)
			if x := b.r.Status(); x.Running.Generation != 1 {
				t.Errorf("generation %d runs, want 1: all changes wait", x.Running.Generation)
			}
			if err := b.decide(removal, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				b.w.Wait(t, "the removal is made", func() bool {
					x := b.r.Status()
					return len(x.Deployments) == 1 && x.Running.Generation == 3 && x.Committed.Generation == 1 && b.w.Extra(t).RunningGeneration == 3
				})
				b.waiting("app-1", codes.ApprovalNeeded)
				b.restart()
			}
		}},
		"a removal is made after the clock was set back": {updates, func(t *testing.T, b *bench, c status.Change) {
			var back atomic.Int64
			edit := b.w.Edit
			b.w.Edit = func(o *agent.Options) {
				edit(o)
				o.Now = func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
			}
			b.restart()
			b.w.Publish(t, 3, anApp(1, "web:2"))
			removal := b.waiting("app-2", codes.ApprovalNeeded)
			back.Store(int64(2 * time.Hour))
			if err := b.decide(removal, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Wait(t, "the removal is made", func() bool { return len(b.r.Status().Deployments) == 1 })
			if x := b.r.Status(); x.Running.Generation != 3 {
				t.Errorf("generation %d runs, want 3, whose removal is made", x.Running.Generation)
			}
		}},
		"what runs is shown beside what waits": {updates, func(t *testing.T, b *bench, c status.Change) {
			want := []status.ComponentChange{{Component: "app-1", From: "1.0.1", To: "1.0.2"}}
			d := b.r.Status().Deployments[0]
			if !slices.Equal(c.Components, want) || d.Components[0].Revision != "1.0.2" || len(d.Running) != 1 || d.Running[0].Revision != "1.0.1" || d.Running[0].Services[0].Status != workload.Running {
				t.Errorf("the change is %+v of %+v", c.Components, d)
			}
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Committed(t, b.r, 2)
			if d := b.r.Status().Deployments[0]; d.Components[0].Revision != "1.0.2" || d.Running != nil {
				t.Errorf("shown as %+v", d)
			}
		}},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			asked(t, x.policy, func(b *bench) {
				x.do(b.t, b, b.waiting("app-1", codes.ApprovalNeeded))
			})
		})
	}
}

// The waiting time of a change counts only while the agent runs, by the monotonic clock.
func TestAutomaticApprovalCountsTheTimeThatPassed(t *testing.T) {
	const after = 12 * time.Hour
	tests := map[string]struct {
		do  func(b *bench, set func(time.Duration))
		ran time.Duration // at the end of do
	}{
		"the clock is set forward": {func(_ *bench, set func(time.Duration)) { time.Sleep(90 * time.Minute); set(30 * 24 * time.Hour) }, 90 * time.Minute},
		"the clock is set back":    {func(_ *bench, set func(time.Duration)) { time.Sleep(90 * time.Minute); set(-30 * 24 * time.Hour) }, 90 * time.Minute},
		"the device is off": {func(b *bench, set func(time.Duration)) {
			time.Sleep(5*time.Hour + 30*time.Minute)
			b.r.Stop(b.t)
			time.Sleep(100 * time.Hour)
			b.r = b.w.Start(b.t)
		}, 5*time.Hour + 30*time.Minute},
		"the device is off, and its clock is set": {func(b *bench, set func(time.Duration)) {
			time.Sleep(5*time.Hour + 30*time.Minute)
			b.r.Stop(b.t)
			set(20 * 365 * 24 * time.Hour)
			b.r = b.w.Start(b.t)
		}, 5*time.Hour + 30*time.Minute},
		"the agent ends again and again": {func(b *bench, _ func(time.Duration)) {
			for range 12 {
				time.Sleep(50 * time.Minute)
				b.restart()
			}
		}, 10 * time.Hour},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				var ahead atomic.Int64
				w.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				w.Edit = func(o *agent.Options) {
					began := time.Now()
					o.Approvals = approval.Policy{Kinds: updates.Kinds, AutomaticAfter: after}
					o.Clock = clock.New(w.Now, func() time.Duration { return time.Since(began) })
				}
				b := &bench{t, w, m, w.Start(t)}
				w.Publish(t, 1, anApp(1, "web:1"))
				w.Committed(t, b.r, 1)
				w.Publish(t, 2, anApp(1, "web:2"))
				b.waiting("app-1", codes.ApprovalNeeded)
				x.do(b, func(d time.Duration) { ahead.Store(int64(d)) })
				time.Sleep(after - x.ran - time.Minute)
				if b.runs("web:2") {
					t.Fatal("it began early")
				}
				if left := b.waiting("app-1", codes.ApprovalNeeded).Waiting.Until.Sub(w.Now()); left < 0 || left > 2*time.Minute {
					t.Errorf("it is approved in %v", left)
				}
				time.Sleep(2 * time.Minute)
				w.Committed(t, b.r, 2)
			})
		})
	}
}

// A change that two states ask for, of which the newer one is still being loaded, is one change: it is approved once, and remembered as begun.
func TestChangeOfTwoStates(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		m.Pulling = func(ctx context.Context, i workload.Image, _ func(done, total int64)) error {
			if i.Tag == "3" {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		w.Edit = func(o *agent.Options) {
			o.Approvals, o.Probation = approval.Policy{Kinds: updates.Kinds, AutomaticAfter: time.Hour}, 10*time.Minute
		}
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		time.Sleep(11 * time.Minute)
		w.Committed(t, b.r, 1)
		w.Publish(t, 2, anApp(1, "web:2"))
		c := b.waiting("app-1", codes.ApprovalNeeded)
		w.Publish(t, 3, anApp(1, "web:2"), anApp(2, "web:3"))
		b.reaches(store.PhaseDownloading, 3)
		time.Sleep(59 * time.Minute)
		w.Wait(t, "the update", func() bool { return b.runs("web:2") })
		all, err := b.r.Changes(t.Context())
		at := slices.IndexFunc(all, func(x status.Change) bool { return x.ID == c.ID })
		if err != nil || at < 0 || all[at].Begun.IsZero() {
			t.Errorf("Changes = %+v, %v: the update has begun", all, err)
		}
		b.decidedAutomatically("app-1", c.ID, "automaticAfter 1h")
	})
}

// Two people decide differently at once: one of them is told, and what the other one decided happens, once.
func TestDecisionsAtOnce(t *testing.T) {
	for _, closed := range []bool{false, true} {
		asked(t, updates, func(b *bench) {
			if closed {
				b.w.Edit = func(o *agent.Options) {
					o.Approvals, o.ChangeWindow = updates, func(now time.Time) (bool, bool, time.Time) { return true, false, now.Add(time.Hour) }
				}
				b.restart()
			}
			c := b.waiting("app-1", codes.ApprovalNeeded)
			errs := map[store.Verdict]error{}
			var mu sync.Mutex
			var both sync.WaitGroup
			for _, v := range []store.Verdict{store.Approved, store.Rejected} {
				both.Go(func() {
					_, err := b.r.Decide(b.t.Context(), agent.DecisionRequest{Deployment: "app-1", ID: c.ID, Verdict: v, By: string(v), Via: "command", Reason: "I say so", Seen: new(time.Time)})
					mu.Lock()
					defer mu.Unlock()
					errs[v] = err
				})
			}
			both.Wait()
			won, lost := store.Approved, store.Rejected
			if errs[won] != nil {
				won, lost = lost, won
			}
			if err := errs[lost]; errs[won] != nil || !errors.Is(err, fault.ErrConflict) {
				b.t.Fatalf("both: %v", errs)
			}
			time.Sleep(time.Hour)
			if d := b.w.Extra(b.t).Decisions; len(d) != 1 || d[0].Verdict != string(won) {
				b.t.Errorf("reported as %+v, want %s", d, won)
			}
			if b.runs("web:2") != (won == store.Approved && !closed) || b.runs("web:1") == b.runs("web:2") {
				b.t.Errorf("%s, and web:2 runs: %v", won, b.runs("web:2"))
			}
			if closed { // who has seen the decision may change it
				b.w.Wait(b.t, "it is shown", func() bool {
					all, err := b.r.Changes(b.t.Context())
					if err != nil || len(all) != 1 || all[0].Decision == nil {
						return false
					}
					_, err = b.r.Decide(b.t.Context(), agent.DecisionRequest{Deployment: "app-1", ID: c.ID, Verdict: lost, By: "root", Via: "command", Reason: "no", Seen: &all[0].Decision.At})
					return err == nil
				})
			}
		})
	}
}

// A decision that has ended is in nobody's way.
func TestDecisionAfterOneThatHasEnded(t *testing.T) {
	asked(t, updates, func(b *bench) {
		c := b.waiting("app-1", codes.ApprovalNeeded)
		if err := b.decide(c, store.Postponed, "", time.Now().Add(time.Hour)); err != nil {
			b.t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		b.waiting("app-1", codes.ApprovalNeeded)
		if _, err := b.r.Decide(b.t.Context(), agent.DecisionRequest{Deployment: "app-1", ID: c.ID, Verdict: store.Approved, By: "bob", Via: "panel", Seen: new(time.Time)}); err != nil {
			b.t.Errorf("approve what was postponed until an hour ago: %v", err)
		}
		b.w.Committed(b.t, b.r, 2)
	})
}

// An approval that could not be used in time counts no more.
func TestApprovalExpires(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		began := time.Now()
		w.Edit = func(o *agent.Options) {
			o.Approvals = approval.Policy{Kinds: plan.Kinds(), ValidFor: time.Hour}
			o.ChangeWindow = func(now time.Time) (bool, bool, time.Time) {
				at := began.Add(3 * time.Hour)
				return now.Before(at), false, at
			}
		}
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"))
		c := b.waiting("app-1", codes.ApprovalNeeded)
		if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		if c = b.waiting("app-1", codes.OutsideWindow); !c.Waiting.Until.Equal(began.Add(3 * time.Hour)) {
			t.Errorf("it waits: %+v", c.Waiting)
		}
		time.Sleep(61 * time.Minute)
		c = b.waiting("app-1", codes.ApprovalNeeded)
		time.Sleep(2 * time.Hour)
		if b.runs("web:1") {
			t.Error("it began without an approval")
		}
		if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		w.Committed(t, b.r, 1)
	})
}

// An application keeps changes away from itself, as long as it runs and for a time that is bounded.
func TestUpdateLock(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		app := func(image string) agenttest.App {
			img := w.Image(image)
			a := anApp(1, image)
			a.Components[0].Compose = "services:\n  web:\n    image: " + img.Reference + "\n    volumes: [\"update-lock:/lock\"]\nvolumes: {update-lock: {}}\n"
			return a
		}
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, app("web:1"))
		w.Committed(t, b.r, 1)
		volume := app("web:1").Project("app-1") + "/" + approval.LockVolume
		expires := time.Now().Add(2 * time.Hour).UTC().Format(time.RFC3339)
		if err := m.Write(volume, `{"owner": "press", "reason": "batch 17", "expires": "`+expires+`"}`); err != nil {
			t.Fatal(err)
		}
		w.Publish(t, 2, app("web:2"))
		if c := b.waiting("app-1", codes.UpdateLocked); !strings.Contains(c.Waiting.Message, "press") || !strings.Contains(c.Waiting.Message, "batch 17") {
			t.Errorf("it waits: %+v", c.Waiting)
		}
		locked := b.reaches(store.PhaseAwaitingLock, 2)
		if locked.Code != string(codes.UpdateLocked) || !strings.Contains(locked.Message, "batch 17") {
			t.Errorf("it waits: %+v", locked)
		}
		w.Wait(t, "the report", func() bool {
			p := w.Extra(t).Progress
			return p != nil && p.Phase == store.PhaseAwaitingLock && p.Since.Equal(locked.Since)
		})
		time.Sleep(time.Hour)
		b.restart()
		b.waiting("app-1", codes.UpdateLocked)
		if p := b.reaches(store.PhaseAwaitingLock, 2); !p.Since.Equal(locked.Since) {
			t.Errorf("after a restart it waits since %v, before since %v", p.Since, locked.Since)
		}
		if err := m.Write(volume, ""); err != nil {
			t.Fatal(err)
		}
		w.Committed(t, b.r, 2)
		if err := m.Write(volume, `{"expires": "2100-01-01T00:00:00Z"}`); err != nil {
			t.Fatal(err)
		}
		w.Publish(t, 3, app("web:3"))
		if c := b.waiting("app-1", codes.UpdateLocked); c.Waiting.Until.After(time.Now().Add(approval.MaxLockFor)) {
			t.Errorf("it is locked until %v", c.Waiting.Until)
		}

		// Its containers are gone, and cannot be made again: nobody is left who would remove the lock. It is told once.
		if err := m.Write(volume, `{"owner": "press", "reason": "batch 18", "expires": "`+time.Now().Add(2*time.Hour).UTC().Format(time.RFC3339)+`"}`); err != nil {
			t.Fatal(err)
		}
		b.r.Stop(t)
		for _, c := range w.Observe(t) {
			m.Lose(c.Image)
			if err := m.Delete(c.ID); err != nil {
				t.Fatal(err)
			}
		}
		var approved, unreadable atomic.Bool
		m.VolumeFile = func() error {
			if unreadable.Load() {
				return errors.New("input/output error")
			}
			return nil
		}
		w.Edit = func(o *agent.Options) {
			o.ChangeWindow = func(now time.Time) (bool, bool, time.Time) { return !approved.Load(), false, now.Add(time.Hour) }
		}
		m.Images = func(img workload.Image) error {
			if img.Digest == w.Image("web:2").Digest {
				return errors.New("it is not in the registry any more")
			}
			return nil
		}
		b.r = w.Start(t)
		ignored := func(who, why string) (n int) {
			for _, e := range eventsOf(t, b.r.Agent, status.EventRequest{Kind: status.EventChange}) {
				if strings.Contains(e.Message, "the update lock of "+who+" is ignored: its owner is gone") && strings.HasSuffix(e.Message, "; "+why) && e.Deployment == "app-1" {
					n++
				}
			}
			return n
		}
		w.Wait(t, "the lock is told as ignored", func() bool { return ignored("press", "the lock says: batch 18") > 0 })
		b.waiting("app-1", codes.OutsideWindow)
		time.Sleep(10 * time.Minute)
		if n := ignored("press", "the lock says: batch 18"); n != 1 {
			t.Errorf("it is told %d times", n)
		}
		unreadable.Store(true)
		time.Sleep(10 * time.Minute)
		if n := ignored("app-1", "its lock cannot be read: input/output error"); n != 1 {
			t.Errorf("that it cannot be read is told %d times", n)
		}
		unreadable.Store(false)
		approved.Store(true)
		w.Committed(t, b.r, 3)
	})
}

// lockable is an application that may have an update lock, and the volume of that.
func lockable(w *agenttest.World, image string) (a agenttest.App, volume string) {
	a = anApp(1, image)
	a.Components[0].Compose = "services:\n  web:\n    image: " + w.Image(image).Reference + "\n    volumes: [\"update-lock:/lock\"]\nvolumes: {update-lock: {}}\n"
	return a, a.Project("app-1") + "/" + approval.LockVolume
}

// ahead is a runtime whose files were written while the clock was a year ahead.
type ahead struct {
	*runtimetest.Memory
	modified time.Time
}

func (a ahead) ReadVolumeFile(ctx context.Context, project string, v workload.Volume, name string, limit int64) ([]byte, time.Time, error) {
	data, _, err := a.Memory.ReadVolumeFile(ctx, project, v, name, limit)
	return data, a.modified, err
}

// A lock that was written while the clock was ahead ends as if it had been written when it was seen, not when the clock gets there.
func TestUpdateLockOfTheFuture(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		r := ahead{m, time.Now().AddDate(1, 0, 0)}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return r }
		b := &bench{t, w, m, w.Start(t)}
		app, volume := lockable(w, "web:1")
		w.Publish(t, 1, app)
		w.Committed(t, b.r, 1)
		if err := m.Write(volume, `{"reason": "batch 17"}`); err != nil {
			t.Fatal(err)
		}
		app, _ = lockable(w, "web:2")
		w.Publish(t, 2, app)
		b.waiting("app-1", codes.UpdateLocked)
		time.Sleep(50 * time.Minute)
		if c := b.waiting("app-1", codes.UpdateLocked); c.Waiting.Until.After(time.Now().Add(11 * time.Minute)) {
			t.Errorf("it is locked until %v", c.Waiting.Until)
		}
		time.Sleep(10 * time.Minute)
		w.Committed(t, b.r, 2)
	})
}

// A container that is gone for a moment, because it is replaced, leaves its application locked.
func TestUpdateLockOfAContainerThatIsReplaced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var away atomic.Bool
		m.Images = func(img workload.Image) error {
			if away.Load() && img.Digest == w.Image("web:1").Digest {
				return fault.ErrTemporary
			}
			return nil
		}
		b := &bench{t, w, m, w.Start(t)}
		app, volume := lockable(w, "web:1")
		w.Publish(t, 1, app)
		w.Committed(t, b.r, 1)
		if err := m.Write(volume, `{"reason": "batch 17"}`); err != nil {
			t.Fatal(err)
		}
		app, _ = lockable(w, "web:2")
		w.Publish(t, 2, app)
		b.waiting("app-1", codes.UpdateLocked)
		b.reaches(store.PhaseAwaitingLock, 2)
		away.Store(true)
		for _, c := range w.Observe(t) {
			m.Lose(c.Image)
			if err := m.Delete(c.ID); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		away.Store(false)
		w.Wait(t, "its container is there again", func() bool { return len(w.Observe(t)) == 1 })
		time.Sleep(10 * time.Minute)
		if !b.runs("web:1") || b.runs("web:2") {
			t.Errorf("it was changed although it was locked: %+v", w.Observe(t))
		}
		b.waiting("app-1", codes.UpdateLocked)
	})
}

// What runs is told rightly also if the device's clock is set back while a state is applied.
func TestRunningWithAClockThatIsSetBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var skew atomic.Int64
		w.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
		w.Edit = func(o *agent.Options) { o.Approvals = updates }
		b := &bench{t, w, m, w.Start(t)}
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "broker:1"))
		w.Committed(t, b.r, 1)
		w.Publish(t, 2, anApp(1, "web:2"), anApp(2, "broker:2"))
		b.waiting("app-2", codes.ApprovalNeeded)
		c := b.waiting("app-1", codes.ApprovalNeeded)
		if g := b.r.Status().Running.Generation; g != 1 {
			t.Errorf("generation %d runs while all changes wait", g)
		}
		skew.Store(int64(-24 * time.Hour))
		if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "web:2 to run", func() bool { return b.runs("web:2") })
		time.Sleep(10 * time.Minute)
		for range 2 {
			w.Wait(t, "generation 2 to run", func() bool { g := b.r.Status().Running; return g != nil && g.Generation == 2 })
			b.restart()
		}
	})
}

// Somebody at the device goes back to what ran before; the next state of the registry ends that.
func TestRollbackByHand(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		b := &bench{t, w, m, w.Start(t)}
		if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "root"}); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("RollBack of an empty device = %v", err)
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		w.Committed(t, b.r, 1)
		w.Publish(t, 2, anApp(1, "web:2"), anApp(2, "broker:1"))
		w.Committed(t, b.r, 2)
		for to, want := range map[uint64]error{2: fault.ErrConflict, 7: fault.ErrNotFound} {
			if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{To: to, By: "root"}); !errors.Is(err, want) {
				t.Errorf("RollBack to %d = %v, want %v", to, err, want)
			}
		}
		hold, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "user ana (1000)", Via: "command", Reason: "noise"})
		if err != nil || hold.Generation != 1 {
			t.Fatalf("RollBack = %+v, %v", hold, err)
		}
		back := func() bool { return b.runs("web:1") && !b.runs("web:2") && !b.runs("broker:1") }
		w.Wait(t, "generation 1 runs", back)
		if h, err := b.r.RollBack(t.Context(), agent.RollbackRequest{By: "root"}); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("RollBack once more = %+v, %v: the state that it was rolled back from is no earlier one", h, err)
		}
		b.restart()
		w.Wait(t, "the report says so", func() bool {
			x := w.Extra(t)
			return x.Hold != nil && x.Hold.Generation == 1 && x.AcceptedGeneration == 2 && x.CommittedGeneration == 1
		})
		time.Sleep(time.Hour) // polls find the accepted state again and again
		if s := b.r.Status(); !back() || !hasProblem(s, codes.Held) || s.Hold == nil {
			t.Errorf("an hour later: %+v", s.Problems)
		}
		if r := w.Sync(t, b.r); r.Code != codes.Held {
			t.Errorf("Sync = %+v", r)
		}
		if _, err := b.r.Release(t.Context(), "root", "command"); err != nil {
			t.Fatal(err)
		}
		w.Committed(t, b.r, 2)
		if !b.runs("web:2") || !b.runs("broker:1") {
			t.Error("the accepted state does not run")
		}
		if _, err := b.r.Release(t.Context(), "root", "command"); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("Release once more = %v", err)
		}
		if _, err := b.r.RollBack(t.Context(), agent.RollbackRequest{To: 1, By: "root"}); err != nil {
			t.Fatal(err)
		}
		w.Publish(t, 3, anApp(1, "web:3"))
		w.Committed(t, b.r, 3)
		if s := b.r.Status(); s.Hold != nil {
			t.Errorf("held: %+v", s.Hold)
		}
	})
}

// An update at which the device boots again and again is taken back; restarts of the agent do not count, and neither do boots while it waits.
func TestBootLoop(t *testing.T) {
	for _, x := range []struct {
		asks     bool
		maxBoots int // of agent.yaml; 0: it says nothing
		boots    int // after which it is taken back; of one that waits: that do not count
	}{{false, 0, 3}, {true, 0, 5}, {false, 1, 1}, {false, 2, 2}, {false, 7, 7}} {
		asks := x.asks
		t.Run(fmt.Sprintf("approval %v, maxBoots %d", asks, x.maxBoots), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				boot := 1
				w.Edit = func(o *agent.Options) {
					o.BootID, o.Probation, o.MaxBoots = fmt.Sprint("boot ", boot), 10*time.Minute, x.maxBoots
					if asks {
						o.Approvals = updates
					}
				}
				b := &bench{t, w, m, w.Start(t)}
				w.Publish(t, 1, anApp(1, "web:1"))
				w.Wait(t, "generation 1 runs", func() bool { return b.runs("web:1") })
				time.Sleep(11 * time.Minute)
				w.Committed(t, b.r, 1)
				w.Publish(t, 2, anApp(1, "web:2"))
				if asks {
					b.waiting("app-1", codes.ApprovalNeeded)
				} else {
					w.Wait(t, "the update runs", func() bool { return b.runs("web:2") })
				}
				for range 5 {
					b.restart()
					w.Wait(t, "a look", func() bool { return len(b.r.Status().Deployments) == 1 })
				}
				if !asks && !b.runs("web:2") {
					t.Error("restarts of the agent were counted")
				}
				for boot < x.boots {
					boot++
					b.restart()
					w.Wait(t, "a look", func() bool { return len(b.r.Status().Deployments) == 1 })
					if p := b.r.Status().Progress; !asks && (p.Attempt != boot || !b.runs("web:2")) {
						t.Fatalf("after boot %d: %+v", boot, p)
					}
				}
				if asks {
					b.waiting("app-1", codes.ApprovalNeeded)
					return
				}
				boot++
				b.restart()
				w.Wait(t, "the way back", func() bool {
					s := b.r.Status()
					return b.runs("web:1") && !b.runs("web:2") && len(s.Deployments) == 1 && s.Deployments[0].Error != nil &&
						s.Deployments[0].Error.Code == string(codes.BootLoop) && strings.Contains(s.Deployments[0].Error.Message, fmt.Sprintf("booted %d times", x.boots))
				})
			})
		})
	}
}
