package signing

import (
	"context"
	"os"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/signing/signingtest"
)

var _ Store = (*signingtest.Memory)(nil)

const testPassword = "correct horse"

// pair returns a key pair made once for all tests: scrypt makes each one slow on purpose.
var pair = sync.OnceValues(func() ([]byte, []byte) {
	private, public, err := GenerateKey([]byte(testPassword))
	if err != nil {
		panic(err)
	}
	return private, public
})

var otherPair = sync.OnceValues(func() ([]byte, []byte) {
	private, public, err := GenerateKey([]byte(testPassword))
	if err != nil {
		panic(err)
	}
	return private, public
})

// unlocked keys, once: scrypt makes each unlocking slow too.
var (
	unlocked      = sync.OnceValue(func() *Signer { return opened(pair()) })
	unlockedOther = sync.OnceValue(func() *Signer { return opened(otherPair()) })
)

func opened(private, _ []byte) *Signer {
	s, err := NewSigner(private, []byte(testPassword), SignOptions{})
	if err != nil {
		panic(err)
	}
	return s
}

func newSigner(t testing.TB, o SignOptions) *Signer {
	t.Helper()
	return withOptions(t, *unlocked(), o)
}

func otherSigner(t testing.TB, o SignOptions) *Signer {
	t.Helper()
	return withOptions(t, *unlockedOther(), o)
}

func withOptions(t testing.TB, s Signer, o SignOptions) *Signer {
	t.Helper()
	var err error
	if o.Format, err = ParseFormat(string(o.Format)); err != nil {
		t.Fatal(err)
	}
	s.options = o
	if o.Name != "" {
		s.key.Name = o.Name
		s.self = s.key
	}
	return &s
}

func releaseKey(t testing.TB) Key {
	t.Helper()
	_, public := pair()
	k, err := ParsePublicKey("release", public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t testing.TB, s *Signer, st Store, subject ocispec.Descriptor) []Signature {
	t.Helper()
	made, err := s.Sign(context.Background(), st, subject)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
