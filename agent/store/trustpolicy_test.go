package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func trust(version uint64, text string) store.Trust {
	return store.Trust{
		Version: version, Digest: digest.FromString(text), Repository: "r.example/trust", Anchor: "a", File: digest.FromString("file"),
		AcceptedAt: t0, SignedBy: []string{"root-1"}, Policy: []byte(text), Root: []byte("{}"),
	}
}

func TestTrustSurvivesAndOnlyRises(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	read := func() *store.Trust {
		t.Helper()
		var x *store.Trust
		if err := s.View(func(tx *store.Tx) (err error) { x, err = tx.Trust(); return err }); err != nil {
			t.Fatal(err)
		}
		return x
	}
	if x := read(); x != nil {
		t.Errorf("Trust of a new store = %+v", x)
	}
	update(t, s, func(tx *store.Tx) error { return tx.SetTrust(trust(7, "seven")) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, nil)
	want := trust(7, "seven")
	want.PolicyHash, want.RootHash = digest.FromString("seven"), digest.FromString("{}")
	if d := cmp.Diff(&want, read()); d != "" {
		t.Errorf("Trust after reopening (-want +got):\n%s", d)
	}
	for _, tc := range []struct {
		name string
		x    store.Trust
		want error
	}{
		{"older", trust(6, "six"), fault.ErrRollback},
		{"other content", trust(7, "seven!"), fault.ErrRollback},
		{"the same again", trust(7, "seven"), nil},
		{"newer", trust(8, "eight"), nil},
		{"older under another anchor", func() store.Trust { x := trust(2, "two"); x.Anchor, x.Root = "b", nil; return x }(), nil},
	} {
		before := read()
		err := s.Update(func(tx *store.Tx) error { return tx.SetTrust(tc.x) })
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: SetTrust = %v, want %v", tc.name, err, tc.want)
		}
		if d := cmp.Diff(before, read()); tc.want != nil && d != "" {
			t.Errorf("%s: a refused version changed the record:\n%s", tc.name, d)
		}
	}
	if x := read(); x.Version != 2 || x.Root != nil || string(x.Policy) != "two" {
		t.Errorf("Trust = %+v, want version 2 without a root", x)
	}
	if err := s.Update(func(tx *store.Tx) error {
		x := trust(3, "large")
		x.Anchor, x.Policy = "b", make([]byte, 2<<20)
		return tx.SetTrust(x)
	}); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("SetTrust of 2 MiB = %v", err)
	}
}

// A policy that the disk has spoiled is damage, and not a policy with a key less or more.
func TestSpoiledTrustIsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	const text = "a text that stands out in the file"
	update(t, s, func(tx *store.Tx) error { return tx.SetTrust(trust(7, text)) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range len(data) - len(text) {
		if string(data[i:i+len(text)]) == text {
			data[i] ^= 1
			n++
		}
	}
	if n == 0 {
		t.Fatal("the policy is not in the file")
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, nil)
	if err := s.View(func(tx *store.Tx) error { _, err := tx.Trust(); return err }); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("Trust of a spoiled policy = %v, want %v", err, fault.ErrDigestMismatch)
	}
}
