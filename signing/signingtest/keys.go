package signingtest

import (
	"context"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

// Password is that of the keys.
const Password = "correct horse"

// Pair and OtherPair are key files, each made once for all tests: scrypt makes each one slow on purpose.
var (
	Pair      = sync.OnceValues(makePair)
	OtherPair = sync.OnceValues(makePair)
)

func makePair() (private, public []byte) {
	private, public, err := sign.GenerateKey([]byte(Password))
	if err != nil {
		panic(err)
	}
	return private, public
}

// Unlocked is Pair's private key, and UnlockedOther that of OtherPair. They are opened once: scrypt makes that slow, too.
var (
	Unlocked      = sync.OnceValue(func() sign.PrivateKey { return unlock(Pair()) })
	UnlockedOther = sync.OnceValue(func() sign.PrivateKey { return unlock(OtherPair()) })
)

func unlock(private, _ []byte) sign.PrivateKey {
	key, err := sign.Unlock(private, []byte(Password))
	if err != nil {
		panic(err)
	}
	return key
}

// NewSigner signs with Pair's key, OtherSigner with that of OtherPair.
func NewSigner(t testing.TB, o sign.Options) *sign.Signer {
	t.Helper()
	return signer(t, Unlocked(), o)
}

// OtherSigner signs with the key of OtherPair.
func OtherSigner(t testing.TB, o sign.Options) *sign.Signer {
	t.Helper()
	return signer(t, UnlockedOther(), o)
}

func signer(t testing.TB, key sign.PrivateKey, o sign.Options) *sign.Signer {
	t.Helper()
	s, err := sign.NewKeySigner(key, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ReleaseKey is Pair's public key.
func ReleaseKey(t testing.TB) signing.Key {
	t.Helper()
	_, public := Pair()
	k, err := signing.ParsePublicKey("release", public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Sign signs a subject.
func Sign(t testing.TB, s *sign.Signer, st signing.Store, subject ocispec.Descriptor) []signing.Signature {
	t.Helper()
	made, err := s.Sign(context.Background(), st, subject)
	if err != nil {
		t.Fatal(err)
	}
	return made
}
