package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/testenv"
)

const day = 24 * time.Hour

// freshPolicy asks for freshness by pulse of what release signs.
func (f *fleet) freshPolicy() string {
	f.t.Helper()
	var b strings.Builder
	b.WriteString("keys:\n")
	for _, n := range []string{"release", "pulse"} {
		pem, err := json.Marshal(string(f.key(n).PublicPEM()))
		if err != nil {
			f.t.Fatal(err)
		}
		fmt.Fprintf(&b, "  - {name: %s, pem: %s}\n", n, pem)
	}
	fmt.Fprintf(&b, "rules:\n  - {scope: %s/plant/**, signers: [release], freshness: {signers: [pulse]}}\n", f.server.Host)
	return b.String()
}

// current is what a device's tag names.
func (f *fleet) current(device string) ocispec.Descriptor {
	f.t.Helper()
	d, err := f.states.Resolve(f.t.Context(), device)
	if err == nil {
		d, _, err = f.states.Manifest(f.t.Context(), d.Digest)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

// pulse says of what a device's tag names that it is current, for two days.
func (f *fleet) pulse(device string, generation uint64, by string) {
	f.t.Helper()
	said, err := sign.NewFreshness(signing.Freshness{Tag: device, Generation: generation, IssuedAt: time.Now(), NotAfter: time.Now().Add(2 * day)})
	if err == nil {
		_, err = f.key(by).Attest(f.t.Context(), f.states, f.current(device), said)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (b *box) alarm(code codes.Code) bool {
	for _, s := range b.agent.Status().Security {
		if s.Code == code {
			return true
		}
	}
	return false
}

// The device with real signatures and a real registry: news that are withheld, replays, and clocks that are wrong.
func TestFreshness(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			f := newFleet(t, kind)
			f.release("press-07", 1, "release")
			f.pulse("press-07", 1, "pulse")
			b := f.device("press-07", f.freshPolicy()).wake()
			want := func(step string, outcome string, code codes.Code) {
				t.Helper()
				if r := b.sync(); r.Outcome != outcome || r.Code != code {
					t.Fatalf("%s: sync = %+v, want %s %s", step, r, outcome, code)
				}
			}
			want("first", status.SyncInstalled, "")
			one := f.current("press-07")
			before := b.containers()

			f.release("press-07", 2, "release")
			want("nobody says that it is current", status.SyncRefused, codes.StateStale)
			f.pulse("press-07", 2, "thief")
			want("somebody else says so", status.SyncRefused, codes.StateStale)
			b.untouched(before)
			f.pulse("press-07", 2, "pulse")
			want("current", status.SyncInstalled, "")
			two := f.current("press-07")
			before = b.containers()

			if err := f.states.Tag(t.Context(), one, "press-07"); err != nil { // with its own good statement
				t.Fatal(err)
			}
			want("replayed", status.SyncRefused, codes.Rollback)
			if !b.alarm(codes.Rollback) {
				t.Errorf("a replay is no security event: %+v", b.agent.Status().Security)
			}
			b.untouched(before)
			if err := f.states.Tag(t.Context(), two, "press-07"); err != nil {
				t.Fatal(err)
			}
			want("the tag is right again", status.SyncUnchanged, "")

			b.sleep() // three days, and the registry shows nothing newer
			b.skew = 3 * day
			b.wake()
			want("frozen", status.SyncUnchanged, "")
			s := b.agent.Status()
			if !s.Stale || s.Problems[0].Code != codes.StateStale || !b.alarm(codes.StateStale) || !b.alarm(codes.Rollback) || s.Accepted.Generation != 2 {
				t.Errorf("frozen: stale %t, %+v, security %+v", s.Stale, s.Problems, s.Security)
			}
			b.untouched(before)

			b.sleep()
			b.skew = -20 * 365 * day
			b.wake()
			want("clock behind", status.SyncUnchanged, "")
			s = b.agent.Status()
			if s.Stale || s.Clock == nil || s.Clock.ProvenBy != "freshness pulse" || b.problem(codes.ClockWrong) == nil {
				t.Errorf("clock behind: stale %t, clock %+v, %+v", s.Stale, s.Clock, s.Problems)
			}
			f.release("press-07", 3, "release")
			f.pulse("press-07", 3, "pulse")
			want("clock behind, a new generation", status.SyncInstalled, "")
			before = b.containers()

			b.sleep()
			b.skew = 400 * day
			b.wake()
			f.release("press-07", 4, "release")
			f.pulse("press-07", 4, "pulse")
			want("clock ahead", status.SyncRefused, codes.StateStale)
			if b.problem(codes.ClockWrong) == nil || !b.agent.Status().Stale {
				t.Errorf("clock ahead: %+v", b.agent.Status().Problems)
			}
			b.untouched(before)
			b.sleep()
			b.skew = 0
			b.wake()
			want("clock set right", status.SyncInstalled, "")
			if s := b.agent.Status(); s.Stale || s.Clock != nil || len(s.Problems) != 0 {
				t.Errorf("clock set right: %+v", s.Problems)
			}
		})
	}
}
