package filebundle_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/filebundle"
	"github.com/longshore-dev/longshore/signing/sign"
)

func newSigner(t *testing.T, name string, format signing.Format) *sign.Signer {
	t.Helper()
	private, _, err := sign.GenerateKey([]byte("plant"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := sign.NewSigner(private, []byte("plant"), sign.Options{Name: name, Format: format})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Signatures of several keys and attestations stand beside a file, each is found, and none is good for other bytes.
func TestStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "checksums.txt")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("checksums.txt", "0  a\n")
	write("checksums.txt.old.sigstore.json", "of something else")
	write("checksums.txt.asc", "of another kind")
	store, d, err := filebundle.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	first, second := newSigner(t, "first", ""), newSigner(t, "second", "")
	for _, s := range []*sign.Signer{first, second} {
		if _, err := s.Sign(t.Context(), store, d); err != nil {
			t.Fatal(err)
		}
	}
	const kind = "https://slsa.dev/provenance/v1"
	if _, err := first.Attest(t.Context(), store, d, sign.Statement{Type: kind, Predicate: json.RawMessage(`{}`)}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"checksums.txt.sigstore.json", "checksums.txt.2.sigstore.json", "checksums.txt.attestation.sigstore.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	again, d, err := filebundle.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*sign.Signer{first, second} {
		if _, err := signing.Verify(t.Context(), again, d, signing.Verifiers(s.Key())); err != nil {
			t.Errorf("signed by %s: %v", s.Name(), err)
		}
	}
	if found, err := signing.Statements(t.Context(), again, d, kind, signing.Verifiers(first.Key())); err != nil || len(found) != 1 {
		t.Errorf("%d attestations, %v", len(found), err)
	}
	if _, err := signing.Verify(t.Context(), again, d, signing.Verifiers(newSigner(t, "third", "").Key())); !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("signed by others: %v", err)
	}
	write("checksums.txt", "0  b\n")
	changed, d, err := filebundle.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Verify(t.Context(), changed, d, signing.Verifiers(first.Key())); !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("a changed file: %v", err)
	}
}

// A file without bundles is unsigned; cosign's older format needs a registry.
func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "alone")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	store, d, err := filebundle.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	legacy := newSigner(t, "release", signing.FormatLegacy)
	if _, err := signing.Verify(t.Context(), store, d, signing.Verifiers(legacy.Key())); !errors.Is(err, fault.ErrUnsigned) {
		t.Error(err)
	}
	if _, err := legacy.Sign(t.Context(), store, d); !errors.Is(err, fault.ErrUnsupported) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || slices.IndexFunc(entries, func(e os.DirEntry) bool { return e.Name() != "alone" }) >= 0 {
		t.Errorf("%v, %v: something was written", entries, err)
	}
}
