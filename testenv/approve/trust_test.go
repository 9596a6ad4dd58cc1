package approve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
)

// desk runs a command of the publisher, which must succeed.
func (p *press) desk(args ...string) {
	p.t.Helper()
	_, err := p.Run(p.t.Context(), "longshore", args...)
	p.must(err)
}

// pushPolicy pushes the first version of a trust policy, in which root-1 signs policies and release signs states.
func (p *press) pushPolicy() {
	p.t.Helper()
	p.desk("key", "generate", "root-1")
	p.desk("trust", "init", "--signer", p.Path("root-1.pub"), "--key", p.Path("release.pub"), "--file", p.Path("policy.yaml"), p.Reference("plant/trust"))
	p.desk("trust", "push", "--key", p.Path("root-1.key"), p.Path("policy.yaml"), p.Reference("plant/trust"))
	p.policy = 1
}

// decides waits until the device decides by a version of the trust policy.
func (p *press) decides(version uint64) {
	p.t.Helper()
	p.until(fmt.Sprintf("version %d decides", version), func() error {
		s, err := p.Status(p.t.Context())
		if err == nil && (s.Trust == nil || s.Trust.Version != version) {
			err = fmt.Errorf("the policy is %+v", s.Trust)
		}
		return err
	})
}

// ofTrust is the change of the trust policy to one that accepts another key.
func ofTrust() kindOfChange {
	return kindOfChange{plan.TrustPolicy, func(p *press, n int) string {
		p.policy++
		key := fmt.Sprintf("release-%d", n)
		p.desk("key", "generate", key)
		p.desk("trust", "add", "--key", p.Path("root-1.key"), p.Path(key+".pub"), p.Reference("plant/trust"))
		return status.TrustPolicyName
	}, func(p *press, _ string, _ int) { p.decides(p.policy) }}
}

// Versions of the trust policy wait at the device. What they allow counts once somebody has approved them, what they revoke counts at once.
func TestTrustPolicy(t *testing.T) {
	t.Parallel()
	p := newPress(t, "trust", "10.208.0.0/16")
	ctx := t.Context()
	policies, root := p.Reference("plant/trust"), p.Path("root-1.key")
	p.pushPolicy()
	p.desk("key", "generate", "release-b")
	p.kinds = "trust"
	p.boot("--policy", p.Path("policy.yaml"))
	// signedBy publishes a state that one of the two keys of releases has signed.
	signedBy := func(key, other string) {
		t.Helper()
		p.push("line")
		p.desk("state", "push", "--device", p.Device, "--key", p.Path(key+".key"), "--verify-key", p.Path(other+".pub"), "--component", p.pushed["line"], p.Reference("plant/state"))
	}
	refused := func(what string) {
		t.Helper()
		before := p.processes()
		if out, err := p.Control(ctx, "sync", "--timeout", "1m"); exit(err) != 6 {
			t.Errorf("%s: %q, %v, want exit code 6", what, out, err)
		}
		p.unmoved(before, what)
	}
	p.decides(1)
	// One road for each version; which ones is another each time.
	roads := p.roads()
	first := rand.IntN(len(roads))
	approve := func(c status.Change) {
		t.Helper()
		r := roads[first%len(roads)]
		first++
		t.Logf("version %d is approved by %s", c.Trust.Version, r.name)
		r.approve(p, c)
		if n := p.told(c, "approved by "+r.by(c)); n != 1 {
			t.Errorf("who approved is told %d times: %+v", n, p.events(status.EventChange))
		}
	}

	p.desk("trust", "add", "--key", root, p.Path("release-b.pub"), policies)
	p.synced()
	c := p.waits(status.TrustPolicyName, codes.ApprovalNeeded)
	if c.Trust == nil || c.Trust.Version != 2 || !slices.Equal(c.Trust.SignedBy, []string{"root-1"}) || !strings.Contains(strings.Join(c.Trust.Changes, "\n"), "release-b") {
		t.Errorf("the change is %+v, %+v", c, c.Trust)
	}
	if out, err := p.as(member, "status"); err != nil || !strings.Contains(out, "trust policy version 2") {
		t.Errorf("a member sees %q, %v", out, err)
	}
	signedBy("release-b", "release")
	refused("signed by a key that waits for an approval")
	if out, err := p.as(stranger, "approve", status.TrustPolicyName); exit(err) <= 0 {
		t.Errorf("a stranger approves it: %q, %v", out, err)
	}
	if _, err := p.Control(ctx, "approve", "--all"); err != nil {
		t.Error(err)
	}
	p.again()
	if again := p.waits(status.TrustPolicyName, codes.ApprovalNeeded); again.ID != c.ID || !again.Since.Equal(c.Since) {
		t.Errorf("after a restart it is %+v, before %+v", again, c)
	}
	p.decides(1)
	approve(c)
	p.decides(2)
	p.synced()
	p.applied("line")

	p.desk("trust", "revoke", "--key", root, "--reason", "laptop stolen", "release", policies)
	p.synced()
	c = p.waits(status.TrustPolicyName, codes.ApprovalNeeded)
	signedBy("release", "release-b")
	refused("signed by a key that a version which waits has revoked")
	if _, err := p.as(member, "reject", "--reason", "ask the plant first", status.TrustPolicyName); err != nil {
		t.Fatal(err)
	}
	p.waits(status.TrustPolicyName, codes.ChangeRejected)
	p.again()
	refused("signed by a key that a rejected version has revoked")
	p.decides(2)
	approve(c)
	p.decides(3)
	refused("signed by a key that is revoked")
	signedBy("release-b", "release")
	p.synced()
	p.applied("line")
	p.must(p.Settled(ctx, p.generation, limit))
}
