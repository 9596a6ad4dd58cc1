package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// asksForTrust is a device that runs generation 1 and on which version 2 of the trust policy waits.
func asksForTrust(t *testing.T, edit func(*approval.Policy), f func(t *testing.T, b *bench, p *policies, c status.Change)) {
	t.Helper()
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		edited := w.Edit
		w.Edit = func(o *agent.Options) {
			edited(o)
			o.Approvals = approval.Policy{Kinds: []plan.Kind{plan.TrustPolicy}, Deployments: []string{"none"}}
			edit(&o.Approvals)
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		b := &bench{t, w, nil, w.Start(t)}
		w.Committed(t, b.r, 1)
		v := version(2)
		v.Changes = []string{"new key release-b"}
		p.set(func(p *policies) { p.next = []intake.TrustVersion{v} })
		w.Sync(t, b.r)
		f(t, b, p, b.waiting(status.TrustPolicyName, codes.ApprovalNeeded))
	})
}

func TestTrustPolicyIsApproved(t *testing.T) {
	none := func(*approval.Policy) {}
	taken := func(t *testing.T, b *bench, p *policies) {
		t.Helper()
		b.w.Wait(t, "version 2 decides and nothing waits", func() bool {
			all, err := b.r.Changes(t.Context())
			s := b.r.Status()
			return err == nil && len(all) == 0 && s.Trust != nil && s.Trust.Version == 2 && len(s.Problems) == 0
		})
		b.w.Wait(t, "the report says so", func() bool { x := b.w.Extra(t); return x.TrustVersion == 2 && len(x.Waiting) == 0 })
	}
	tests := map[string]struct {
		edit func(*approval.Policy)
		do   func(t *testing.T, b *bench, p *policies, c status.Change)
	}{
		"it is shown, reported, and nothing else waits": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			if c.ID != version(2).Digest || c.Trust == nil || c.Trust.Version != 2 || !slices.Equal(c.Trust.Changes, []string{"new key release-b"}) {
				t.Errorf("the change is %+v, %+v", c, c.Trust)
			}
			s := b.r.Status()
			if s.Trust.Version != 1 || len(s.Problems) != 1 || s.Problems[0].Code != codes.ApprovalNeeded || !strings.Contains(s.Problems[0].Message, "version 2") {
				t.Errorf("version %d decides, problems %+v", s.Trust.Version, s.Problems)
			}
			b.w.Wait(t, "the report says so", func() bool {
				x := b.w.Extra(t)
				return x.TrustVersion == 1 && len(x.Waiting) == 1 && x.Waiting[0].Code == string(codes.ApprovalNeeded) && x.Waiting[0].Name == status.TrustPolicyName
			})
			b.w.Publish(t, 2, anApp(1, "web:2"))
			b.w.Committed(t, b.r, 2)
			b.waiting(status.TrustPolicyName, codes.ApprovalNeeded)
		}},
		"approved": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			taken(t, b, p)
		}},
		"approved, and the agent dies before it acts": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.restart()
			taken(t, b, p)
		}},
		"it waits through a restart without a registry": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			p.set(func(p *policies) {
				p.next, p.err = nil, &codes.Error{Code: codes.TrustUnreachable, Err: fault.ErrTemporary}
			})
			b.restart()
			if again := b.waiting(status.TrustPolicyName, codes.ApprovalNeeded); again.ID != c.ID || !again.Since.Equal(c.Since) {
				t.Errorf("after a restart it is %+v, before %+v", again, c)
			}
		}},
		"an approval is of one version": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			other := version(2)
			other.Digest = "sha256:" + other.Digest[7:8] + other.Digest[7:70]
			p.set(func(p *policies) { p.next = []intake.TrustVersion{other, version(3)} })
			b.w.Sync(t, b.r)
			if err := b.decide(c, store.Approved, "", time.Time{}); err == nil {
				t.Error("an approval of what was there before is taken")
			}
			next := b.waiting(status.TrustPolicyName, codes.ApprovalNeeded)
			if err := b.decide(next, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.w.Wait(t, "version 3 waits, and 2 decides", func() bool {
				return b.waiting(status.TrustPolicyName, codes.ApprovalNeeded).Trust.Version == 3 && b.r.Status().Trust.Version == 2
			})
		}},
		"rejected, then approved after all": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			if err := b.decide(c, store.Rejected, "ask the plant first", time.Time{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(24 * time.Hour)
			c = b.waiting(status.TrustPolicyName, codes.ChangeRejected)
			if s := b.r.Status(); s.Trust.Version != 1 || len(s.Problems) != 1 || s.Problems[0].Code != codes.ChangeRejected {
				t.Errorf("version %d, problems %+v", s.Trust.Version, s.Problems)
			}
			if err := b.decide(c, store.Approved, "", time.Time{}); err != nil {
				t.Fatal(err)
			}
			taken(t, b, p)
		}},
		"postponed": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			if err := b.decide(c, store.Postponed, "", time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			b.waiting(status.TrustPolicyName, codes.ChangePostponed)
			time.Sleep(time.Hour)
			b.waiting(status.TrustPolicyName, codes.ApprovalNeeded)
		}},
		"automatic": {func(p *approval.Policy) { p.AutomaticAfter = 12*time.Hour + 30*time.Minute }, func(t *testing.T, b *bench, p *policies, c status.Change) {
			time.Sleep(12*time.Hour + 29*time.Minute)
			if n := b.r.Status().Trust.Version; n != 1 {
				t.Errorf("version %d decides early", n)
			}
			time.Sleep(2 * time.Minute)
			taken(t, b, p)
			b.decidedAutomatically(status.TrustPolicyName, c.ID, "automaticAfter 12h30m")
		}},
		"gone from the registry": {none, func(t *testing.T, b *bench, p *policies, c status.Change) {
			p.set(func(p *policies) { p.next = nil })
			b.w.Sync(t, b.r)
			if all, err := b.r.Changes(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("Changes = %+v, %v, want none", all, err)
			}
		}},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) { asksForTrust(t, x.edit, x.do) })
	}
}

// All kinds of changes of deployments are no reason to keep a device from the next trust policy.
func TestTrustPolicyIsTakenUnlessTheConfigurationNamesIt(t *testing.T) {
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		edited := w.Edit
		w.Edit = func(o *agent.Options) { edited(o); o.Approvals = approval.Policy{Kinds: plan.Kinds()} }
		p.set(func(p *policies) { p.next = []intake.TrustVersion{version(2)} })
		w.Publish(t, 1, anApp(1, "web:1"))
		b := &bench{t, w, (*runtimetest.Memory)(nil), w.Start(t)}
		b.waiting("app-1", codes.ApprovalNeeded)
		if n := b.r.Status().Trust.Version; n != 2 {
			t.Errorf("version %d decides, want 2", n)
		}
	})
}
