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
	unlocked      = sync.OnceValue(func() PrivateKey { return opened(pair()) })
	unlockedOther = sync.OnceValue(func() PrivateKey { return opened(otherPair()) })
)

func opened(private, _ []byte) PrivateKey {
	key, err := Unlock(private, []byte(testPassword))
	if err != nil {
		panic(err)
	}
	return key
}

func newSigner(t testing.TB, o SignOptions) *Signer   { return signerOf(t, unlocked(), o) }
func otherSigner(t testing.TB, o SignOptions) *Signer { return signerOf(t, unlockedOther(), o) }

func signerOf(t testing.TB, key PrivateKey, o SignOptions) *Signer {
	t.Helper()
	s, err := NewKeySigner(key, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
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
