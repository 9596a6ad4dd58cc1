package signing_test

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

var _ Store = (*signingtest.Memory)(nil)

var (
	pair        = signingtest.Pair
	newSigner   = signingtest.NewSigner
	otherSigner = signingtest.OtherSigner
	releaseKey  = signingtest.ReleaseKey
	signed      = signingtest.Sign
)

// bundleOf is the bundle of a statement about d, as a signer writes it.
func bundleOf(t testing.TB, s *sign.Signer, d digest.Digest, said sign.Statement) []byte {
	t.Helper()
	st := signingtest.NewMemory()
	var err error
	if subject := (ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: 1}); said.Type == PredicateSign {
		_, err = s.Sign(t.Context(), st, subject)
	} else {
		_, err = s.Attest(t.Context(), st, subject, said)
	}
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(st.Content[st.Listed[d][0].Digest], &m); err != nil {
		t.Fatal(err)
	}
	return st.Content[m.Layers[0].Digest]
}

// descriptorOf describes bytes.
func descriptorOf(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}
