package trust

import (
	"fmt"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/signing/sign"
)

// Key pairs made once for all tests: scrypt makes each one slow on purpose.
var (
	pair      = sync.OnceValues(newPair)
	otherPair = sync.OnceValues(newPair)
)

func newPair() ([]byte, []byte) {
	private, public, err := sign.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	return private, public
}

func releaseKey(t testing.TB) signing.Key { return publicKey(t, "release", pair) }
func otherKey(t testing.TB) signing.Key   { return publicKey(t, "other", otherPair) }

func publicKey(t testing.TB, name string, of func() ([]byte, []byte)) signing.Key {
	t.Helper()
	_, public := of()
	k, err := signing.ParsePublicKey(name, public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func signWith(t testing.TB, of func() ([]byte, []byte), st signing.Store, subject ocispec.Descriptor) {
	t.Helper()
	private, _ := of()
	s, err := sign.NewSigner(private, nil, sign.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sign(t.Context(), st, subject); err != nil {
		t.Fatal(err)
	}
}

// instance is an instance of sigstore, made once; what it is given for a test only says when making it goes wrong.
var (
	instance    = sync.OnceValue(func() *keylesstest.Instance { return keylesstest.New(new(testing.B)) })
	trustedRoot = sync.OnceValue(func() []byte { return instance().Root(new(testing.B)) })
)

type ocispecDescriptor = ocispec.Descriptor

// numbered keys, as many as a test needs.
var (
	keysLock sync.Mutex
	keysMade = map[int]*keyPair{}
)

type keyPair struct {
	private, public []byte
	signers         map[string]*sign.Signer // unlocked once for each options
}

func pairNo(n int) *keyPair {
	keysLock.Lock()
	defer keysLock.Unlock()
	if keysMade[n] == nil {
		k := &keyPair{signers: map[string]*sign.Signer{}}
		k.private, k.public = newPair()
		keysMade[n] = k
	}
	return keysMade[n]
}

func keyNo(t testing.TB, n int, name string) signing.Key {
	t.Helper()
	k, err := signing.ParsePublicKey(name, pairNo(n).public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func signerNo(t testing.TB, n int, o sign.Options) *sign.Signer {
	t.Helper()
	k := pairNo(n)
	keysLock.Lock()
	defer keysLock.Unlock()
	id := fmt.Sprintf("%+v", o)
	if k.signers[id] == nil {
		s, err := sign.NewSigner(k.private, nil, o)
		if err != nil {
			t.Fatal(err)
		}
		k.signers[id] = s
	}
	return k.signers[id]
}

func signNo(t testing.TB, n int, o sign.Options, st signing.Store, subject ocispec.Descriptor) {
	t.Helper()
	if _, err := signerNo(t, n, o).Sign(t.Context(), st, subject); err != nil {
		t.Fatal(err)
	}
}

func attestNo(t testing.TB, n int, st signing.Store, subject ocispec.Descriptor, predicate string) {
	t.Helper()
	if _, err := signerNo(t, n, sign.Options{}).Attest(t.Context(), st, subject, sign.Statement{Type: predicate}); err != nil {
		t.Fatal(err)
	}
}
