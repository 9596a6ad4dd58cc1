package signing_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// What was kept is verified as what the repository answered, and no more than that. Whatever others put beside it, the good one is kept, and only
// that.
func TestKept(t *testing.T) {
	large := sign.Statement{Type: "https://plant.example/sbom", Predicate: json.RawMessage(`"` + string(bytes.Repeat([]byte("x"), 2<<20)) + `"`)}
	for _, f := range formats {
		t.Run(string(f), func(t *testing.T) {
			st := signingtest.NewMemory()
			subject, other := st.Artifact(t, "hello"), st.Artifact(t, "other")
			signer := newSigner(t, sign.Options{Name: "release", Format: f})
			made := signed(t, signer, st, subject)
			if _, err := newSigner(t, sign.Options{Name: "release"}).Attest(t.Context(), st, subject, large); err != nil {
				t.Fatal(err)
			}
			for i := range 100 { // of anybody
				st.Attach(t, subject, MediaTypeBundle, MediaTypeBundle, append(bytes.Repeat([]byte("x"), 64<<10), fmt.Sprint(i)...))
			}
			var k Keeper
			query := func(of string, by Verifier) Query {
				return Query{PredicateType: of, Verifiers: []Verifier{by}, Keep: &k}
			}
			var counted []Signature
			for _, of := range []string{PredicateSign, large.Type, large.Type} {
				found, err := Examine(t.Context(), st, subject, query(of, releaseKey(t)))
				if err != nil || len(found.Good) == 0 {
					t.Fatalf("%s: %v, %v", of, found, err)
				}
				counted = append(counted, found.Good[0])
			}
			pieces := k.Pieces(counted)
			if len(pieces) != 2 || len(pieces[0].Data) > 16<<10 || len(pieces[1].Data) < 2<<20 {
				t.Fatalf("%d pieces are kept", len(pieces))
			}
			src := KeptSource{Repository: st.Name()}
			for _, p := range pieces {
				about, err := json.Marshal(p)
				if err != nil || len(about) > 1<<10 {
					t.Fatalf("%d bytes, %v", len(about), err)
				}
				again := Piece{Layer: p.Layer}
				if err := json.Unmarshal(about, &again); err != nil {
					t.Fatal(err)
				}
				src.Pieces = append(src.Pieces, again)
			}
			src.Read = func(_ context.Context, l ocispec.Descriptor) ([]byte, error) {
				for _, p := range pieces {
					if p.Layer.Digest == l.Digest {
						return p.Data, nil
					}
				}
				return nil, fault.ErrNotFound
			}
			got, err := Verify(t.Context(), src, subject, []Verifier{releaseKey(t)})
			if diff := cmp.Diff(made[:1], got); err != nil || diff != "" {
				t.Errorf("Verify = %v, (-made +kept):\n%s", err, diff)
			}
			found, err := Examine(t.Context(), src, subject, query(large.Type, releaseKey(t)))
			if err != nil || len(found.Good) != 1 || string(found.Good[0].Predicate) != string(large.Predicate) {
				t.Errorf("the attestation: %v, %v", found, err)
			}
			damaged := src
			damaged.Read = func(ctx context.Context, l ocispec.Descriptor) ([]byte, error) {
				data, err := src.Read(ctx, l)
				return append([]byte("x"), data...), err
			}
			for name, verify := range map[string]func() ([]Signature, error){
				"by another key": func() ([]Signature, error) {
					return Verify(t.Context(), src, subject, []Verifier{signingtest.OtherSigner(t, sign.Options{}).Key()})
				},
				"another artifact": func() ([]Signature, error) { return Verify(t.Context(), src, other, []Verifier{releaseKey(t)}) },
				"another repository": func() ([]Signature, error) {
					return Verify(t.Context(), KeptSource{"registry.example/other", src.Pieces, src.Read}, subject, []Verifier{releaseKey(t)})
				},
				"damaged": func() ([]Signature, error) { return Verify(t.Context(), damaged, subject, []Verifier{releaseKey(t)}) },
			} {
				if _, err := verify(); err == nil {
					t.Errorf("%s: it passes", name)
				}
			}
			if _, err := src.Referrers(t.Context(), subject); !errors.Is(err, fault.ErrUnsupported) {
				t.Errorf("Referrers = %v", err)
			}
		})
	}
}

// However many good statements a signer has made of one type, one of them is kept: no other counts beside it.
func TestKeptOnce(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	const of = "https://plant.example/sbom"
	two := []Verifier{releaseKey(t), signingtest.OtherSigner(t, sign.Options{}).Key()}
	for i := range 10 {
		for _, s := range []*sign.Signer{newSigner(t, sign.Options{Name: "release"}), signingtest.OtherSigner(t, sign.Options{})} {
			large := sign.Statement{Type: of, Predicate: json.RawMessage(fmt.Sprintf(`"%d%s"`, i, bytes.Repeat([]byte("x"), 1<<20)))}
			if _, err := s.Attest(t.Context(), st, subject, large); err != nil {
				t.Fatal(err)
			}
		}
	}
	var k Keeper
	found, err := Examine(t.Context(), st, subject, Query{PredicateType: of, Verifiers: two, Keep: &k})
	if err != nil || len(found.Good) != 20 {
		t.Fatalf("%+v, %v", found, err)
	}
	predicates := 0
	for _, s := range found.Good {
		predicates += len(s.Predicate)
	}
	if n := len(k.Pieces(found.Good)); n != 2 || predicates > 3<<20 {
		t.Errorf("%d pieces are kept of 2 signers, and %d bytes of predicates", n, predicates)
	}
	if len(k.Pieces(found.Good[:1])) != 1 {
		t.Error("the first is not kept")
	}
}
