package signing_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

var formats = []Format{FormatBundle, FormatLegacy, FormatBoth}

func TestSignAndVerify(t *testing.T) {
	at := time.Date(2026, 11, 19, 16, 2, 0, 0, time.UTC)
	claims := map[string]string{"generation": "42"}
	for _, f := range formats {
		t.Run(string(f), func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			made := signed(t, newSigner(t, sign.Options{Name: "release", Format: f, Annotations: claims, Time: at}), st, subject)
			got, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
			if err != nil {
				t.Fatal(err)
			}
			// With both, the bundle is found and the tag is not looked at.
			if diff := cmp.Diff(made[:1], got); diff != "" {
				t.Errorf("Verify found something else than Sign made (-made +found):\n%s", diff)
			}
			if got[0].By != "release" || got[0].Algorithm != "ECDSA P-256" || !got[0].Time.Equal(at) || got[0].Annotations["generation"] != "42" {
				t.Errorf("Verify = %+v", got[0])
			}
			if f == FormatBoth {
				legacy, err := Examine(t.Context(), st, subject, Query{PredicateType: PredicateSign, Verifiers: []Verifier{releaseKey(t)}, Format: FormatLegacy})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(made[1:], legacy.Good); diff != "" {
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
			st := signingtest.NewMemory()
			original, unsigned := st.Artifact(t, "A"), st.Artifact(t, "B")
			signed(t, newSigner(t, sign.Options{Format: f}), st, original)
			if _, err := Verify(t.Context(), st, original, []Verifier{releaseKey(t)}); err != nil {
				t.Fatal(err)
			}
			st.Listed[unsigned.Digest] = st.Listed[original.Digest]
			if f == FormatLegacy {
				st.Tags[LegacyTag(unsigned.Digest)] = st.Tags[LegacyTag(original.Digest)]
			}
			_, err := Verify(t.Context(), st, unsigned, []Verifier{releaseKey(t)})
			if !errors.Is(err, fault.ErrBadSignature) {
				t.Errorf("Verify(B, signed with the signature of A) = %v, want %v", err, fault.ErrBadSignature)
			}
		})
	}
}

// attest makes a bundle as Sign does, with a statement of another type.
func attest(t *testing.T, s *sign.Signer, d digest.Digest, predicate string) []byte {
	t.Helper()
	return bundleOf(t, s, d, sign.Statement{Type: predicate})
}

// What the key said about the digest in another matter is no signature, be it a bundle or a payload.
func TestOnlyTheSignPredicateCounts(t *testing.T) {
	s := newSigner(t, sign.Options{})
	t.Run("bundle", func(t *testing.T) {
		st := signingtest.NewMemory()
		subject := st.Artifact(t, "hello")
		st.Attach(t, subject, MediaTypeBundle, MediaTypeBundle, attest(t, s, subject.Digest, "https://example.com/scan-result/FAILED/v1"))
		_, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
		if !errors.Is(err, fault.ErrUnsigned) {
			t.Errorf("Verify(attested) = %v, want %v", err, fault.ErrUnsigned)
		}
		st.Attach(t, subject, MediaTypeBundle, MediaTypeBundle, attest(t, s, subject.Digest, PredicateSign))
		if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); err != nil {
			t.Errorf("Verify(attested and signed) = %v", err)
		}
	})
	t.Run("payload", func(t *testing.T) {
		st := signingtest.NewMemory()
		subject := st.Artifact(t, "hello")
		payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":"scan failed"},"optional":null}`, subject.Digest)
		putLegacy(t, st, s, subject, payload)
		_, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
		if !errors.Is(err, fault.ErrUnsigned) {
			t.Errorf("Verify(other payload) = %v, want %v", err, fault.ErrUnsigned)
		}
	})
}

// putLegacy signs any payload and puts it under the subject's tag.
func putLegacy(t *testing.T, st *signingtest.Memory, s *sign.Signer, subject ocispec.Descriptor, payload []byte) {
	t.Helper()
	sig, err := signingtest.Unlocked().SignMessage(bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	layer := descriptorOf(MediaTypeSimpleSigning, payload)
	layer.Annotations = map[string]string{AnnotationSignature: base64.StdEncoding.EncodeToString(sig)}
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
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			signed(t, newSigner(t, sign.Options{Format: c.format}), st, subject)
			st.StripData(t, subject)
			st.Fail = func(op, _ string) error {
				if op == c.op {
					return c.err
				}
				return nil
			}
			_, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
			if !errors.Is(err, c.want) || errors.Is(err, fault.ErrUnsigned) || errors.Is(err, fault.ErrNotFound) {
				t.Errorf("Verify = %v, want %v", err, c.want)
			}
			st.Fail = nil
			if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); err != nil {
				t.Errorf("Verify after the fault = %v", err)
			}
		})
	}
}

// TestBundleInItsDescriptor: a bundle that the descriptor of its layer carries is not fetched; one that is not what the descriptor names
// does not count.
func TestBundleInItsDescriptor(t *testing.T) {
	for name, c := range map[string]struct {
		data  func(bundle []byte) []byte
		blobs int // that are fetched
	}{
		"with data":    {slices.Clone[[]byte], 0},
		"without data": {func([]byte) []byte { return nil }, 1},
		"other data":   {func(b []byte) []byte { return append([]byte("x"), b[1:]...) }, 1},
		"longer data":  {func(b []byte) []byte { return append(slices.Clone(b), ' ') }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			signed(t, newSigner(t, sign.Options{Format: FormatBundle}), st, subject)
			st.EditReferrers(t, subject, func(r *ocispec.Manifest) {
				delete(r.Annotations, AnnotationBundle)
				r.Layers[0].Data = c.data(st.Content[r.Layers[0].Digest])
			})
			clear(st.Asked)
			if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); err != nil || st.Asked["blob"] != c.blobs {
				t.Errorf("Verify = %v with %d blobs, want %d", err, st.Asked["blob"], c.blobs)
			}
		})
	}
}

// TestBundleInAnAnnotation: a small bundle is in the list of referrers, and needs no request of its own. An annotation can only help: whatever a
// registry makes of it, the signature is found, and said once what is wrong with it.
func TestBundleInAnAnnotation(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(t *testing.T, list map[string]string, subject digest.Digest) // of the entry in the list
		reads int                                                               // of manifests; a blob never
	}{
		"as it is written": {func(*testing.T, map[string]string, digest.Digest) {}, 0},
		"not shown":        {func(_ *testing.T, list map[string]string, _ digest.Digest) { clear(list) }, 1},
		"without a type": {func(_ *testing.T, list map[string]string, _ digest.Digest) {
			delete(list, AnnotationPredicateType)
		}, 0},
		"cut": {func(_ *testing.T, list map[string]string, _ digest.Digest) {
			list[AnnotationBundle] = list[AnnotationBundle][:255]
		}, 1},
		"empty": {func(_ *testing.T, list map[string]string, _ digest.Digest) { list[AnnotationBundle] = "" }, 1},
		"too long": {func(_ *testing.T, list map[string]string, _ digest.Digest) {
			list[AnnotationBundle] += strings.Repeat(" ", MaxAnnotatedBundle)
		}, 1},
		"forged": {func(t *testing.T, list map[string]string, _ digest.Digest) {
			list[AnnotationBundle] = string(forge(t, []byte(list[AnnotationBundle])))
		}, 1},
		"of another signer": {func(t *testing.T, list map[string]string, subject digest.Digest) {
			list[AnnotationBundle] = string(bundleOf(t, otherSigner(t, sign.Options{}), subject, sign.Statement{Type: PredicateSign}))
		}, 1},
		"about another artifact": {func(t *testing.T, list map[string]string, _ digest.Digest) {
			list[AnnotationBundle] = string(bundleOf(t, newSigner(t, sign.Options{}), digest.FromString("another"), sign.Statement{Type: PredicateSign}))
		}, 1},
		"another statement": {func(t *testing.T, list map[string]string, subject digest.Digest) {
			list[AnnotationBundle] = string(attest(t, newSigner(t, sign.Options{}), subject, "https://example.com/scan-result/FAILED/v1"))
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			made := signed(t, newSigner(t, sign.Options{Name: "release", Format: FormatBundle}), st, subject)
			entry := &st.Listed[subject.Digest][0]
			entry.Annotations = maps.Clone(entry.Annotations)
			c.edit(t, entry.Annotations, subject.Digest)
			clear(st.Asked)
			e, err := Examine(t.Context(), st, subject, Query{PredicateType: PredicateSign, Verifiers: []Verifier{releaseKey(t)}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(made, e.Good); diff != "" || len(e.Bad)+len(e.Other)+len(e.Beside) > 0 || e.Unread != nil {
				t.Errorf("good (-made +found):\n%s\nbad %v, other %v, beside %v, unread %v", diff, e.Bad, e.Other, e.Beside, e.Unread)
			}
			if st.Asked["manifest"] != c.reads || st.Asked["blob"] != 0 {
				t.Errorf("%d manifests and %d blobs, want %d and none", st.Asked["manifest"], st.Asked["blob"], c.reads)
			}
			// What another key says of it is told once.
			stranger, err := Examine(t.Context(), st, subject, Query{PredicateType: PredicateSign, Verifiers: Verifiers(otherSigner(t, sign.Options{}).Key())})
			if err != nil {
				t.Fatal(err)
			}
			if name != "of another signer" && (len(stranger.Good) > 0 || len(stranger.Other) != 1 || len(stranger.Bad)+len(stranger.Beside) > 0) {
				t.Errorf("for another key: good %v, other %v, bad %v, beside %v", stranger.Good, stranger.Other, stranger.Bad, stranger.Beside)
			}
		})
	}
}

// mirrored is a repository with lists of referrers from mirrors before its own.
type mirrored struct {
	*signingtest.Memory
	mirrors [][]ocispec.Descriptor
}

func (m mirrored) EachReferrers(ctx context.Context, subject ocispec.Descriptor, enough func([]ocispec.Descriptor) bool) error {
	for _, list := range m.mirrors {
		if enough(list) {
			return nil
		}
	}
	list, err := m.Referrers(ctx, subject)
	if err == nil {
		enough(list)
	}
	return err
}

func (m mirrored) EachResolve(ctx context.Context, tag string, enough func(ocispec.Descriptor) bool) error {
	d, err := m.Resolve(ctx, tag)
	if err == nil {
		enough(d)
	}
	return err
}

// A mirror that shows one signature in the place of another does not hide that one in the registry itself.
func TestMirrorSwapsAnnotations(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	other := otherSigner(t, sign.Options{Name: "other"})
	signed(t, newSigner(t, sign.Options{Name: "release"}), st, subject)
	signed(t, other, st, subject)
	lie := slices.Clone(st.Listed[subject.Digest])
	lie[1].Annotations = lie[0].Annotations
	verifiers := append(Verifiers(other.Key()), releaseKey(t))
	for name, c := range map[string]struct {
		mirrors [][]ocispec.Descriptor
		good    int
	}{
		"one that lies":      {[][]ocispec.Descriptor{lie}, 3},
		"one that is honest": {[][]ocispec.Descriptor{st.Listed[subject.Digest]}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			clear(st.Asked)
			e, err := Examine(t.Context(), mirrored{st, c.mirrors}, subject, Query{
				PredicateType: PredicateSign, Verifiers: verifiers, Enough: func([]Signature) bool { return false },
			})
			if err != nil {
				t.Fatal(err)
			}
			by := map[string]bool{}
			for _, s := range e.Good {
				by[s.By] = true
			}
			if len(by) != 2 || len(e.Good) != c.good || e.Unread != nil || len(e.Bad)+len(e.Other) > 0 {
				t.Errorf("good %+v, unread %v, bad %v, other %v; want both signers, %d signatures", e.Good, e.Unread, e.Bad, e.Other, c.good)
			}
			if n := st.Asked["manifest"] + st.Asked["blob"]; n > 0 {
				t.Errorf("%d requests beside lists", n)
			}
		})
	}
}

// A flood of signatures in annotations costs no more than one of manifests, and hides a good one no better.
func TestAnnotationsAreBounded(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	signed(t, newSigner(t, sign.Options{}), st, subject)
	good := st.Listed[subject.Digest][0]
	strange := string(bundleOf(t, otherSigner(t, sign.Options{}), subject.Digest, sign.Statement{Type: PredicateSign}))
	var list []ocispec.Descriptor
	for n := range 2*MaxReferrers - 1 {
		junk := st.Attach(t, subject, MediaTypeBundle, MediaTypeBundle, fmt.Append(nil, n))
		junk.Annotations = map[string]string{AnnotationBundle: strange}
		list = append(list, junk)
	}
	st.Listed[subject.Digest] = append(list[:MaxReferrers-1:MaxReferrers-1], good)
	if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); err != nil {
		t.Errorf("Verify = %v", err)
	}
	clear(st.Asked)
	st.Listed[subject.Digest] = list
	if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); !errors.Is(err, fault.ErrTooLarge) || st.Asked["manifest"] > MaxReferrers {
		t.Errorf("Verify = %v after %d manifests", err, st.Asked["manifest"])
	}
}

// TestManifestInTheList: likewise a manifest that the list of referrers carries.
func TestManifestInTheList(t *testing.T) {
	for name, c := range map[string]struct {
		data      func(manifest []byte) []byte
		manifests int // that are fetched
	}{
		"with data":   {slices.Clone[[]byte], 0},
		"other data":  {func(m []byte) []byte { return append([]byte("x"), m[1:]...) }, 1},
		"longer data": {func(m []byte) []byte { return append(slices.Clone(m), ' ') }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			signed(t, newSigner(t, sign.Options{Format: FormatBundle}), st, subject)
			entry := &st.Listed[subject.Digest][0]
			entry.Annotations = nil
			entry.Data = c.data(st.Content[entry.Digest])
			clear(st.Asked)
			if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); err != nil || st.Asked["manifest"] != c.manifests {
				t.Errorf("Verify = %v with %d manifests, want %d", err, st.Asked["manifest"], c.manifests)
			}
		})
	}
}

func TestVerifyRefuses(t *testing.T) {
	good := func(t *testing.T, s *sign.Signer, d digest.Digest) []byte {
		data := bundleOf(t, s, d, sign.Statement{Type: PredicateSign})
		return data
	}
	cases := []struct {
		name string
		set  func(t *testing.T, st *signingtest.Memory, subject ocispec.Descriptor)
		want error // nil: accepted
	}{
		{"nothing", func(*testing.T, *signingtest.Memory, ocispec.Descriptor) {}, fault.ErrUnsigned},
		{"another key", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			signed(t, otherSigner(t, sign.Options{}), st, d)
		}, fault.ErrBadSignature},
		{"another key, legacy", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			signed(t, otherSigner(t, sign.Options{Format: FormatLegacy}), st, d)
		}, fault.ErrBadSignature},
		{"another key beside the right one", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			signed(t, otherSigner(t, sign.Options{}), st, d)
			signed(t, newSigner(t, sign.Options{}), st, d)
		}, nil},
		{"another key's bundle beside the right key's tag", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			signed(t, otherSigner(t, sign.Options{}), st, d)
			signed(t, newSigner(t, sign.Options{Format: FormatLegacy}), st, d)
		}, nil},
		{"broken bundle of the key", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, forge(t, good(t, newSigner(t, sign.Options{}), d.Digest)))
		}, fault.ErrBadSignature},
		{"broken bundle of the key beside a good tag", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, forge(t, good(t, newSigner(t, sign.Options{}), d.Digest)))
			signed(t, newSigner(t, sign.Options{Format: FormatLegacy}), st, d)
		}, fault.ErrBadSignature},
		{"broken bundles of nobody beside a good tag", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, []byte("{}"))
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, bytes.Repeat([]byte(" "), 2<<20))
			signed(t, newSigner(t, sign.Options{Format: FormatLegacy}), st, d)
		}, nil},
		{"broken bundle beside a good one", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, forge(t, good(t, newSigner(t, sign.Options{}), d.Digest)))
			signed(t, newSigner(t, sign.Options{}), st, d)
		}, nil},
		{"no bundle where one should be", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, []byte("{}"))
		}, fault.ErrBadSignature},
		{"empty bundle", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, nil)
		}, fault.ErrBadSignature},
		{"bundle of 2 MiB", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, MediaTypeBundle, MediaTypeBundle, bytes.Repeat([]byte(" "), 2<<20))
		}, fault.ErrBadSignature},
		{"an SBOM", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, "application/spdx+json", "application/spdx+json", []byte("{}"))
		}, fault.ErrUnsigned},
		{"an SBOM and the signature", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, "application/spdx+json", "application/spdx+json", []byte("{}"))
			signed(t, newSigner(t, sign.Options{}), st, d)
		}, nil},
		{"the registry mistakes the type", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			st.Attach(t, d, ocispec.MediaTypeEmptyJSON, MediaTypeBundle, good(t, newSigner(t, sign.Options{}), d.Digest))
			st.Listed[d.Digest][0].ArtifactType = "application/spdx+json"
		}, nil},
		{"more referrers than are looked at", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			for i := range MaxReferrers + 1 {
				st.Attach(t, d, "text/plain", "text/plain", fmt.Append(nil, i))
			}
		}, fault.ErrTooLarge},
		{"the signature behind many others", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			for i := range MaxReferrers + 1 {
				st.Attach(t, d, "text/plain", "text/plain", fmt.Append(nil, i))
			}
			signed(t, newSigner(t, sign.Options{}), st, d)
		}, nil},
		{"the store hands out other bytes", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			signed(t, newSigner(t, sign.Options{}), st, d)
			st.StripData(t, d)
			st.Corrupt = func(_ digest.Digest, data []byte) []byte { data[len(data)/2]++; return data }
		}, fault.ErrDigestMismatch},
		{"legacy payload of 1 MiB", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			putLegacy(t, st, newSigner(t, sign.Options{}), d, bytes.Repeat([]byte(" "), 1<<20))
		}, fault.ErrBadSignature},
		{"legacy payload that is no JSON", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			putLegacy(t, st, newSigner(t, sign.Options{}), d, []byte("signed, sealed"))
		}, fault.ErrBadSignature},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			c.set(t, st, subject)
			_, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
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
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	if _, err := Verify(t.Context(), st, subject, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Verify without keys = %v", err)
	}
	for _, d := range []string{"", "sha256:short", "sha512:" + strings.Repeat("0", 128)} {
		if _, err := Verify(t.Context(), st, ocispec.Descriptor{Digest: digest.Digest(d)}, []Verifier{releaseKey(t)}); err == nil {
			t.Errorf("Verify(%q) = nil", d)
		}
		if _, err := newSigner(t, sign.Options{}).Sign(t.Context(), st, ocispec.Descriptor{Digest: digest.Digest(d)}); err == nil {
			t.Errorf("Sign(%q) = nil", d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	st.Fail = func(string, string) error { return ctx.Err() }
	if _, err := Verify(ctx, st, subject, []Verifier{releaseKey(t)}); !errors.Is(err, context.Canceled) || fault.Retryable(err) {
		t.Errorf("Verify after cancel = %v", err)
	}
}

// A statement of another type is found by its type, with what it says, and only when somebody trusted made it.
func TestStatements(t *testing.T) {
	const kind = "https://example.com/checked/v1"
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	said := sign.Statement{Type: kind, Predicate: json.RawMessage(`{"result":"fine"}`), Annotations: map[string]string{"tag": "press-07"}}
	st := signingtest.NewMemory()
	subject, other := st.Artifact(t, "hello"), st.Artifact(t, "other")
	ours := []Verifier{releaseKey(t)}
	if _, err := Statements(t.Context(), st, subject, kind, ours); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Statements of nothing = %v, want %v", err, fault.ErrUnsigned)
	}
	if _, err := otherSigner(t, sign.Options{}).Attest(t.Context(), st, subject, said); err != nil {
		t.Fatal(err)
	}
	if _, err := Statements(t.Context(), st, subject, kind, ours); !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("Statements by another = %v, want %v", err, fault.ErrBadSignature)
	}
	made, err := newSigner(t, sign.Options{Time: at, Annotations: map[string]string{"not": "here"}}).Attest(t.Context(), st, subject, said)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Statements(t.Context(), st, subject, kind, ours)
	if err != nil {
		t.Fatal(err)
	}
	want := []Signature{{
		Verification: Verification{Principal: releaseKey(t).Fingerprint.String(), Fingerprint: releaseKey(t).Fingerprint, Algorithm: "ECDSA P-256"},
		By:           "release", Format: FormatBundle, Digest: made.Digest, Time: at, Annotations: said.Annotations, Predicate: said.Predicate,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Statements (-want +got):\n%s", diff)
	}
	if _, err := Verify(t.Context(), st, subject, ours); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Verify(attested) = %v, want %v", err, fault.ErrUnsigned)
	}
	signed(t, newSigner(t, sign.Options{Format: FormatBoth}), st, other)
	if _, err := Statements(t.Context(), st, other, kind, ours); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Statements(signed) = %v, want %v", err, fault.ErrUnsigned)
	}
	st.Listed[other.Digest] = st.Listed[subject.Digest]
	if _, err := Statements(t.Context(), st, other, kind, ours); !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("Statements about another artifact = %v, want %v", err, fault.ErrBadSignature)
	}
	for _, bad := range []sign.Statement{{}, {Type: PredicateSign}, {Type: kind, Predicate: json.RawMessage("{")}, {Type: kind, Predicate: make([]byte, MaxStatementBytes)}} {
		if _, err := newSigner(t, sign.Options{}).Attest(t.Context(), st, subject, bad); err == nil {
			t.Errorf("Attest(%.20q) = nil", bad.Type)
		}
	}
}
