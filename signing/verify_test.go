package signing

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/sigstore/pkg/signature/dsse"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

var formats = []Format{FormatBundle, FormatLegacy, FormatBoth}

func TestSignAndVerify(t *testing.T) {
	at := time.Date(2026, 11, 19, 16, 2, 0, 0, time.UTC)
	claims := map[string]string{"generation": "42"}
	for _, f := range formats {
		t.Run(string(f), func(t *testing.T) {
			st := newMemory()
			subject := st.artifact(t, "hello")
			made := sign(t, newSigner(t, SignOptions{Name: "release", Format: f, Annotations: claims, Time: at}), st, subject)
			got, err := Verify(t.Context(), st, subject, []Key{releaseKey(t)})
			if err != nil {
				t.Fatal(err)
			}
			// With both, the bundle is found and the tag is not looked at.
			if diff := cmp.Diff(made[:1], got); diff != "" {
				t.Errorf("Verify found something else than Sign made (-made +found):\n%s", diff)
			}
			if got[0].Key != "release" || got[0].Algorithm != "ECDSA P-256" || !got[0].Time.Equal(at) || got[0].Annotations["generation"] != "42" {
				t.Errorf("Verify = %+v", got[0])
			}
			if f == FormatBoth {
				legacy := examine(t.Context(), st, subject, []Key{releaseKey(t)}, FormatLegacy)
				if diff := cmp.Diff(made[1:], legacy.good); diff != "" {
					t.Errorf("under the tag (-made +found):\n%s", diff)
				}
			}
		})
	}
}

// A signature counts for the digest in its signed claim and for no other, wherever it is put.
func TestClaimIsChecked(t *testing.T) {
	for _, f := range []Format{FormatBundle, FormatLegacy} {
		t.Run(string(f), func(t *testing.T) {
			st := newMemory()
			signed, unsigned := st.artifact(t, "A"), st.artifact(t, "B")
			sign(t, newSigner(t, SignOptions{Format: f}), st, signed)
			if _, err := Verify(t.Context(), st, signed, []Key{releaseKey(t)}); err != nil {
				t.Fatal(err)
			}
			st.referrers[unsigned.Digest] = st.referrers[signed.Digest]
			if f == FormatLegacy {
				st.tags[LegacyTag(unsigned.Digest)] = st.tags[LegacyTag(signed.Digest)]
			}
			_, err := Verify(t.Context(), st, unsigned, []Key{releaseKey(t)})
			if !errors.Is(err, fault.ErrBadSignature) {
				t.Errorf("Verify(B, signed with the signature of A) = %v, want %v", err, fault.ErrBadSignature)
			}
		})
	}
}

// attest makes a bundle as Sign does, with a statement of another type or of other content.
func attest(t *testing.T, s *Signer, d digest.Digest, predicate string) []byte {
	t.Helper()
	payload := fmt.Appendf(nil, `{"_type":%q,"subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		inTotoStatement, d.Encoded(), predicate)
	envelope, err := dsse.WrapSigner(s.sv, inTotoPayload).SignMessage(bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := s.sv.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	data, err := cbundle.MakeNewBundle(pub, nil, payload, envelope, s.public, nil)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// What the key said about the digest in another matter is no signature, be it a bundle or a payload.
func TestOnlyTheSignPredicateCounts(t *testing.T) {
	s := newSigner(t, SignOptions{})
	t.Run("bundle", func(t *testing.T) {
		st := newMemory()
		subject := st.artifact(t, "hello")
		st.attach(t, subject, MediaTypeBundle, MediaTypeBundle, attest(t, s, subject.Digest, "https://example.com/scan-result/FAILED/v1"))
		_, err := Verify(t.Context(), st, subject, []Key{releaseKey(t)})
		if !errors.Is(err, fault.ErrUnsigned) {
			t.Errorf("Verify(attested) = %v, want %v", err, fault.ErrUnsigned)
		}
		st.attach(t, subject, MediaTypeBundle, MediaTypeBundle, attest(t, s, subject.Digest, PredicateSign))
		if _, err := Verify(t.Context(), st, subject, []Key{releaseKey(t)}); err != nil {
			t.Errorf("Verify(attested and signed) = %v", err)
		}
	})
	t.Run("payload", func(t *testing.T) {
		st := newMemory()
		subject := st.artifact(t, "hello")
		payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":"scan failed"},"optional":null}`, subject.Digest)
		putLegacy(t, st, s, subject, payload)
		_, err := Verify(t.Context(), st, subject, []Key{releaseKey(t)})
		if !errors.Is(err, fault.ErrUnsigned) {
			t.Errorf("Verify(other payload) = %v, want %v", err, fault.ErrUnsigned)
		}
	})
}

// putLegacy signs any payload and puts it under the subject's tag.
func putLegacy(t *testing.T, st *memory, s *Signer, subject ocispec.Descriptor, payload []byte) {
	t.Helper()
	sig, err := s.sv.SignMessage(bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	layer := descriptorOf(mediaTypeSimpleSigning, payload)
	layer.Annotations = map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(sig)}
	data, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{layer}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		st.PushBlob(t.Context(), layer, payload),
		st.PushManifest(t.Context(), descriptorOf(ocispec.MediaTypeImageManifest, data), data, LegacyTag(subject.Digest)),
	); err != nil {
		t.Fatal(err)
	}
}

// Whatever cannot be read is temporary, or what the store called it, and never passes for unsigned.
func TestUnreadableIsNotUnsigned(t *testing.T) {
	unavailable := fmt.Errorf("answered 503: %w", fault.ErrTemporary)
	cases := []struct {
		name   string
		format Format
		op     string // the operation that fails
		err    error
		want   error
	}{
		{"the list of referrers", FormatBundle, "referrers", unavailable, fault.ErrTemporary},
		{"a referrer's manifest", FormatBundle, "manifest", unavailable, fault.ErrTemporary},
		{"a referrer that is listed and gone", FormatBundle, "manifest", fault.ErrNotFound, fault.ErrTemporary},
		{"a bundle", FormatBundle, "blob", unavailable, fault.ErrTemporary},
		{"a bundle that is gone", FormatBundle, "blob", fault.ErrNotFound, fault.ErrTemporary},
		{"an error without a name", FormatBundle, "blob", errors.New("connection reset"), fault.ErrTemporary},
		{"no right to read", FormatBundle, "manifest", fault.ErrDenied, fault.ErrDenied},
		{"other bytes", FormatBundle, "blob", fault.ErrDigestMismatch, fault.ErrDigestMismatch},
		{"the signature tag", FormatLegacy, "resolve", unavailable, fault.ErrTemporary},
		{"the signature manifest", FormatLegacy, "manifest", unavailable, fault.ErrTemporary},
		{"the payload", FormatLegacy, "blob", unavailable, fault.ErrTemporary},
	}
	allow := &Policy{Rules: []Rule{{Scope: everywhere, Keys: []Key{releaseKey(t)}, AllowUnsigned: true}}}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			st := newMemory()
			subject := st.artifact(t, "hello")
			sign(t, newSigner(t, SignOptions{Format: c.format}), st, subject)
			st.fail = func(op, _ string) error {
				if op == c.op {
					return c.err
				}
				return nil
			}
			_, err := Verify(t.Context(), st, subject, []Key{releaseKey(t)})
			if !errors.Is(err, c.want) || errors.Is(err, fault.ErrUnsigned) || errors.Is(err, fault.ErrNotFound) {
				t.Errorf("Verify = %v, want %v", err, c.want)
			}
			// Not even a policy that lets unsigned artifacts pass may take it for unsigned.
			if _, insecure, err := allow.Verify(t.Context(), st, KindState, subject); !errors.Is(err, c.want) || insecure {
				t.Errorf("Policy.Verify = insecure %v, %v, want %v", insecure, err, c.want)
			}
			st.fail = nil
			if _, err := Verify(t.Context(), st, subject, []Key{releaseKey(t)}); err != nil {
				t.Errorf("Verify after the fault = %v", err)
			}
		})
	}
}

func TestVerifyRefuses(t *testing.T) {
	good := func(t *testing.T, s *Signer, d digest.Digest) []byte {
		data, err := s.bundle(d)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	cases := []struct {
		name string
		set  func(t *testing.T, st *memory, subject ocispec.Descriptor)
		want error // nil: accepted
	}{
		{"nothing", func(*testing.T, *memory, ocispec.Descriptor) {}, fault.ErrUnsigned},
		{"another key", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			sign(t, otherSigner(t, SignOptions{}), st, d)
		}, fault.ErrBadSignature},
		{"another key, legacy", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			sign(t, otherSigner(t, SignOptions{Format: FormatLegacy}), st, d)
		}, fault.ErrBadSignature},
		{"another key beside the right one", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			sign(t, otherSigner(t, SignOptions{}), st, d)
			sign(t, newSigner(t, SignOptions{}), st, d)
		}, nil},
		{"another key's bundle beside the right key's tag", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			sign(t, otherSigner(t, SignOptions{}), st, d)
			sign(t, newSigner(t, SignOptions{Format: FormatLegacy}), st, d)
		}, nil},
		{"broken bundle of the key", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, MediaTypeBundle, MediaTypeBundle, forge(t, good(t, newSigner(t, SignOptions{}), d.Digest)))
		}, fault.ErrBadSignature},
		{"broken bundle of the key beside a good tag", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, MediaTypeBundle, MediaTypeBundle, forge(t, good(t, newSigner(t, SignOptions{}), d.Digest)))
			sign(t, newSigner(t, SignOptions{Format: FormatLegacy}), st, d)
		}, fault.ErrBadSignature},
		{"broken bundle beside a good one", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, MediaTypeBundle, MediaTypeBundle, forge(t, good(t, newSigner(t, SignOptions{}), d.Digest)))
			sign(t, newSigner(t, SignOptions{}), st, d)
		}, nil},
		{"no bundle where one should be", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, MediaTypeBundle, MediaTypeBundle, []byte("{}"))
		}, fault.ErrBadSignature},
		{"empty bundle", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, MediaTypeBundle, MediaTypeBundle, nil)
		}, fault.ErrBadSignature},
		{"bundle of 2 MiB", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, MediaTypeBundle, MediaTypeBundle, bytes.Repeat([]byte(" "), 2<<20))
		}, fault.ErrBadSignature},
		{"an SBOM", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, "application/spdx+json", "application/spdx+json", []byte("{}"))
		}, fault.ErrUnsigned},
		{"an SBOM and the signature", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, "application/spdx+json", "application/spdx+json", []byte("{}"))
			sign(t, newSigner(t, SignOptions{}), st, d)
		}, nil},
		{"the registry mistakes the type", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			st.attach(t, d, ocispec.MediaTypeEmptyJSON, MediaTypeBundle, good(t, newSigner(t, SignOptions{}), d.Digest))
			st.referrers[d.Digest][0].ArtifactType = "application/spdx+json"
		}, nil},
		{"more referrers than are looked at", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			for i := range maxReferrers + 1 {
				st.attach(t, d, "text/plain", "text/plain", fmt.Append(nil, i))
			}
		}, fault.ErrTooLarge},
		{"the signature behind many others", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			for i := range maxReferrers + 1 {
				st.attach(t, d, "text/plain", "text/plain", fmt.Append(nil, i))
			}
			sign(t, newSigner(t, SignOptions{}), st, d)
		}, nil},
		{"the store hands out other bytes", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			sign(t, newSigner(t, SignOptions{}), st, d)
			st.corrupt = func(_ digest.Digest, data []byte) []byte { data[len(data)/2]++; return data }
		}, fault.ErrDigestMismatch},
		{"legacy payload of 1 MiB", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			putLegacy(t, st, newSigner(t, SignOptions{}), d, bytes.Repeat([]byte(" "), 1<<20))
		}, fault.ErrBadSignature},
		{"legacy payload that is no JSON", func(t *testing.T, st *memory, d ocispec.Descriptor) {
			putLegacy(t, st, newSigner(t, SignOptions{}), d, []byte("signed, sealed"))
		}, fault.ErrBadSignature},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			st := newMemory()
			subject := st.artifact(t, "hello")
			c.set(t, st, subject)
			_, err := Verify(t.Context(), st, subject, []Key{releaseKey(t)})
			if !errors.Is(err, c.want) {
				t.Errorf("Verify = %v, want %v", err, c.want)
			}
		})
	}
}

// forge changes the signature in a bundle, so that it is one of the same form.
func forge(t *testing.T, data []byte) []byte {
	t.Helper()
	var b map[string]any
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	sig := b["dsseEnvelope"].(map[string]any)["signatures"].([]any)[0].(map[string]any)
	raw, err := base64.StdEncoding.DecodeString(sig["sig"].(string))
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] ^= 1
	sig["sig"] = base64.StdEncoding.EncodeToString(raw)
	forged, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return forged
}

func TestVerifyAsksForSensibleThings(t *testing.T) {
	st := newMemory()
	subject := st.artifact(t, "hello")
	if _, err := Verify(t.Context(), st, subject, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Verify without keys = %v", err)
	}
	for _, d := range []string{"", "sha256:short", "sha512:" + strings.Repeat("0", 128)} {
		if _, err := Verify(t.Context(), st, ocispec.Descriptor{Digest: digest.Digest(d)}, []Key{releaseKey(t)}); err == nil {
			t.Errorf("Verify(%q) = nil", d)
		}
		if _, err := newSigner(t, SignOptions{}).Sign(t.Context(), st, ocispec.Descriptor{Digest: digest.Digest(d)}); err == nil {
			t.Errorf("Sign(%q) = nil", d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	st.fail = func(string, string) error { return ctx.Err() }
	if _, err := Verify(ctx, st, subject, []Key{releaseKey(t)}); !errors.Is(err, context.Canceled) || fault.Retryable(err) {
		t.Errorf("Verify after cancel = %v", err)
	}
}
