package signing_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// mutated calls visit with every single-bit mutation of data, and with data cut short and made longer at every place.
func mutated(data []byte, visit func([]byte)) {
	for i := range data {
		for bit := range 8 {
			m := bytes.Clone(data)
			m[i] ^= 1 << bit
			visit(m)
		}
		visit(data[:i])
		visit(append(bytes.Clone(data[:i]), data[i+1:]...))
		visit(append(append(bytes.Clone(data[:i]), data[i]), data[i:]...))
	}
}

// Property: no mutation of what was signed, or of the signature, is vouched for.
func TestNoMutationOfSignedBytesVerifies(t *testing.T) {
	key := releaseKey(t)
	subject := digest.FromString("subject")
	bundle := bundleOf(t, newSigner(t, sign.Options{Annotations: map[string]string{"generation": "42"}}), subject, sign.Statement{Type: PredicateSign})
	st := signingtest.NewMemory()
	d := st.Artifact(t, "hello")
	signed(t, newSigner(t, sign.Options{Format: FormatLegacy}), st, d)
	payload, annotations := legacyOf(t, st, d)
	evidence, _, err := OpenBundle(bundle, subject)
	if err != nil {
		t.Fatal(err)
	}
	older, _, err := OpenLegacy(payload, annotations, d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]*Evidence{"bundle": evidence, "payload": older} {
		if _, err := key.Verify(t.Context(), good); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		refused := func(what string, e Evidence) {
			n++
			if _, err := key.Verify(t.Context(), &e); err == nil {
				t.Errorf("%s: %s %q by %x is vouched for", name, what, e.Signed, e.Signature)
			}
		}
		mutated(good.Signed, func(m []byte) {
			if !bytes.Equal(m, good.Signed) {
				e := *good
				e.Signed = m
				refused("signed bytes", e)
			}
		})
		mutated(good.Signature, func(m []byte) {
			if !bytes.Equal(m, good.Signature) {
				e := *good
				e.Signature = m
				refused("signature", e)
			}
		})
		t.Logf("%s: %d mutations", name, n)
	}
}

// legacyOf reads the one signature under the tag of d.
func legacyOf(t testing.TB, st *signingtest.Memory, d ocispec.Descriptor) ([]byte, map[string]string) {
	t.Helper()
	_, m, err := ReadTagged(t.Context(), st, LegacyTag(d.Digest))
	if err != nil || m == nil || len(m.Layers) != 1 {
		t.Fatalf("tag of %s: %+v, %v", d.Digest, m, err)
	}
	return st.Content[m.Layers[0].Digest], m.Layers[0].Annotations
}

// Property: whatever is done to the bundle as a file, if it is still good it says the very same, by the same signature.
func TestNoMutationOfABundleSaysSomethingElse(t *testing.T) {
	key := releaseKey(t)
	subject := digest.FromString("subject")
	bundle := bundleOf(t, newSigner(t, sign.Options{Annotations: map[string]string{"generation": "42"}}), subject, sign.Statement{Type: PredicateSign})
	good, n := 0, 0
	mutated(bundle, func(m []byte) {
		n++
		if same(t, key, subject, bundle, m) {
			good++
		}
	})
	t.Logf("%d mutations, %d of them change nothing that is signed", n, good)
	for i := range len(subject.Encoded()) {
		hex := []byte(subject.Encoded())
		hex[i] ^= 1 // one digit to another
		other := digest.NewDigestFromEncoded(digest.SHA256, string(hex))
		if other.Validate() != nil {
			continue
		}
		_, said, err := OpenBundle(bundle, other)
		if err != nil {
			t.Fatal(err)
		}
		if _, about := said.About(other); about {
			t.Errorf("a statement about %s is about %s", subject, other)
		}
	}
}

// same holds a bundle against the key, and reports whether it is good. One that is good must say what the seed says.
func same(t testing.TB, key Key, subject digest.Digest, seed, data []byte) bool {
	t.Helper()
	e, said, err := OpenBundle(data, subject)
	if err != nil {
		return false
	}
	claims, about := said.About(subject)
	if !about || said.PredicateType() != PredicateSign {
		return false
	}
	if _, err := key.Verify(context.Background(), e); err != nil {
		return false
	}
	want, wantSaid, err := OpenBundle(seed, subject)
	if err != nil {
		t.Fatal(err)
	}
	wantClaims, _ := wantSaid.About(subject)
	a, _ := json.Marshal(claims)
	b, _ := json.Marshal(wantClaims)
	if !bytes.Equal(e.Signed, want.Signed) || !bytes.Equal(e.Signature, want.Signature) || !bytes.Equal(a, b) {
		t.Errorf("%q is good, and says something else than %q", data, seed)
	}
	return true
}

// FuzzMutation begins with a good bundle.
func FuzzMutation(f *testing.F) {
	key := releaseKey(f)
	subject := digest.FromString("subject")
	seed := bundleOf(f, newSigner(f, sign.Options{Annotations: map[string]string{"generation": "42"}}), subject, sign.Statement{Type: PredicateSign})
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) { same(t, key, subject, seed, data) })
}

// FuzzStatement: what is read of a statement is in it under that very name.
func FuzzStatement(f *testing.F) {
	d := digest.FromString("subject")
	for _, said := range []sign.Statement{{Type: PredicateSign}, {Type: "x", Predicate: []byte(`{"a":[1,"b"]}`), Annotations: map[string]string{"tag": "t"}}} {
		var b struct {
			Envelope dsse.Envelope `json:"dsseEnvelope"`
		}
		if err := json.Unmarshal(bundleOf(f, newSigner(f, sign.Options{}), d, said), &b); err != nil {
			f.Fatal(err)
		}
		data, err := b.Envelope.DecodeB64Payload()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v0.1","subject":[{"name":"x","digest":{"sha256":"00","sha512":"11"}}],"predicateType":"x","predicate":null}`))
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","PredicateType":"https://sigstore.dev/cosign/sign/v1","predicateType":"x","subject":[]}`))
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","predicateType":"x","predicateType":"https://sigstore.dev/cosign/sign/v1","subject":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := OpenStatement(data)
		if err != nil {
			return
		}
		var names map[string]json.RawMessage
		if err := json.Unmarshal(data, &names); err != nil {
			t.Fatalf("%q was read, and is no JSON: %v", data, err)
		}
		var kind string
		if err := json.Unmarshal(names["predicateType"], &kind); err != nil || kind != p.PredicateType() {
			t.Errorf("%q: predicate type %q, want %q", data, p.PredicateType(), kind)
		}
	})
}

func TestStatementIsReadExactly(t *testing.T) {
	d := digest.FromString("subject")
	subject := `"subject":[{"digest":{"sha256":"` + d.Encoded() + `"}}]`
	for _, c := range []struct{ name, text string }{
		{"member twice", `{"_type":"https://in-toto.io/Statement/v1","predicateType":"x","predicateType":"` + PredicateSign + `",` + subject + `}`},
		{"member in another case", `{"_type":"https://in-toto.io/Statement/v1","PredicateType":"` + PredicateSign + `",` + subject + `}`},
		{"subject in another case", `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + PredicateSign + `","Subject":[]}`},
		{"digest in another case", `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + PredicateSign + `","subject":[{"Digest":{"sha256":"` + d.Encoded() + `"}}]}`},
		{"another type", `{"_type":"https://example.com/Statement/v1","predicateType":"` + PredicateSign + `",` + subject + `}`},
		{"something after", `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + PredicateSign + `",` + subject + `}{}`},
		{"list", `[]`},
		{"nothing", ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			if p, err := OpenStatement([]byte(c.text)); err == nil {
				if _, about := p.About(d); about {
					t.Errorf("OpenStatement(%s) = %+v", c.text, p)
				}
			}
		})
	}
}
