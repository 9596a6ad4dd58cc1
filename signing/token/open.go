//go:build cgo

package token

import (
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/ThalesIgnite/crypto11"
	"github.com/miekg/pkcs11"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Built tells whether this build can load PKCS#11 modules.
const Built = true

const newIDBytes = 16 // of the CKA_ID of a key whose address has none

// Token is a token that is open. Close it when it is not needed any more.
type Token struct{ context *crypto11.Context }

// rejected has the PIN that each token has rejected last: tokens lock themselves after a few wrong ones. It is the state of a module,
// and a process has each module once, whoever opens it.
var rejected = struct {
	sync.Mutex
	pins map[string]string
}{pins: map[string]string{}}

// Open logs in to the token of a key. A PIN that the token rejects is not tried again until another one was.
func Open(u URI, pin string) (*Token, error) {
	if u.Module == "" {
		return nil, fault.WithHint(fmt.Errorf("key %s: %w: no module", u, fault.ErrInvalid), "add ?module-path=/usr/lib/….so to the URI")
	}
	if _, err := os.Stat(u.Module); err != nil { // the loader's own error does not say what is missing
		return nil, fmt.Errorf("key %s: %w: %v", u, fault.ErrNotFound, err) // without the cause: fs.ErrNotExist is a key to be made
	}
	rejected.Lock()
	defer rejected.Unlock()
	name := u.Module + "\x00" + u.Token()
	if before, found := rejected.pins[name]; found && before == pin {
		err := fmt.Errorf("key %s: the token has rejected this PIN, and it is not tried again: %w", u, fault.ErrUnauthenticated)
		return nil, fault.WithHint(err, "correct the PIN; one in the key's address needs a restart")
	}
	context, err := crypto11.Configure(&crypto11.Config{Path: u.Module, TokenLabel: u.token, TokenSerial: u.serial, SlotNumber: u.slot, Pin: pin})
	if err != nil {
		err = named(err)
		if errors.Is(err, fault.ErrUnauthenticated) {
			rejected.pins[name] = pin
		}
		return nil, fmt.Errorf("key %s: %w", u, err)
	}
	delete(rejected.pins, name)
	return &Token{context}, nil
}

// Key finds a key. The error wraps ErrNoKey if there is none.
func (t *Token) Key(u URI) (crypto.Signer, error) {
	var id, object []byte
	if len(u.id) > 0 {
		id = u.id
	}
	if u.object != "" {
		object = []byte(u.object)
	}
	pair, err := t.context.FindKeyPair(id, object)
	if err == nil && pair == nil {
		err = ErrNoKey
	}
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", u, named(err))
	}
	return &signer{pair, u}, nil
}

// Create makes an ECDSA P-256 key, which can never be read from the token.
func (t *Token) Create(u URI) (crypto.Signer, error) {
	id := u.id
	if len(id) == 0 {
		id = make([]byte, newIDBytes)
		_, _ = rand.Read(id) // it never returns an error
	}
	var err error
	if u.object == "" {
		_, err = t.context.GenerateECDSAKeyPair(id, elliptic.P256())
	} else {
		_, err = t.context.GenerateECDSAKeyPairWithLabel(id, []byte(u.object), elliptic.P256())
	}
	if err != nil {
		return nil, fmt.Errorf("create key %s: %w", u, named(err))
	}
	return t.Key(u)
}

// Close ends the session with the token.
func (t *Token) Close() error { return t.context.Close() }

// signer names its errors.
type signer struct {
	crypto11.Signer
	uri URI
}

// Sign implements crypto.Signer.
func (s *signer) Sign(random io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	signature, err := s.Signer.Sign(random, digest, o)
	if err != nil {
		return nil, fmt.Errorf("sign with %s: %w", s.uri, named(err))
	}
	return signature, nil
}

// named gives the errors of a token our names.
func named(err error) error {
	var said pkcs11.Error
	switch {
	case errors.Is(err, ErrNoKey):
		return err
	case errors.As(err, &said) && (said == pkcs11.CKR_PIN_INCORRECT || said == pkcs11.CKR_PIN_LOCKED || said == pkcs11.CKR_PIN_LEN_RANGE || said == pkcs11.CKR_PIN_INVALID):
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrUnauthenticated, err), "check the PIN; a token locks itself after a few wrong ones")
	default:
		return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
}
