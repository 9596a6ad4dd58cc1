package approve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
)

// Versions of the trust policy wait at the device. What they allow counts once somebody has approved them, what they revoke counts at once.
func TestTrustPolicy(t *testing.T) {
	t.Parallel()
	p := newPress(t, "trust", "10.208.0.0/16")
	ctx := t.Context()
	desk := func(args ...string) {
		t.Helper()
		_, err := p.Run(ctx, "longshore", args...)
		p.must(err)
	}
	policies, root := p.Reference("plant/trust"), p.Path("root-1.key")
	desk("key", "generate", "root-1")
	desk("key", "generate", "release-b")
	desk("trust", "init", "--signer", p.Path("root-1.pub"), "--key", p.Path("release.pub"), "--file", p.Path("policy.yaml"), policies)
	desk("trust", "push", "--key", root, p.Path("policy.yaml"), policies)
	p.kinds = "trust"
	p.boot("--policy", p.Path("policy.yaml"))
	// signedBy publishes a state that one of the two keys of releases has signed.
	signedBy := func(key, other string) {
		t.Helper()
		p.push("line")
		desk("state", "push", "--device", p.Device, "--key", p.Path(key+".key"), "--verify-key", p.Path(other+".pub"), "--component", p.pushed["line"], p.Reference("plant/state"))
	}
	decides := func(version uint64) {
		t.Helper()
		p.until(fmt.Sprintf("version %d decides", version), func() error {
			s, err := p.Status(ctx)
			if err == nil && (s.Trust == nil || s.Trust.Version != version) {
				err = fmt.Errorf("the policy is %+v", s.Trust)
			}
			return err
		})
	}
	refused := func(what string) {
		t.Helper()
		before := p.processes()
		if out, err := p.Control(ctx, "sync", "--timeout", "1m"); exit(err) != 6 {
			t.Errorf("%s: %q, %v, want exit code 6", what, out, err)
		}
		p.unmoved(before, what)
	}
	decides(1)
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

	desk("trust", "add", "--key", root, p.Path("release-b.pub"), policies)
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
	decides(1)
	approve(c)
	decides(2)
	p.synced()
	p.applied("line")

	desk("trust", "revoke", "--key", root, "--reason", "laptop stolen", "release", policies)
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
	decides(2)
	approve(c)
	decides(3)
	refused("signed by a key that is revoked")
	signedBy("release-b", "release")
	p.synced()
	p.applied("line")
	p.must(p.Settled(ctx, p.generation, limit))
}
