package trust

import (
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// What versions that are held back revoke counts at once and after a restart, and nothing else of them does.
func TestHeldBack(t *testing.T) {
	r := newRepository()
	d := newDevice(t, r, plain(1).text(t))
	approved := uint64(1)
	look := func() (held uint64) {
		t.Helper()
		_, s, err := d.Follower.Refresh(t.Context(), func(before *Policy, s *Step) bool {
			if before.Version+1 != s.Policy.Version {
				t.Errorf("version %d follows %d", s.Policy.Version, before.Version)
			}
			return s.Policy.Version > approved
		})
		if err != nil {
			t.Fatal(err)
		}
		if s == nil {
			return 0
		}
		return s.Policy.Version
	}
	is := func(when string, version uint64, revoked ...string) {
		t.Helper()
		for range 2 {
			p, err := d.Policy()
			if err != nil || p.Version != version || len(p.Revoked) != len(revoked) || len(d.InForce().Policy.Revoked) != len(revoked) {
				t.Fatalf("%s: %v, policy %+v, want version %d with %v revoked", when, err, p, version, revoked)
			}
			for _, name := range revoked {
				if p.KeyRevoked(signer(t, name).Key().Fingerprint) == nil {
					t.Errorf("%s: %s is not revoked", when, name)
				}
			}
			d.restart()
		}
	}
	before := d.Fingerprint()
	second := plain(2) // by root-1, whom it revokes, and another rule
	second.rule, second.revoked, second.signers, second.threshold = []string{"release-b"}, []string{"root-1"}, []string{"root-1", "root-2", "root-3", "root-4"}, 1
	r.push(t, second, "", "root-1", "root-2")
	third := second
	third.version, third.revoked = 3, []string{"root-1", "release"}
	r.push(t, third, "", "root-2", "root-3")
	if n := look(); n != 2 {
		t.Fatalf("version %d is held back, want 2", n)
	}
	is("held back", 1, "root-1", "release")
	if d.Fingerprint() == before {
		t.Error("the fingerprint does not show it")
	}
	if p, _ := d.Policy(); p.Rules[0].Signers[0].Name != "release" {
		t.Error("the rule of a version that is held back decides")
	}
	behind := newRepository()
	behind.push(t, second, "", "root-1", "root-2")
	d.at[trustRepository] = behind
	look()
	d.at[trustRepository] = r
	is("the newer one hidden", 1, "root-1", "release")
	approved = 2 // although one of those who signed it is revoked by then
	if n := look(); n != 3 {
		t.Fatalf("version %d is held back, want 3", n)
	}
	is("approved", 2, "root-1", "release")
	fourth := third
	fourth.revoked = []string{"root-1"}
	r.push(t, fourth, "v3", "root-2", "root-3")
	approved = 3
	look()
	is("the newest decides", 3, "root-1")

	d = newDevice(t, r, plain(1).text(t))
	d.keep.err = fault.ErrDenied
	if _, _, err := d.Follower.Refresh(t.Context(), func(*Policy, *Step) bool { return true }); err == nil {
		t.Error("a revocation that is not saved is no error")
	}
}

// A policy file by a person at the device, with other signers, takes no notice of what was held back.
func TestHeldBackUnderAnotherFile(t *testing.T) {
	r := newRepository()
	d := newDevice(t, r, plain(1).text(t))
	second := plain(2)
	second.revoked = []string{"spare"}
	r.push(t, second, "", "root-1", "root-2")
	if _, s, err := d.Follower.Refresh(t.Context(), func(*Policy, *Step) bool { return true }); s == nil || err != nil {
		t.Fatal(s, err)
	}
	other := plain(1)
	other.signers = []string{"new-1", "new-2"}
	d.file = other.text(t)
	if p, err := d.Policy(); err != nil || len(p.Revoked) != 0 {
		t.Errorf("policy %+v, %v", p, err)
	}
}
