package store_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/store"
)

func tokenChanges(t *testing.T, s store.Store) {
	var last int64
	changed := func(what string, want bool) {
		t.Helper()
		n, err := s.TokenChanges(t.Context())
		if err != nil || (n != last) != want {
			t.Errorf("TokenChanges after %s = %d, %v, want another number than %d: %v", what, n, err, last, want)
		}
		last = n
	}
	changed("nothing", true)
	changed("nothing again", false)
	add := func(id string) {
		t.Helper()
		if err := s.AddTokens(t.Context(), store.Token{ID: id, Devices: []string{"a"}, Hash: []byte{1}, Created: noon(0)}); err != nil {
			t.Fatal(err)
		}
	}
	add("x")
	changed("a new token", true)
	put(t, s, caps("a"), store.Created)
	changed("a report", false)
	if err := s.RevokeToken(t.Context(), "x", noon(1)); err != nil {
		t.Fatal(err)
	}
	changed("a revocation", true)
}

func manifests(t *testing.T, s store.Store) {
	_, err := s.Manifest(t.Context(), "a")
	wantErr(t, "manifest of nobody", err, fault.ErrNotFound)
	one := store.Manifest{Client: "a", Version: 1, Digest: "sha256:1", Made: `["x"]`}
	try := func(version uint64, digest string) error {
		m := one
		m.Version, m.Digest = version, digest
		return s.PutManifest(t.Context(), m)
	}
	for _, version := range []uint64{1, 1, 7, 1 << 63, math.MaxUint64} {
		if err := try(version, "sha256:1"); err != nil {
			t.Errorf("PutManifest(%d): %v", version, err)
		}
	}
	wantErr(t, "an older version", try(1<<63, "sha256:1"), fault.ErrConflict)
	wantErr(t, "another one of the same version", try(math.MaxUint64, "sha256:2"), fault.ErrConflict)
	want := one
	want.Version = math.MaxUint64
	got, err := s.Manifest(t.Context(), "a")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Manifest: %v (-want +got):\n%s", err, diff)
	}
	all, err := s.ListManifests(t.Context())
	if diff := cmp.Diff([]store.Manifest{want}, all); err != nil || diff != "" {
		t.Errorf("ListManifests: %v (-want +got):\n%s", err, diff)
	}
	_, err = s.Manifest(t.Context(), "b")
	wantErr(t, "manifest of another client", err, fault.ErrNotFound)
}

func registeredChildren(t *testing.T, s store.Store) {
	for _, id := range []string{"gw", "gw/a", "gw/a/x", "gw/b", "gw-2", "gw0"} {
		c := caps(id)
		if c.By = id; id == "gw/a" || id == "gw/a/x" || id == "gw" {
			c.By = "gw"
		}
		put(t, s, c, store.Created)
	}
	want := func(ids ...string) {
		t.Helper()
		got, err := s.Children(t.Context(), "gw")
		if err != nil || !slices.Equal(got, ids) {
			t.Errorf("Children = %v, %v, want %v", got, err, ids)
		}
	}
	want("gw/a", "gw/a/x")
	own := caps("gw/a/x")
	own.By = "gw/a/x"
	put(t, s, own, store.Updated)
	want("gw/a")
	if err := s.DeleteDevice(t.Context(), "gw/a"); err != nil {
		t.Fatal(err)
	}
	want()
}
