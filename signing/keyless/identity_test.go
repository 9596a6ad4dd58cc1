package keyless_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

const (
	issuer  = "https://token.actions.githubusercontent.com"
	subject = "https://github.com/acme/plant/.github/workflows/release.yaml@refs/heads/main"
)

func pattern(t testing.TB, s string) keyless.Pattern {
	t.Helper()
	p, err := keyless.Exact(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func matching(t testing.TB, expr string) keyless.Pattern {
	t.Helper()
	p, err := keyless.Matching(expr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func parseRoot(t testing.TB, data []byte) *keyless.Root {
	t.Helper()
	r, err := keyless.ParseRoot(data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// newIdentity is the identity that the tests sign as.
func newIdentity(t testing.TB, root *keyless.Root) *keyless.Identity {
	t.Helper()
	i, err := keyless.NewIdentity(keyless.IdentityOptions{Name: "ci", Issuer: pattern(t, issuer), Subject: pattern(t, subject)}, root)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// A signature by an identity is found as any other, and says who made it, when, and what was checked.
func TestIdentitySignsAndIsFound(t *testing.T) {
	instance := keylesstest.New(t)
	for name, flaws := range map[string]keylesstest.Flaws{
		"log and timestamp": {}, "log alone": {NoStamp: true}, "log without time, timestamp": {NoTime: true},
	} {
		t.Run(name, func(t *testing.T) {
			identity := newIdentity(t, parseRoot(t, instance.Root(t)))
			m := signingtest.NewMemory()
			target := m.Artifact(t, "hello")
			signer, err := sign.NewKeylessSigner(instance.Keyless(t, issuer, subject, flaws), identity, sign.Options{
				Name: "ci", Annotations: map[string]string{"generation": "42"}, Once: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := signer.Sign(t.Context(), m, target); err != nil {
				t.Fatal(err)
			}
			again, err := signer.Sign(t.Context(), m, target)
			if err != nil || len(again) != 1 || len(m.Listed[target.Digest]) != 1 {
				t.Errorf("signing once more = %d signatures, %v; %d referrers, want what is there", len(again), err, len(m.Listed[target.Digest]))
			}
			got, err := signing.Verify(t.Context(), m, target, []signing.Verifier{identity})
			if err != nil {
				t.Fatal(err)
			}
			s := got[0]
			if len(got) != 1 || s.By != "ci" || s.Identity != subject || s.Issuer != issuer || s.Annotations["generation"] != "42" {
				t.Errorf("Verify = %+v", got)
			}
			if since := time.Since(s.Proven); since < -time.Minute || since > 5*time.Minute {
				t.Errorf("proven at %s, want about now", s.Proven)
			}
			if len(s.Checked) < 4 {
				t.Errorf("checked = %q", s.Checked)
			}
			other := m.Artifact(t, "other")
			m.Listed[other.Digest] = m.Listed[target.Digest]
			if _, err := signing.Verify(t.Context(), m, other, []signing.Verifier{identity}); !errors.Is(err, fault.ErrBadSignature) {
				t.Errorf("signature of another artifact: %v, want %v", err, fault.ErrBadSignature)
			}
		})
	}
}

// evidence is what signing hands over of a bundle.
func evidence(t testing.TB, bundle []byte) *signing.Evidence {
	t.Helper()
	e, err := readEvidence(bundle)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func readEvidence(bundle []byte) (*signing.Evidence, error) {
	var b protobundle.Bundle
	if err := protojson.Unmarshal(bundle, &b); err != nil {
		return nil, err
	}
	envelope, material := b.GetDsseEnvelope(), b.GetVerificationMaterial()
	certificates := [][]byte{material.GetCertificate().GetRawBytes()}
	if chain := material.GetX509CertificateChain().GetCertificates(); len(chain) > 0 {
		certificates[0] = chain[0].GetRawBytes()
	}
	return &signing.Evidence{
		Format: signing.FormatBundle, Subject: digest.FromString("hello"), Bundle: bundle,
		Signed:       dsse.PAE(envelope.GetPayloadType(), envelope.GetPayload()),
		Signature:    envelope.GetSignatures()[0].GetSig(),
		Certificates: certificates,
	}, nil
}

func statement(d digest.Digest) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		d.Encoded(), signing.PredicateSign)
}

func legacyPayload(d digest.Digest) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"registry.example/x"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, d)
}

// legacyEvidence is what signing hands over of a signature under cosign's tag.
func legacyEvidence(t testing.TB, payload []byte, annotations map[string]string) *signing.Evidence {
	t.Helper()
	sig, err := base64.StdEncoding.DecodeString(annotations["dev.cosignproject.cosign/signature"])
	if err != nil {
		t.Fatal(err)
	}
	return &signing.Evidence{
		Format: signing.FormatLegacy, Subject: digest.FromString("hello"), Signed: payload, Signature: sig, Annotations: annotations,
	}
}

// Each thing that is wrong is refused, in both formats, and the reason has a name.
func TestEveryReasonHasAName(t *testing.T) {
	type reason struct {
		flaws   keylesstest.Flaws
		without []keylesstest.Part
		issuer  string
		subject string
		unnamed bool // Unlogged
		want    error
		text    string
	}
	for name, c := range map[string]reason{
		"another issuer":         {issuer: "https://accounts.example", want: signing.ErrOtherSigner, text: "accounts.example"},
		"another subject":        {subject: "https://github.com/evil/plant", want: signing.ErrOtherSigner, text: "evil"},
		"longer subject":         {subject: subject + "-not", want: signing.ErrOtherSigner, text: "-not"},
		"after the certificate":  {flaws: keylesstest.Flaws{Late: time.Hour, NoStamp: true}, want: keyless.ErrOutOfTime, text: "certificate out of time"},
		"before the certificate": {flaws: keylesstest.Flaws{Late: -time.Hour, NoStamp: true}, want: keyless.ErrOutOfTime, text: "certificate out of time"},
		"no time at all":         {flaws: keylesstest.Flaws{NoTime: true, NoStamp: true}, want: keyless.ErrNoTime, text: "no trusted timestamp"},
		"no known clock":         {flaws: keylesstest.Flaws{NoTime: true}, without: []keylesstest.Part{keylesstest.Clocks}, want: keyless.ErrNoTime, text: "dated"},
		"no log entry":           {flaws: keylesstest.Flaws{NoLog: true}, want: keyless.ErrNotLogged, text: "in no transparency log"},
		"no SCT":                 {flaws: keylesstest.Flaws{NoSCT: true}, want: keyless.ErrNoSCT, text: "in no certificate log"},
		"newer certificate log":  {flaws: keylesstest.Flaws{OtherSCT: true}, want: keyless.ErrOldRoot, text: "trusted root dated"},
		"newer log":              {without: []keylesstest.Part{keylesstest.Logs}, want: keyless.ErrOldRoot, text: "trusted root dated"},
		"newer authority":        {without: []keylesstest.Part{keylesstest.Authorities}, want: keyless.ErrOldRoot, text: "trusted root dated"},
		"forged authority":       {flaws: keylesstest.Flaws{Foreign: true}, want: keyless.ErrOldRoot, text: "certificate authority"},
		"unlogged, no stamp":     {flaws: keylesstest.Flaws{NoStamp: true}, unnamed: true, want: keyless.ErrNoTime},
	} {
		t.Run(name, func(t *testing.T) {
			instance := keylesstest.New(t)
			identity, err := keyless.NewIdentity(keyless.IdentityOptions{
				Name: "ci", Issuer: pattern(t, issuer), Subject: pattern(t, subject), Unlogged: c.unnamed,
			}, parseRoot(t, instance.Root(t, c.without...)))
			if err != nil {
				t.Fatal(err)
			}
			as, by := subject, issuer
			if c.subject != "" {
				as = c.subject
			}
			if c.issuer != "" {
				by = c.issuer
			}
			found := []*signing.Evidence{evidence(t, instance.Bundle(t, by, as, statement(digest.FromString("hello")), c.flaws))}
			if !c.flaws.NoTime { // the older format has no entry without a time
				payload := legacyPayload(digest.FromString("hello"))
				found = append(found, legacyEvidence(t, payload, instance.Legacy(t, by, as, payload, c.flaws)))
			}
			for _, e := range found {
				v, err := identity.Verify(t.Context(), e)
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s: Verify = %+v, %v, want %v with %q", e.Format, v, err, c.want, c.text)
				}
				if c.want != signing.ErrOtherSigner && errors.Is(err, signing.ErrOtherSigner) {
					t.Errorf("%s: %v passes for somebody else's", e.Format, err)
				}
			}
		})
	}
}

func TestLegacySignatureByIdentity(t *testing.T) {
	instance := keylesstest.New(t)
	identity := newIdentity(t, parseRoot(t, instance.Root(t)))
	payload := legacyPayload(digest.FromString("hello"))
	for name, flaws := range map[string]keylesstest.Flaws{"log": {NoStamp: true}, "log and timestamp": {}} {
		t.Run(name, func(t *testing.T) {
			annotations := instance.Legacy(t, issuer, subject, payload, flaws)
			v, err := identity.Verify(t.Context(), legacyEvidence(t, payload, annotations))
			if err != nil || v.Identity != subject || v.Proven.IsZero() {
				t.Errorf("Verify = %+v, %v", v, err)
			}
			changed := legacyPayload(digest.FromString("other"))
			if _, err := identity.Verify(t.Context(), legacyEvidence(t, changed, annotations)); err == nil || errors.Is(err, signing.ErrOtherSigner) {
				t.Errorf("another payload: %v", err)
			}
		})
	}
}

// Without logs only who says so in so many words is content, and then only with a clock.
func TestUnloggedIdentity(t *testing.T) {
	instance := keylesstest.New(t)
	root := parseRoot(t, instance.Root(t, keylesstest.Logs, keylesstest.CertLogs))
	e := evidence(t, instance.Bundle(t, issuer, subject, statement(digest.FromString("hello")), keylesstest.Flaws{NoSCT: true, NoLog: true}))
	if _, err := newIdentity(t, root).Verify(t.Context(), e); !errors.Is(err, keyless.ErrNotLogged) {
		t.Errorf("logged identity: %v, want %v", err, keyless.ErrNotLogged)
	}
	unlogged, err := keyless.NewIdentity(keyless.IdentityOptions{
		Name: "private", Issuer: pattern(t, issuer), Subject: pattern(t, subject), Unlogged: true,
	}, root)
	if err != nil {
		t.Fatal(err)
	}
	v, err := unlogged.Verify(t.Context(), e)
	if err != nil || len(v.Checked) != 2 {
		t.Errorf("unlogged identity: %+v, %v", v, err)
	}
}

func TestIdentityPatterns(t *testing.T) {
	instance := keylesstest.New(t)
	root := parseRoot(t, instance.Root(t))
	e := evidence(t, instance.Bundle(t, issuer, subject, statement(digest.FromString("hello")), keylesstest.Flaws{}))
	for expr, want := range map[string]bool{
		`https://github\.com/acme/.+@refs/heads/main`: true,
		`https://github\.com/acme/.+@refs/heads/mai`:  false, // to the last byte
		`github\.com/acme/.+`:                         false, // from the first
		`x|https://github\.com/acme/plant/.+`:         true,
	} {
		i, err := keyless.NewIdentity(keyless.IdentityOptions{Name: "ci", Issuer: matching(t, `https://token\.actions\..+`), Subject: matching(t, expr)}, root)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Verify(t.Context(), e); (err == nil) != want {
			t.Errorf("%s: %v, want match %v", expr, err, want)
		}
	}
	for _, bad := range []string{``, `.*`, `a)|(b`, `(`, `a*`, strings.Repeat("a", 2000)} {
		if p, err := keyless.Matching(bad); err == nil {
			t.Errorf("Matching(%.20q) = %v, want an error", bad, p)
		}
	}
	var none keyless.Pattern
	if none.Match("") || none.Match("x") || !none.IsZero() {
		t.Error("the zero pattern matches something")
	}
	for name, o := range map[string]keyless.IdentityOptions{
		"no issuer": {Name: "x", Subject: pattern(t, subject)}, "no subject": {Name: "x", Issuer: pattern(t, issuer)},
	} {
		if _, err := keyless.NewIdentity(o, root); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, fault.ErrInvalid)
		}
	}
	if _, err := keyless.NewIdentity(keyless.IdentityOptions{Name: "x", Issuer: pattern(t, issuer), Subject: pattern(t, subject)}, nil); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
		t.Errorf("no root: %v, want %v with a hint", err, fault.ErrInvalid)
	}
}

// No byte that somebody signed can be another: of the certificate, the statement, the signature, the log entry, its proof,
// the timestamp.
func TestNoMutationVerifies(t *testing.T) {
	instance := keylesstest.New(t)
	identity := newIdentity(t, parseRoot(t, instance.Root(t)))
	for name, flaws := range map[string]keylesstest.Flaws{"log": {NoStamp: true}, "timestamp": {NoTime: true}} {
		good := instance.Bundle(t, issuer, subject, statement(digest.FromString("hello")), flaws)
		want, err := identity.Verify(t.Context(), evidence(t, good))
		if err != nil {
			t.Fatal(err)
		}
		var document any
		if err := json.Unmarshal(good, &document); err != nil {
			t.Fatal(err)
		}
		changed := 0
		mutate(document, "", func(path string) {
			data, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			changed++
			e, err := readEvidence(data)
			if err != nil {
				return // not even read
			}
			v, err := identity.Verify(t.Context(), e)
			// The envelope around a signed time has bytes that nobody signs; the time itself is not among them.
			if err == nil && !(strings.Contains(path, "/signedTimestamp ") && cmp.Equal(v, want)) {
				t.Errorf("%s: %s changed, and it verifies: %+v", name, path, v)
			}
		})
		if changed < 300 {
			t.Errorf("%s: only %d mutations", name, changed)
		}
	}
}

// mutate flips bits in every string of base64 in turn, and calls try with each change in place.
func mutate(node any, path string, try func(path string)) {
	each := func(value any, at string, set func(any)) {
		s, ok := value.(string)
		if !ok {
			mutate(value, at, try)
			return
		}
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil || len(raw) < 20 || strings.HasSuffix(at, "/keyId") && len(raw) != 32 {
			return
		}
		for n := 0; n < len(raw); n += 1 + len(raw)/100 {
			raw[n] ^= 1 << (n % 8)
			set(base64.StdEncoding.EncodeToString(raw))
			try(fmt.Sprintf("%s byte %d", at, n))
			raw[n] ^= 1 << (n % 8)
		}
		set(s)
	}
	switch v := node.(type) {
	case map[string]any:
		for k, value := range v {
			each(value, path+"/"+k, func(x any) { v[k] = x })
		}
	case []any:
		for i, value := range v {
			each(value, fmt.Sprintf("%s/%d", path, i), func(x any) { v[i] = x })
		}
	}
}

func FuzzVerify(f *testing.F) {
	instance := keylesstest.New(f)
	identity := newIdentity(f, parseRoot(f, instance.Root(f)))
	good := instance.Bundle(f, issuer, subject, statement(digest.FromString("hello")), keylesstest.Flaws{})
	f.Add(good)
	f.Add(instance.Bundle(f, issuer, subject, statement(digest.FromString("hello")), keylesstest.Flaws{NoLog: true}))
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`))
	at := identity
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, e := range []*signing.Evidence{
			{Format: signing.FormatBundle, Subject: digest.FromString("other"), Bundle: data},
			{Format: signing.FormatLegacy, Subject: digest.FromString("other"), Signed: data, Annotations: map[string]string{
				"dev.sigstore.cosign/certificate": string(data), "dev.sigstore.cosign/bundle": string(data),
			}},
		} {
			if v, err := at.Verify(t.Context(), e); err == nil {
				t.Fatalf("vouched for what nobody signed: %+v", v)
			}
		}
	})
}
