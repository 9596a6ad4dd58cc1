package keyless_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore-go/pkg/testing/data"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/keyless"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
)

// publicGood is the trusted root of sigstore's public instance as its library's tests have it.
func publicGood(t testing.TB) []byte {
	t.Helper()
	r, err := data.TrustedRoot(&testing.T{}, "public-good.json").MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRootTellsItsAge(t *testing.T) {
	r := parseRoot(t, publicGood(t))
	if got := r.Dated().Format(time.DateOnly); got < "2022-01-01" || got > "2026-01-01" {
		t.Errorf("dated %s", got)
	}
	kinds := map[string]int{}
	for _, m := range r.Members() {
		kinds[m.Kind]++
		if m.Name == "" || m.From.IsZero() {
			t.Errorf("member %+v", m)
		}
	}
	if kinds[keyless.MemberAuthority] < 2 || kinds[keyless.MemberLog] < 1 || kinds[keyless.MemberCertLog] < 2 {
		t.Errorf("members %v", kinds)
	}
	if r.Digest() == "" {
		t.Error("no digest")
	}
}

func TestRootRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want error
	}{
		"nothing":       {``, fault.ErrInvalid},
		"no JSON":       {`hello`, fault.ErrInvalid},
		"other JSON":    {`{"keys":[]}`, fault.ErrInvalid},
		"other type":    {`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`, fault.ErrInvalid},
		"trusts nobody": {`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`, fault.ErrInvalid},
		"too large":     {string(make([]byte, keyless.MaxRootBytes+1)), fault.ErrTooLarge},
	} {
		if _, err := keyless.ParseRoot([]byte(c.data)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func FuzzParseRoot(f *testing.F) {
	f.Add(keylesstest.New(f).Root(f))
	f.Add(publicGood(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := keyless.ParseRoot(data)
		if err != nil {
			return
		}
		if len(r.Members()) == 0 {
			t.Error("a root that trusts nobody")
		}
	})
}

// A bundle of sigstore's public instance, made by a workflow on GitHub, verifies with that instance's root: its statement
// is of npm's provenance, and so nobody's signature, but everything else in it is as in one.
func TestPublicInstance(t *testing.T) {
	b := data.Bundle(t, "sigstore.js@2.0.0-provenance.sigstore.json")
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := keyless.NewIdentity(keyless.IdentityOptions{
		Name: "sigstore-js", Issuer: pattern(t, "https://token.actions.githubusercontent.com"),
		Subject: matching(t, `https://github\.com/sigstore/sigstore-js/\.github/workflows/release\.yml@refs/heads/.+`),
	}, parseRoot(t, publicGood(t)))
	if err != nil {
		t.Fatal(err)
	}
	e := evidence(t, raw)
	var said struct {
		Subject []struct{ Digest map[string]string }
	}
	if err := json.Unmarshal(e.Signed[bytes.IndexByte(e.Signed, '{'):], &said); err != nil {
		t.Fatal(err)
	}
	e.Subject = digest.NewDigestFromEncoded(digest.SHA512, said.Subject[0].Digest["sha512"])
	v, err := identity.Verify(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if v.Proven.Year() != 2023 || v.Algorithm != "ECDSA P-256" || len(v.Checked) != 4 {
		t.Errorf("Verify = %+v", v)
	}
}

func BenchmarkVerifyCertificate(b *testing.B) {
	instance := keylesstest.New(b)
	identity := newIdentity(b, parseRoot(b, instance.Root(b)))
	e := evidence(b, instance.Bundle(b, issuer, subject, statement("sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"), keylesstest.Flaws{}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := identity.Verify(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
}
