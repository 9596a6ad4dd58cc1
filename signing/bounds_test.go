package signing_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// A registry that lists 10,000 referrers costs a bounded number of requests, and what it hides behind them is not called
// unsigned.
func TestTenThousandReferrers(t *testing.T) {
	for _, artifactType := range []string{"text/plain", MediaTypeBundle} {
		t.Run(artifactType, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			signed(t, newSigner(t, sign.Options{}), st, subject)
			signed := st.Listed[subject.Digest][0]
			junk := st.Attach(t, subject, artifactType, "text/plain", []byte("x"))
			list := make([]ocispec.Descriptor, 0, 10_001)
			for range 10_000 {
				list = append(list, junk)
			}
			st.Listed[subject.Digest] = list
			_, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
			if !errors.Is(err, fault.ErrTooLarge) || errors.Is(err, fault.ErrUnsigned) || !strings.Contains(err.Error(), "10000 referrers") {
				t.Errorf("Verify = %v, want %v", err, fault.ErrTooLarge)
			}
			if n := st.Asked["manifest"] + st.Asked["blob"]; n > 2*MaxReferrers {
				t.Errorf("%d requests", n)
			}
			// The list tells what the referrer is, so that it is looked at first, wherever it stands.
			st.Listed[subject.Digest] = append(list, signed)
			if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); err != nil {
				t.Errorf("Verify of the last in the list = %v", err)
			}
		})
	}
}

// Where the list is longer than what is looked at, and what is looked at cannot be read now, the latter is the reason: the
// former would be final.
func TestUnreadableAmongManyIsTemporary(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(nth int) error // of the referrers that are read
		want error
	}{
		{"all", func(int) error { return fault.ErrTemporary }, fault.ErrTemporary},
		{"the last", func(nth int) error {
			if nth == MaxReferrers {
				return fault.ErrTemporary
			}
			return nil
		}, fault.ErrTemporary},
		{"after one of other bytes", func(nth int) error {
			return map[int]error{1: fault.ErrDigestMismatch, 2: fault.ErrTemporary}[nth]
		}, fault.ErrTemporary},
		{"before one of other bytes", func(nth int) error {
			return map[int]error{1: fault.ErrTemporary, 2: fault.ErrDigestMismatch}[nth]
		}, fault.ErrTemporary},
		{"no right to read one", func(nth int) error { return map[int]error{5: fault.ErrDenied}[nth] }, fault.ErrDenied},
		{"none", func(int) error { return nil }, fault.ErrTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			for n := range MaxReferrers + 1 {
				st.Attach(t, subject, MediaTypeBundle, "text/plain", fmt.Append(nil, n))
			}
			nth := 0
			st.Fail = func(op, _ string) error {
				if op != "manifest" {
					return nil
				}
				nth++
				return c.fail(nth)
			}
			_, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
			if !errors.Is(err, c.want) || errors.Is(err, fault.ErrTooLarge) != (c.want == fault.ErrTooLarge) {
				t.Errorf("Verify = %v, want %v", err, c.want)
			}
		})
	}
}

// What claims to be a signature of 100 MiB is not fetched.
func TestHugeSignature(t *testing.T) {
	const huge = 100 << 20
	for _, c := range []struct {
		name string
		set  func(st *signingtest.Memory, subject ocispec.Descriptor)
	}{
		{"bundle", func(st *signingtest.Memory, subject ocispec.Descriptor) {
			m := fmt.Appendf(nil, `{"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`, MediaTypeBundle, digest.FromString("huge"), huge)
			d := descriptorOf(ocispec.MediaTypeImageManifest, m)
			st.Content[d.Digest], st.Listed[subject.Digest] = m, []ocispec.Descriptor{d}
		}},
		{"payload", func(st *signingtest.Memory, subject ocispec.Descriptor) {
			m := fmt.Appendf(nil, `{"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`, MediaTypeSimpleSigning, digest.FromString("huge"), huge)
			d := descriptorOf(ocispec.MediaTypeImageManifest, m)
			st.Content[d.Digest], st.Tags[LegacyTag(subject.Digest)] = m, d
		}},
		{"manifest", func(st *signingtest.Memory, subject ocispec.Descriptor) {
			d := descriptorOf(ocispec.MediaTypeImageManifest, []byte("huge"))
			d.Size, d.ArtifactType = huge, MediaTypeBundle
			st.Listed[subject.Digest] = []ocispec.Descriptor{d}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			c.set(st, subject)
			_, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)})
			if !errors.Is(err, fault.ErrBadSignature) && !errors.Is(err, fault.ErrUnsigned) || !bytes.Contains([]byte(err.Error()), []byte("104857600 bytes")) {
				t.Errorf("Verify = %v", err)
			}
			if st.Asked["blob"] != 0 {
				t.Error("it was fetched")
			}
		})
	}
}

// The bounds of single things do not multiply: what is fetched and held against keys for one subject is bounded in all, and what
// lies behind is not called unsigned.
func TestBoundsDoNotMultiply(t *testing.T) {
	bundle := func(n int) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: MediaTypeBundle, Digest: digest.FromString(fmt.Sprint("bundle", n)), Size: MaxBundleBytes}
	}
	for _, c := range []struct {
		name          string
		layers        func(referrer int) []ocispec.Descriptor
		padding       int // bytes of each manifest
		want          error
		blobs, others int // that may be fetched
	}{
		{"one bundle of 1 MiB in each", func(n int) []ocispec.Descriptor { return []ocispec.Descriptor{bundle(n)} }, 0, fault.ErrTooLarge, 32, 33},
		{"60 bundles of 1 MiB in each", func(n int) []ocispec.Descriptor {
			var all []ocispec.Descriptor
			for l := range 60 {
				all = append(all, bundle(60*n+l))
			}
			return all
		}, 0, fault.ErrBadSignature, 0, MaxReferrers},
		{"60 small payloads in each", func(n int) []ocispec.Descriptor {
			var all []ocispec.Descriptor
			for l := range 60 {
				all = append(all, ocispec.Descriptor{MediaType: MediaTypeSimpleSigning, Digest: digest.FromString(fmt.Sprint(n, l)), Size: 250})
			}
			return all
		}, 0, fault.ErrTooLarge, MaxPieces, 5},
		{"manifests of 1 MiB", func(int) []ocispec.Descriptor { return []ocispec.Descriptor{{MediaType: "text/plain"}} }, 1 << 20, fault.ErrTooLarge, 0, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			for n := range MaxReferrers {
				data, err := json.Marshal(ocispec.Manifest{Layers: c.layers(n), Annotations: map[string]string{"n": fmt.Sprint(n, strings.Repeat("x", max(0, c.padding-500)))}})
				if err != nil {
					t.Fatal(err)
				}
				d := descriptorOf(ocispec.MediaTypeImageManifest, data)
				d.ArtifactType = MediaTypeBundle
				st.Content[d.Digest], st.Listed[subject.Digest] = data, append(st.Listed[subject.Digest], d)
			}
			st.Fail = func(op, _ string) error {
				if op == "blob" {
					return fault.ErrDenied // what is asked for is counted, not held
				}
				return nil
			}
			e, err := Examine(t.Context(), st, subject, Query{PredicateType: PredicateSign, Verifiers: []Verifier{releaseKey(t)}})
			if err != nil {
				t.Fatal(err)
			}
			if blobs, manifests := st.Asked["blob"], st.Asked["manifest"]; blobs > c.blobs || manifests > c.others+1 {
				t.Errorf("%d blobs and %d manifests, want at most %d and %d", blobs, manifests, c.blobs, c.others+1)
			}
			if err := e.Err(); c.blobs == 0 && !errors.Is(err, c.want) || c.blobs > 0 && !errors.Is(err, fault.ErrDenied) {
				t.Errorf("Examine = %v, want %v", err, c.want)
			}
			st.Fail = nil
			signed(t, newSigner(t, sign.Options{Format: FormatLegacy}), st, subject)
			clear(st.Asked)
			if _, err := Verify(t.Context(), st, subject, []Verifier{releaseKey(t)}); err != nil {
				t.Errorf("Verify of what is signed under the tag = %v", err)
			}
		})
	}
}
