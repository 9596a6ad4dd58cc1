package signing_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/opencontainers/go-digest"

	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// Nothing that a fuzzer finds is a signature of this digest by the key, unless it is the very statement in a seed.
func FuzzBundle(f *testing.F) {
	key, signer := releaseKey(f), newSigner(f, sign.Options{Annotations: map[string]string{"generation": "42"}})
	other := digest.FromString("something else")
	f.Add(bundleOf(f, signer, other, sign.Statement{Type: PredicateSign}))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{}},"dsseEnvelope":{}}`))
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"certificate":{"rawBytes":"AAAA"}},"messageSignature":{}}`))
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle+json;version=0.1","verificationMaterial":{"x509CertificateChain":{}},"dsseEnvelope":{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"sig":""}]}}`))
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{},"tlogEntries":[{"logIndex":"-1","inclusionPromise":{},"inclusionProof":{}}]},"dsseEnvelope":{"payloadType":"application/vnd.in-toto+json","payload":"eyJzdWJqZWN0IjpbbnVsbF19","signatures":[null]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		st := signingtest.NewMemory()
		d := st.Artifact(t, "subject")
		st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, data)
		if got, err := Verify(context.Background(), st, d, []Verifier{key}); err == nil {
			t.Errorf("Verify beside %q = %+v", data, got)
		}
		e, said, err := OpenBundle(data, d.Digest)
		if err == nil && (len(e.Signed) == 0 || said == nil || e.Subject != d.Digest) {
			t.Errorf("OpenBundle(%q) = %+v, %+v", data, e, said)
		}
	})
}

func FuzzPayload(f *testing.F) {
	key := releaseKey(f)
	subject := digest.FromString("subject")
	f.Add([]byte(`{"critical":{"identity":{"docker-reference":"a/b"},"image":{"docker-manifest-digest":"`+subject.String()+`"},"type":"cosign container image signature"},"optional":null}`), "")
	f.Add([]byte(`{"critical":{"type":"cosign container image signature"},"optional":{"a":1}}`), "AAAA")
	f.Add([]byte(`null`), "%")
	f.Fuzz(func(t *testing.T, data []byte, b64 string) {
		e, said, err := OpenLegacy(data, map[string]string{AnnotationSignature: b64}, subject)
		if err != nil {
			return
		}
		if v, err := key.Verify(context.Background(), e); err == nil && said.Digest() == subject.String() {
			t.Errorf("Verify(%q, %q) = %+v", data, b64, v)
		}
	})
}

func FuzzPublicKey(f *testing.F) {
	private, public := pair()
	f.Add(public)
	f.Add(private)
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := ParsePublicKey("k", data)
		if err == nil && (!k.Usable() || k.Fingerprint.Validate() != nil || k.Algorithm == "") {
			t.Errorf("ParsePublicKey(%q) = %+v", data, k)
		}
	})
}

// What a referrer's manifest says may be anything.
func FuzzReferrer(f *testing.F) {
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","digest":"sha256:00","size":-1}]}`))
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","digest":"","size":1}]}`))
	f.Add([]byte(`[]`))
	key := releaseKey(f)
	f.Fuzz(func(t *testing.T, manifest []byte) {
		st := signingtest.NewMemory()
		subject := descriptorOf("text/plain", []byte("subject"))
		d := descriptorOf("text/plain", manifest)
		st.Content[d.Digest] = manifest
		st.Listed[subject.Digest] = append(st.Listed[subject.Digest], d)
		st.Tags[LegacyTag(subject.Digest)] = d
		if got, err := Verify(context.Background(), st, subject, []Verifier{key}); err == nil {
			t.Errorf("Verify beside %q = %+v", manifest, got)
		}
		_, err := newSigner(t, sign.Options{Format: FormatLegacy}).Sign(context.Background(), st, subject)
		if err == nil && !json.Valid(manifest) {
			t.Errorf("Sign appended to %q", manifest)
		}
	})
}
