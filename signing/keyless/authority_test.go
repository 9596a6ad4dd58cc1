package keyless_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
)

const person = "release@acme.example"

func newAuthority(t testing.TB, o keyless.AuthorityOptions) *keyless.Authority {
	t.Helper()
	if o.Name == "" {
		o.Name = "plant-ca"
	}
	if o.Subject.IsZero() {
		o.Subject = pattern(t, person)
	}
	a, err := keyless.NewAuthority(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A certificate counts at the time that a clock of the root proves, and without one at the time that the device believes.
func TestAuthorityHoldsCertificatesAgainstTime(t *testing.T) {
	instance := keylesstest.New(t)
	root := parseRoot(t, instance.Root(t))
	now, later, earlier := time.Now(), time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	bare := keylesstest.Flaws{NoSCT: true, NoLog: true, NoStamp: true}
	stamped, logged := bare, bare
	stamped.NoStamp, logged.NoLog = false, false
	for name, c := range map[string]struct {
		flaws keylesstest.Flaws
		root  *keyless.Root
		now   time.Time
		want  error
		words string // in what was checked, or in the error
	}{
		"in time":                          {flaws: bare, now: now, words: "now"},
		"expired":                          {flaws: bare, now: later, want: keyless.ErrOutOfTime, words: person},
		"not yet":                          {flaws: bare, now: earlier, want: keyless.ErrOutOfTime, words: "valid from"},
		"expired, stamped in time":         {flaws: stamped, root: root, now: later, words: "timestamp authority"},
		"expired, stamped by nobody known": {flaws: stamped, now: later, want: keyless.ErrOutOfTime, words: "certificate out of time"},
		"expired, logged in time":          {flaws: logged, root: root, now: later, words: "transparency log"},
		"logged too late":                  {flaws: keylesstest.Flaws{NoSCT: true, NoStamp: true, Late: time.Hour}, root: root, now: later, want: keyless.ErrOutOfTime, words: "valid from"},
	} {
		t.Run(name, func(t *testing.T) {
			trustee := newAuthority(t, keyless.AuthorityOptions{Certificates: instance.Authority(), Root: c.root}).At(c.now)
			payload := legacyPayload(digest.FromString("hello"))
			for _, e := range []*signing.Evidence{
				evidence(t, instance.Bundle(t, "https://nobody.example", person, statement(digest.FromString("hello")), c.flaws)),
				legacyEvidence(t, payload, instance.Legacy(t, "https://nobody.example", person, payload, c.flaws)),
			} {
				v, err := trustee.Verify(t.Context(), e)
				if c.want != nil {
					if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
						t.Errorf("%s: Verify = %+v, %v, want %v with %q", e.Format, v, err, c.want, c.words)
					}
					continue
				}
				if err != nil || v.Identity != person || !strings.Contains(strings.Join(v.Checked, ";"), c.words) {
					t.Errorf("%s: Verify = %+v, %v, want %s with %q", e.Format, v, err, person, c.words)
				}
				if v.Proven.IsZero() != (c.root == nil) {
					t.Errorf("%s: proven at %s", e.Format, v.Proven)
				}
			}
		})
	}
}

// While a company's authority is renewed both of its certificates are in the file, under different names, and who has
// certificates of both is one person.
func TestAuthorityInRotationKnowsOnePerson(t *testing.T) {
	bare := keylesstest.Flaws{NoSCT: true, NoLog: true, NoStamp: true}
	before, after := keylesstest.New(t), keylesstest.Named(t, "acme 2027")
	both := append(before.Authority(), after.Authority()...)
	vouch := func(certificates []byte, by *keylesstest.Instance, name string) signing.Verification {
		t.Helper()
		trustee := newAuthority(t, keyless.AuthorityOptions{Certificates: certificates, Subject: pattern(t, name)}).At(time.Now())
		v, err := trustee.Verify(t.Context(), evidence(t, by.Bundle(t, "https://nobody.example", name, statement(digest.FromString("hello")), bare)))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	first, second := vouch(both, before, person), vouch(both, after, person)
	if first.Issuer == second.Issuer || first.Fingerprint == second.Fingerprint {
		t.Fatalf("both are by %q", first.Issuer)
	}
	if first.Principal != second.Principal {
		t.Errorf("one person is %q and %q", first.Principal, second.Principal)
	}
	for _, other := range []signing.Verification{vouch(both, before, "other@acme.example"), vouch(before.Authority(), before, person)} {
		if other.Principal == first.Principal {
			t.Errorf("%q is two", other.Principal)
		}
	}
}

// Older versions of cosign sign the SHA-256 of a payload, whatever the size of the key.
func TestAuthorityOfLargerCurves(t *testing.T) {
	instance := keylesstest.New(t)
	trustee := newAuthority(t, keyless.AuthorityOptions{Certificates: instance.Authority()}).At(time.Now())
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, chain := instance.Certificate(t, person, key.Public())
	payload := legacyPayload(digest.FromString("hello"))
	for _, hash := range []crypto.Hash{crypto.SHA256, crypto.SHA384} {
		h := hash.New()
		h.Write(payload)
		sig, err := key.Sign(rand.Reader, h.Sum(nil), hash)
		if err != nil {
			t.Fatal(err)
		}
		v, err := trustee.Verify(t.Context(), legacyEvidence(t, payload, map[string]string{
			"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig),
			"dev.sigstore.cosign/certificate":    string(leaf), "dev.sigstore.cosign/chain": string(chain),
		}))
		if err != nil || v.Algorithm != "ECDSA P-384" {
			t.Errorf("%s: Verify = %+v, %v", hash, v, err)
		}
	}
}

func TestAuthorityRefuses(t *testing.T) {
	instance := keylesstest.New(t)
	bare := keylesstest.Flaws{NoSCT: true, NoLog: true, NoStamp: true}
	good := instance.Bundle(t, "https://nobody.example", person, statement(digest.FromString("hello")), bare)
	trustee := newAuthority(t, keyless.AuthorityOptions{Certificates: instance.Authority()}).At(time.Now())
	if _, err := trustee.Verify(t.Context(), evidence(t, good)); err != nil {
		t.Fatal(err)
	}
	other := newAuthority(t, keyless.AuthorityOptions{Certificates: keylesstest.New(t).Authority()}).At(time.Now())
	if _, err := other.Verify(t.Context(), evidence(t, good)); err == nil {
		t.Error("another authority vouches")
	}
	someone := newAuthority(t, keyless.AuthorityOptions{Certificates: instance.Authority(), Subject: pattern(t, "someone@acme.example")}).At(time.Now())
	if _, err := someone.Verify(t.Context(), evidence(t, good)); !errors.Is(err, signing.ErrOtherSigner) {
		t.Errorf("another subject: %v, want %v", err, signing.ErrOtherSigner)
	}
	e := evidence(t, good)
	e.Signed = append([]byte("x"), e.Signed...)
	if _, err := trustee.Verify(t.Context(), e); err == nil {
		t.Error("other bytes than the signed ones are vouched for")
	}
	e = evidence(t, good)
	e.Signature = append([]byte{}, e.Signature...)
	e.Signature[10] ^= 1
	if _, err := trustee.Verify(t.Context(), e); err == nil {
		t.Error("another signature is vouched for")
	}
	key := &signing.Evidence{Format: signing.FormatBundle, Subject: digest.FromString("hello")}
	if _, err := trustee.Verify(t.Context(), key); !errors.Is(err, signing.ErrOtherSigner) {
		t.Errorf("a key: %v, want %v", err, signing.ErrOtherSigner)
	}
}

func TestAuthorityFiles(t *testing.T) {
	instance := keylesstest.New(t)
	subject := pattern(t, person)
	leaf := instance.Legacy(t, "https://nobody.example", person, []byte("x"), keylesstest.Flaws{NoLog: true})["dev.sigstore.cosign/certificate"]
	for name, o := range map[string]keyless.AuthorityOptions{
		"nothing":        {Subject: subject},
		"no subject":     {Certificates: instance.Authority()},
		"text":           {Subject: subject, Certificates: []byte("hello")},
		"text after":     {Subject: subject, Certificates: append(instance.Authority(), "hello"...)},
		"a key":          {Subject: subject, Certificates: []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")},
		"no authority":   {Subject: subject, Certificates: []byte(leaf)},
		"broken":         {Subject: subject, Certificates: []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")},
		"far too many":   {Subject: subject, Certificates: []byte(strings.Repeat(string(instance.Authority()), 20))},
		"far too large":  {Subject: subject, Certificates: make([]byte, keyless.MaxAuthorityBytes+1)},
		"an empty block": {Subject: subject, Certificates: []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")},
	} {
		o.Name = "plant-ca"
		_, err := keyless.NewAuthority(o)
		if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrTooLarge) || !strings.Contains(err.Error(), "plant-ca") {
			t.Errorf("%s: %v, want an error with a name", name, err)
		}
	}
}
