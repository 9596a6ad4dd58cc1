package store_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
)

func TestSecurityEventsAreCountedAndBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	add := func(n int, code codes.Code, content string) {
		t.Helper()
		if err := s.Update(func(tx *store.Tx) error {
			return tx.AddSecurity(store.Security{Code: code, Digest: digest.FromString(content), Message: "m", Last: start.Add(time.Duration(n) * time.Minute)})
		}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 100 {
		add(n, "generation-rollback", fmt.Sprint(n))
	}
	add(200, "generation-rollback", "50")
	add(201, "wrong-device", "50")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, nil)
	if err := s.View(func(tx *store.Tx) error {
		all, err := tx.Security()
		if err != nil {
			return err
		}
		if n := len(all); n != 64 || all[n-1].Code != "wrong-device" || all[n-2].Count != 2 || !all[n-2].First.Equal(start.Add(50*time.Minute)) {
			t.Errorf("%d events are kept, the last %+v", n, all[n-2:])
		}
		counts, err := tx.SecurityCounts()
		if diff := cmp.Diff(map[codes.Code]uint64{"generation-rollback": 101, "wrong-device": 1}, counts); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestProofsAndFreshness(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), nil)
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	proofs := []clock.Proof{{Kind: "signature", By: "release", Time: at}, {Kind: "freshness", By: "pulse", Time: at.Add(time.Hour)}}
	fresh := &store.Fresh{Digest: digest.FromString("x"), Policy: "p", Required: true, By: "pulse", IssuedAt: at, NotAfter: at.Add(48 * time.Hour), LookedAt: at}
	if err := s.Update(func(tx *store.Tx) error {
		if err := tx.SetProofs(proofs); err != nil {
			return err
		}
		return tx.SetFresh(fresh)
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(func(tx *store.Tx) error {
		got, err := tx.Proofs()
		if diff := cmp.Diff(proofs, got); diff != "" || err != nil {
			t.Errorf("proofs: %v (-want +got):\n%s", err, diff)
		}
		f, err := tx.Fresh()
		if diff := cmp.Diff(fresh, f); diff != "" || err != nil {
			t.Errorf("freshness: %v (-want +got):\n%s", err, diff)
		}
		if err := tx.SetFresh(nil); err != nil {
			return err
		}
		if f, err := tx.Fresh(); f != nil || err != nil {
			t.Errorf("freshness that was forgotten: %+v, %v", f, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// The device's clock may have been set back by decades: what happens now is kept all the same.
func TestASecurityEventIsNotDroppedAsItIsAdded(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), nil)
	add := func(content string, at time.Time) {
		t.Helper()
		if err := s.Update(func(tx *store.Tx) error {
			return tx.AddSecurity(store.Security{Code: "wrong-device", Digest: digest.FromString(content), Last: at})
		}); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for n := range 64 {
		add(fmt.Sprint(n), at.Add(time.Duration(n)*time.Minute))
	}
	add("now", time.Unix(0, 0))
	if err := s.View(func(tx *store.Tx) error {
		all, err := tx.Security()
		if len(all) != 64 || all[0].Digest != digest.FromString("now") || all[1].Digest != digest.FromString("1") {
			t.Errorf("%d events, the first are %+v", len(all), all[:2])
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
