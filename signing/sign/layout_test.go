package sign_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// A statement goes where the artifact's signatures are: a bundle beside cosign's older tag would hide what is under the tag
// from cosign.
func TestStatementsGoWhereSignaturesAre(t *testing.T) {
	const kind = "https://example.com/checked/v1"
	for signed, want := range map[signing.Format]signing.Format{"": signing.FormatBundle, signing.FormatBundle: signing.FormatBundle, signing.FormatLegacy: signing.FormatLegacy, signing.FormatBoth: signing.FormatBundle} {
		st := signingtest.NewMemory()
		subject := st.Artifact(t, "hello")
		if signed != "" {
			signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{Format: signed}), st, subject)
		}
		said := sign.Statement{Type: kind, Predicate: json.RawMessage(`{"result":"fine"}`), Annotations: map[string]string{"tag": "press-07"}}
		for range 2 {
			made, err := signingtest.NewSigner(t, sign.Options{}).Attest(t.Context(), st, subject, said)
			if err != nil || made.Format != want {
				t.Fatalf("signed %q: Attest = %+v, %v, want format %s", signed, made, err, want)
			}
		}
		if _, err := signingtest.OtherSigner(t, sign.Options{}).Attest(t.Context(), st, subject, sign.Statement{Type: "https://example.com/other/v1"}); err != nil {
			t.Fatal(err)
		}
		got, err := signing.Statements(t.Context(), st, subject, kind, []signing.Verifier{signingtest.ReleaseKey(t)})
		if err != nil || len(got) != 2 || got[0].Format != want || string(got[0].Predicate) != string(said.Predicate) || got[0].Annotations["tag"] != "press-07" {
			t.Errorf("signed %q: signing.Statements = %+v, %v, want both", signed, got, err)
		}
		if _, err := signing.Statements(t.Context(), st, subject, "https://example.com/other/v1", []signing.Verifier{signingtest.ReleaseKey(t)}); !errors.Is(err, fault.ErrBadSignature) {
			t.Errorf("signed %q: signing.Statements by another = %v, want %v", signed, err, fault.ErrBadSignature)
		}
		if _, err := signing.Statements(t.Context(), st, st.Artifact(t, "other"), kind, []signing.Verifier{signingtest.ReleaseKey(t)}); !errors.Is(err, fault.ErrUnsigned) {
			t.Errorf("signed %q: signing.Statements about another = %v, want %v", signed, err, fault.ErrUnsigned)
		}
	}
}

// What is copied to another artifact's tag, or is no statement of the type that its layer claims, does not count.
func TestForgedStatementsUnderTheOlderTag(t *testing.T) {
	const kind = "https://example.com/checked/v1"
	st := signingtest.NewMemory()
	subject, other := st.Artifact(t, "hello"), st.Artifact(t, "other")
	signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{Format: signing.FormatLegacy}), st, subject)
	if _, err := signingtest.NewSigner(t, sign.Options{}).Attest(t.Context(), st, subject, sign.Statement{Type: kind}); err != nil {
		t.Fatal(err)
	}
	st.Tags[signing.AttestationTag(other.Digest)] = st.Tags[signing.AttestationTag(subject.Digest)]
	ours := []signing.Verifier{signingtest.ReleaseKey(t)}
	if _, err := signing.Statements(t.Context(), st, other, kind, ours); !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("Statements of another artifact's tag = %v, want %v", err, fault.ErrBadSignature)
	}
	if _, err := signing.Verify(t.Context(), st, other, ours); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Verify = %v, want %v: a statement is no signature", err, fault.ErrUnsigned)
	}
	st.Tags[signing.LegacyTag(other.Digest)] = st.Tags[signing.AttestationTag(subject.Digest)]
	if _, err := signing.Verify(t.Context(), st, other, ours); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Verify = %v, want %v: a statement is no signature under the tag of signatures either", err, fault.ErrUnsigned)
	}
}

// A statement that takes the place of others leaves no more of them under the tag than there were.
func TestStatementsOver(t *testing.T) {
	const kind = "https://example.com/checked/v1"
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{Format: signing.FormatLegacy}), st, subject)
	var last digest.Digest
	for n := range 3 {
		made, err := signingtest.NewSigner(t, sign.Options{}).Attest(t.Context(), st, subject, sign.Statement{Type: kind, Annotations: map[string]string{"n": strconv.Itoa(n)}}, last)
		if err != nil {
			t.Fatal(err)
		}
		last = made.Digest
	}
	got, err := signing.Statements(t.Context(), st, subject, kind, []signing.Verifier{signingtest.ReleaseKey(t)})
	if err != nil || len(got) != 1 || got[0].Annotations["n"] != "2" {
		t.Errorf("Statements = %+v, %v, want the last one alone", got, err)
	}
}
