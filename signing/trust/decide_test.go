package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// someone is a signer that vouches for one key under another principal: an identity, as far as counting goes.
func someone(name, principal string, k signing.Key) *Signer {
	return &Signer{Name: name, Kind: SignerIdentity, about: principal, at: func(time.Time) signing.Verifier { return posing{k, name, principal} }}
}

type posing struct {
	signing.Key
	name, principal string
}

func (p posing) VerifierName() string { return p.name }

func (p posing) Verify(ctx context.Context, e *signing.Evidence) (signing.Verification, error) {
	v, err := p.Key.Verify(ctx, e)
	v.Principal = p.principal
	return v, err
}

// Thresholds count different people with different keys.
func TestCount(t *testing.T) {
	a, b, c := KeySigner(keyNo(t, 0, "a")), KeySigner(keyNo(t, 1, "b")), KeySigner(keyNo(t, 2, "c"))
	again := KeySigner(keyNo(t, 0, "a-again"))
	alike := someone("ci", "ci by issuer", keyNo(t, 0, "ci"))
	late, early := *b, *b
	late.Name, late.NotAfter = "late", now
	early.Name, early.NotBefore = "early", now.Add(time.Second)
	revoked := &Policy{Revoked: []Revocation{{Key: b.Key.Fingerprint, Since: now.Add(-time.Hour), Reason: "lost"}}}
	cases := []struct {
		name      string
		policy    *Policy
		signers   []*Signer
		threshold int
		by        []int // keys that signed
		states    string
		want      error
	}{
		{"one", nil, []*Signer{a}, 0, []int{0}, "counted", nil},
		{"any one", nil, []*Signer{a, b}, 1, []int{1}, "absent counted", nil},
		{"two of two", nil, []*Signer{a, b}, 2, []int{0, 1}, "counted counted", nil},
		{"two of three", nil, []*Signer{a, b, c}, 2, []int{2, 0}, "counted absent counted", nil},
		{"one of two", nil, []*Signer{a, b}, 2, []int{0}, "counted absent", fault.ErrThreshold},
		{"one twice", nil, []*Signer{a, b}, 2, []int{0, 0, 0}, "counted absent", fault.ErrThreshold},
		{"none", nil, []*Signer{a, b}, 2, nil, "absent absent", fault.ErrUnsigned},
		{"a stranger", nil, []*Signer{a, b}, 2, []int{2}, "absent absent", fault.ErrBadSignature},
		{"one, and a stranger", nil, []*Signer{a, b}, 2, []int{0, 2}, "counted absent", fault.ErrThreshold},
		{"one key under two names", nil, []*Signer{a, again}, 2, []int{0}, "counted repeated", fault.ErrThreshold},
		{"one key under two names, twice", nil, []*Signer{a, again}, 2, []int{0, 0}, "counted repeated", fault.ErrThreshold},
		{"one key under two names, and another", nil, []*Signer{a, again, b}, 2, []int{0, 1}, "counted repeated counted", nil},
		{"a key and an identity with it", nil, []*Signer{a, alike}, 2, []int{0}, "counted repeated", fault.ErrThreshold},
		{"a key and an identity with it, twice", nil, []*Signer{a, alike}, 2, []int{0, 0}, "counted repeated", fault.ErrThreshold},
		{"one person with two names in certificates", nil, []*Signer{someone("x", "p", keyNo(t, 0, "")), someone("y", "p", keyNo(t, 1, ""))}, 2, []int{0, 1}, "counted repeated", fault.ErrThreshold},
		{"one who may be either", nil, []*Signer{pattern("any", keyNo(t, 0, ""), keyNo(t, 1, "")), a}, 2, []int{0, 1}, "counted counted", nil},
		{"one who may be either, the other way", nil, []*Signer{a, pattern("any", keyNo(t, 0, ""), keyNo(t, 1, ""))}, 2, []int{1, 0}, "counted counted", nil},
		{"one pattern, two people", nil, []*Signer{pattern("any", keyNo(t, 0, ""), keyNo(t, 1, "")), c}, 2, []int{1, 0}, "counted absent", fault.ErrThreshold},
		{"expired", nil, []*Signer{&late}, 1, []int{1}, "expired", fault.ErrKeyExpired},
		{"expired and absent", nil, []*Signer{&late}, 1, nil, "absent", fault.ErrUnsigned},
		{"not yet valid", nil, []*Signer{&early}, 1, []int{1}, "not-yet-valid", fault.ErrKeyExpired},
		{"one good, one expired", nil, []*Signer{a, &late}, 2, []int{0, 1}, "counted expired", fault.ErrKeyExpired},
		{"one good, one expired, one more needed", nil, []*Signer{a, &late, c}, 3, []int{0, 1}, "counted expired absent", fault.ErrThreshold},
		{"expired, and enough others", nil, []*Signer{a, &late, c}, 2, []int{0, 2, 1}, "counted expired counted", nil},
		{"revoked", revoked, []*Signer{b}, 1, []int{1}, "revoked", fault.ErrKeyRevoked},
		{"revoked and replaced", revoked, []*Signer{a}, 1, []int{1}, "absent", fault.ErrKeyRevoked},
		{"revoked, under another name", revoked, []*Signer{a, someone("ci", "ci", keyNo(t, 1, ""))}, 2, []int{0, 1}, "counted revoked", fault.ErrKeyRevoked},
		{"revoked, and enough others", revoked, []*Signer{a, b}, 1, []int{1, 0}, "counted revoked", nil},
		{"revoked and silent", revoked, []*Signer{a, b}, 2, []int{0}, "counted absent", fault.ErrThreshold},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			for i, k := range c.by {
				signNo(t, k, sign.Options{Annotations: map[string]string{"n": fmt.Sprint(i)}, Format: []signing.Format{signing.FormatBundle, signing.FormatLegacy}[i%2]}, st, subject)
			}
			p := c.policy
			if p == nil {
				p = &Policy{}
			}
			tally := p.Count(t.Context(), st, subject, signing.PredicateSign, Quorum{c.signers, c.threshold}, now)
			var states []string
			for _, s := range tally.Signers {
				states = append(states, string(s.State))
			}
			if got := strings.Join(states, " "); got != c.states || !errors.Is(tally.Err, c.want) {
				t.Errorf("Count = %s, %v, want %s, %v", got, tally.Err, c.states, c.want)
			}
			if tally.Holds() != (c.want == nil) || tally.Counted != strings.Count(c.states, "counted") || len(tally.Statements()) != tally.Counted {
				t.Errorf("tally = %+v", tally)
			}
		})
	}
}

// In cosign's older format people sign the same bytes: one who fits two names must not hide the other.
func TestCountOfTheSameBytes(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	for _, k := range []int{1, 0} { // the newest is read first
		signNo(t, k, sign.Options{Format: signing.FormatLegacy}, st, subject)
	}
	q := Quorum{[]*Signer{pattern("any", keyNo(t, 0, ""), keyNo(t, 1, "")), KeySigner(keyNo(t, 0, "a"))}, 2}
	if tally := (&Policy{}).Count(t.Context(), st, subject, signing.PredicateSign, q, now); tally.Err != nil {
		t.Errorf("Count = %v", tally.Err)
	}
}

// pattern is an identity that many fit.
func pattern(name string, keys ...signing.Key) *Signer {
	return &Signer{Name: name, Kind: SignerIdentity, about: name, at: func(time.Time) signing.Verifier { return crowd{name, keys} }}
}

type crowd struct {
	name string
	keys []signing.Key
}

func (c crowd) VerifierName() string { return c.name }

func (c crowd) Verify(ctx context.Context, e *signing.Evidence) (v signing.Verification, err error) {
	for _, k := range c.keys {
		if v, err = k.Verify(ctx, e); err == nil {
			return v, nil
		}
	}
	return v, err
}

const full = `
version: 7
expires: 2026-12-01T00:00:00Z
keys:
  - {name: a, file: k0.pub}
  - {name: b, file: k1.pub, notBefore: 2026-01-01T00:00:00Z, notAfter: 2027-01-01T00:00:00Z}
  - {name: c, file: k2.pub}
  - {name: pulse, file: k3.pub}
rules:
  - scope: registry.example/plant/**
    artifacts: [state, component]
    signers: [a, b]
    threshold: 2
    freshness: {signers: [pulse]}
    attestations:
      - {type: "https://slsa.dev/provenance/v1", signers: [c]}
  - {scope: registry.example/lab/**, artifacts: [state, component], allowUnsigned: true}
  - {scope: "**", reject: true}
revoked:
  - {key: KEY4, since: 2026-11-01T00:00:00Z, reason: laptop lost}
  - {digest: DIGEST, reason: recalled}
trust:
  repository: registry.example/plant/trust
  signers: [a, b, c]
  threshold: 2
`

func fullPolicy(t *testing.T, withdrawn digest.Digest) *Policy {
	t.Helper()
	return parsePolicy(t, strings.NewReplacer("KEY4", keyNo(t, 4, "").Fingerprint.String(), "DIGEST", withdrawn.String()).Replace(full))
}

func TestDecideInFull(t *testing.T) {
	const provenance = "https://slsa.dev/provenance/v1"
	st := signingtest.NewMemory()
	subject, withdrawn := st.Artifact(t, "hello"), st.Artifact(t, "withdrawn")
	p := fullPolicy(t, withdrawn.Digest)
	ask := func(kind string, now time.Time) *Decision {
		return p.Decide(t.Context(), VerifyRequest{Source: st, Kind: kind, Subject: subject, Now: now})
	}
	expect := func(what string, d *Decision, want error) {
		t.Helper()
		if !errors.Is(d.Err, want) || want == nil && d.Err != nil {
			t.Errorf("%s: Decide = %v, want %v", what, d.Err, want)
		}
	}
	expect("nothing", ask(KindState, now), fault.ErrUnsigned)
	signNo(t, 0, sign.Options{Time: now.Add(-time.Hour)}, st, subject)
	expect("one of two", ask(KindState, now), fault.ErrThreshold)
	signNo(t, 1, sign.Options{Format: signing.FormatLegacy}, st, subject)
	expect("without attestation", ask(KindState, now), fault.ErrNoAttestation)
	attestNo(t, 0, st, subject, provenance)
	expect("attested by another", ask(KindComponent, now), fault.ErrBadAttestation)
	attestNo(t, 2, st, subject, provenance)
	d := ask(KindState, now)
	expect("all", d, nil)
	if diff := cmp.Diff([]string{"a", "b"}, d.SignedBy); diff != "" {
		t.Errorf("SignedBy (-want +got):\n%s", diff)
	}
	if d.Rule.Path != "rules[0]" || !slices.Equal(d.Rule.Over, []string{"rules[2] (**)"}) || d.Rule.Says != "2 of a, b, attestation "+provenance+" by c, freshness by pulse" {
		t.Errorf("rule = %+v", d.Rule)
	}
	if got := d.Signatures.Signers[0].Signatures[0].Time; !got.Equal(now.Add(-time.Hour)) {
		t.Errorf("signed at %v", got)
	}
	expect("before b's time", ask(KindState, time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)), fault.ErrKeyExpired)
	expect("after b's time", ask(KindState, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)), fault.ErrKeyExpired)
	if d := ask(KindState, time.Date(2026, 12, 24, 0, 0, 0, 0, time.UTC)); d.Err != nil {
		t.Errorf("by an expired policy: %v", d.Err)
	}
	if got, want := p.Until(now), time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("Until = %v, want %v", got, want)
	}
	for _, k := range []int{0, 1, 2} {
		signNo(t, k, sign.Options{}, st, withdrawn)
	}
	expect("a revoked digest", p.Decide(t.Context(), VerifyRequest{Source: st, Kind: KindState, Subject: withdrawn, Now: now}), fault.ErrDigestRevoked)
	st.Repository = "registry.example/lab/state"
	expect("a revoked digest where all is allowed", p.Decide(t.Context(), VerifyRequest{Source: st, Kind: KindState, Subject: withdrawn, Now: now}), fault.ErrDigestRevoked)
	expect("anything else there", ask(KindState, now), nil)
	st.Repository = "other.example/state"
	expect("elsewhere", ask(KindState, now), fault.ErrRejected)
	expect("a component elsewhere, where rules speak about components", ask(KindComponent, now), fault.ErrRejected)
	if d := ask(KindImage, now); d.Err != nil {
		t.Errorf("an image, of which no rule speaks: %v", d.Err)
	}
}

// Where signatures are in another repository, that is where they count from.
func TestSignaturesElsewhere(t *testing.T) {
	p := parsePolicy(t, `
rules:
  - {scope: registry.example/plant/**, signatures: registry.example/signatures, keys: [{name: a, file: k0.pub}]}`)
	st, other := signingtest.NewMemory(), signingtest.NewMemory()
	other.Repository = "registry.example/signatures"
	subject := st.Artifact(t, "hello")
	signNo(t, 0, sign.Options{}, st, subject)
	q := VerifyRequest{Source: st, Kind: KindState, Subject: subject, Now: now}
	if d := p.Decide(t.Context(), q); !errors.Is(d.Err, fault.ErrUnsupported) {
		t.Errorf("without a way there: %v", d.Err)
	}
	q.Elsewhere = func(_ context.Context, repository string) (signing.Source, error) {
		if repository != other.Repository {
			return nil, fault.ErrNotFound
		}
		return other, nil
	}
	if d := p.Decide(t.Context(), q); !errors.Is(d.Err, fault.ErrUnsigned) {
		t.Errorf("signed in the wrong place: %v", d.Err)
	}
	for _, f := range []signing.Format{signing.FormatBundle, signing.FormatLegacy} {
		other.Listed, other.Tags = map[digest.Digest][]ocispecDescriptor{}, map[string]ocispecDescriptor{}
		signNo(t, 0, sign.Options{Format: f}, other, subject)
		if d := p.Decide(t.Context(), q); d.Err != nil || d.Signatures.Counted != 1 {
			t.Errorf("%s: %v", f, d.Err)
		}
	}
}

// Something unreadable that may be the missing signature is never a reason to call it missing.
func TestCountUnread(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	a, b := KeySigner(keyNo(t, 0, "a")), KeySigner(keyNo(t, 1, "b"))
	signNo(t, 0, sign.Options{}, st, subject)
	signNo(t, 1, sign.Options{}, st, subject)
	st.StripData(t, subject)
	hidden := st.Listed[subject.Digest][1].Digest.String()
	st.Fail = func(_, what string) error {
		if what == hidden {
			return fault.ErrTemporary
		}
		return nil
	}
	tally := (&Policy{}).Count(t.Context(), st, subject, signing.PredicateSign, Quorum{[]*Signer{a, b}, 2}, now)
	if !errors.Is(tally.Err, fault.ErrTemporary) || tally.Signers[1].State != StateUnread || tally.Unread == "" {
		t.Errorf("Count = %+v, %v", tally.Signers, tally.Err)
	}
	if tally := (&Policy{}).Count(t.Context(), st, subject, signing.PredicateSign, Quorum{[]*Signer{a, b}, 1}, now); tally.Err != nil {
		t.Errorf("Count of what suffices = %v", tally.Err)
	}
}

// An identity counts beside keys, by what its certificate says.
func TestIdentityCounts(t *testing.T) {
	const issuer, subject = "https://issuer.example", "https://ci.example/acme/app"
	sigstore := keylesstest.New(t)
	p, err := Parse("/etc/longshore/trust.yaml", []byte(`
trustedRoot: {file: own.json}
keys: [{name: a, file: k0.pub}]
identities:
  - {name: ci, issuer: `+issuer+`, subject: `+subject+`}
  - {name: any, issuer: `+issuer+`, subjectPattern: 'https://ci\.example/.+'}
rules:
  - {scope: registry.example/plant/**, signers: [a, ci], threshold: 2}
  - {scope: registry.example/same/**, signers: [any, ci], threshold: 2}
`), func(path string) ([]byte, error) {
		if path == "/etc/longshore/own.json" {
			return sigstore.Root(t), nil
		}
		return policyFiles(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	st := signingtest.NewMemory()
	d := st.Artifact(t, "hello")
	ask := func() *Decision {
		return p.Decide(t.Context(), VerifyRequest{Source: st, Kind: KindState, Subject: d, Now: now})
	}
	seal := func(issuer, subject string) {
		t.Helper()
		s, err := sign.NewKeylessSigner(sigstore.Keyless(t, issuer, subject, keylesstest.Flaws{}), nil, sign.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sign(t.Context(), st, d); err != nil {
			t.Fatal(err)
		}
	}
	signNo(t, 0, sign.Options{}, st, d)
	seal(issuer, "https://ci.example/somebody/else")
	if got := ask(); !errors.Is(got.Err, fault.ErrThreshold) {
		t.Errorf("signed by another identity: %v", got.Err)
	}
	seal(issuer, subject)
	got := ask()
	if got.Err != nil || !slices.Equal(got.SignedBy, []string{"a", "ci"}) || got.Signatures.Signers[1].Signatures[0].Identity != subject {
		t.Errorf("Decide = %v, %v", got.SignedBy, got.Err)
	}
	st.Repository = "registry.example/same/state"
	if got := ask(); got.Err != nil {
		t.Errorf("two people, one by a pattern: %v", got.Err)
	}
	st.Listed[d.Digest] = st.Listed[d.Digest][2:]
	seal(issuer, subject)
	if got := ask(); !errors.Is(got.Err, fault.ErrThreshold) || got.Signatures.Counted != 1 {
		t.Errorf("one person with two certificates under two names: %v", got.Err)
	}
}
