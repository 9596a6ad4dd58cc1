package main

import (
	"fmt"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

const lastGeneration = ^uint64(0)

// A stolen key signs the highest generation that there is. The key is revoked; the policy that does so takes the generation
// back, once, whether the device was awake or slept through that version. What runs is left alone, and nothing older comes back.
func TestStolenKeySignsTheLastGeneration(t *testing.T) {
	for _, sleeps := range []bool{false, true} {
		t.Run(fmt.Sprintf("sleeps through the version: %t", sleeps), func(t *testing.T) {
			f := newFleet(t, testenv.Referrers)
			roots := []string{"root-1", "root-2"}
			d := f.device("press-01", f.document(rules{version: 1, release: "release", roots: roots}))
			f.release(d.name, 4, "release-b") // an old one, by a key that counts again later
			old := f.current(d.name)
			f.release(d.name, 5, "release")
			d.wake().sync()
			d.at(1, 5)
			f.release(d.name, lastGeneration, "release") // the thief
			stolen := f.current(d.name)
			if r := d.sync(); r.Outcome != status.SyncInstalled {
				t.Fatalf("the thief's state: %+v", r)
			}
			d.at(1, lastGeneration)
			before := d.containers()
			two := rules{version: 2, release: "release-b", roots: roots, revoked: []string{"release"}, more: "generations: {resetTo: 5, version: 2}\n"}
			if sleeps {
				d.sleep()
			}
			f.rotate(two, roots...)
			version := uint64(2)
			if sleeps {
				three := two
				three.version, three.more = 3, ""
				f.rotate(three, roots...)
				version = 3
				d.wake()
			}
			d.sync()
			d.untouched(before)
			d.at(version, lastGeneration)
			if d.problem(codes.KeyRevoked) == nil {
				t.Errorf("what runs by the revoked key is not told: %+v", d.agent.Status().Problems)
			}
			d.sleep()
			d.wake() // what was taken back is on the disk
			f.point(d.name, old)
			if r := d.sync(); r.Code != codes.Rollback {
				t.Errorf("an old state: %+v", r)
			}
			d.untouched(before)
			f.release(d.name, 6, "release-b")
			if r := d.sync(); r.Outcome != status.SyncInstalled {
				t.Fatalf("the next honest state: %+v; %+v", r, d.agent.Status().Problems)
			}
			d.at(version, 6)
			f.point(d.name, stolen)
			if r := d.sync(); r.Code != codes.KeyRevoked {
				t.Errorf("the thief's state again: %+v", r)
			}
			f.release(d.name, 7, "release-b")
			seventh := f.current(d.name)
			d.sync()
			d.at(version, 7)
			f.release(d.name, 8, "release-b")
			d.sync()
			// A version that repeats the reset, as one does that is made of the text of the one before, opens nothing.
			if !sleeps {
				again := two
				again.version = 3
				f.rotate(again, roots...)
				version = 3
			}
			before = d.containers()
			f.point(d.name, seventh)
			if r := d.sync(); r.Code != codes.Rollback {
				t.Errorf("a state that was replaced since: %+v", r)
			}
			d.untouched(before)
			d.at(version, 8)
		})
	}
}

// The same by hand, for a policy that does not travel.
func TestFileTakesAGenerationBack(t *testing.T) {
	f := newFleet(t, testenv.Distribution)
	policy := func(key, more string) string {
		return fmt.Sprintf("version: 1\nkeys: [{name: %s, pem: %q}]\nrules: [{scope: %s/plant/**, signers: [%s]}]\n%s", key, f.key(key).PublicPEM(), f.server.Host, key, more)
	}
	d := f.device("press-01", policy("release", ""))
	f.release(d.name, lastGeneration, "release")
	d.wake().sync()
	f.release(d.name, 6, "release-b")
	d.write(policy("release-b", ""))
	if r := d.sync(); r.Code != codes.Rollback {
		t.Errorf("without a reset: %+v", r)
	}
	d.write(policy("release-b", "generations: {resetTo: 5, version: 1}\n"))
	if r := d.sync(); r.Outcome != status.SyncInstalled {
		t.Fatalf("with one: %+v", r)
	}
	d.at(1, 6)
	f.release(d.name, 9, "release-b")
	d.sync()
	f.release(d.name, 8, "release-b")
	d.write(policy("release-b", "# edited\ngenerations: {resetTo: 5, version: 1}\n"))
	if r := d.sync(); r.Code != codes.Rollback {
		t.Errorf("the same reset once more: %+v", r)
	}
	if g := d.agent.Status().Trust.Generations; g == nil || g.To != 5 || g.Version != 1 {
		t.Errorf("status tells %+v", g)
	}
}

// point moves a device's tag, as whoever can write to the registry does.
func (f *fleet) point(device string, to ocispec.Descriptor) {
	f.t.Helper()
	if err := f.states.Tag(f.t.Context(), to, device); err != nil {
		f.t.Fatal(err)
	}
}
