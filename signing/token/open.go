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
	"sync/atomic"

	"github.com/ThalesIgnite/crypto11"
	"github.com/miekg/pkcs11"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Built reports whether this build can load PKCS#11 modules.
const Built = true

const (
	newIDBytes = 16 // of the CKA_ID of a key whose address has none
	sessions   = 2  // at a time: one stays logged in, one works
)

// Token is a token that is open. Close it when it is not needed any more.
type Token struct {
	context *crypto11.Context
	closed  atomic.Bool
}

// rejected has the PIN that each token has rejected last: tokens lock themselves after a few wrong ones. A process has each module once,
// whoever opens it: closing the last session unloads the module for the whole process.
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
		return nil, fault.WithHint(err, "correct the PIN; if it is in the key's address, restart the program")
	}
	context, err := configure(&crypto11.Config{Path: u.Module, TokenLabel: u.token, TokenSerial: u.serial, SlotNumber: u.slot, Pin: pin, MaxSessions: sessions})
	if err != nil {
		if wrongPIN(err) {
			rejected.pins[name] = pin
		}
		return nil, fmt.Errorf("key %s: %w", u, named(err))
	}
	delete(rejected.pins, name)
	return &Token{context: context}, nil
}

// configure opens a session, and a pool of one more: where the token allows only one, crypto11 panics.
func configure(c *crypto11.Config) (context *crypto11.Context, err error) {
	defer func() {
		if said := recover(); said != nil {
			if module := pkcs11.New(c.Path); module != nil { // crypto11 has left it initialized, which would fail the next time
				_ = module.Finalize()
				module.Destroy()
			}
			err = fault.WithHint(fmt.Errorf("%w: %v", fault.ErrUnsupported, said), "the token must allow two sessions at a time")
		}
	}()
	return crypto11.Configure(c)
}

// Key finds a key. The error wraps ErrNoKey if there is none, and fault.ErrConflict if there are several.
func (t *Token) Key(u URI) (crypto.Signer, error) {
	var id, object []byte
	if len(u.id) > 0 {
		id = u.id
	}
	if u.object != "" {
		object = []byte(u.object)
	}
	pairs, err := t.context.FindKeyPairs(id, object)
	switch {
	case err != nil:
		return nil, fmt.Errorf("key %s: %w", u, named(err))
	case len(pairs) == 0:
		return nil, fmt.Errorf("key %s: %w", u, ErrNoKey)
	case len(pairs) > 1:
		return nil, fault.WithHint(fmt.Errorf("key %s: the token has %d such keys: %w", u, len(pairs), fault.ErrConflict), "name the key by id=")
	}
	return &signer{pairs[0], u}, nil
}

// Create makes an ECDSA P-256 key, which can never be read from the token.
func (t *Token) Create(u URI) (crypto.Signer, error) {
	id := u.id
	if len(id) == 0 {
		id = make([]byte, newIDBytes)
		_, _ = rand.Read(id) // it never returns an error
	}
	var pair crypto11.Signer
	var err error
	if u.object == "" {
		pair, err = t.context.GenerateECDSAKeyPair(id, elliptic.P256())
	} else {
		pair, err = t.context.GenerateECDSAKeyPairWithLabel(id, []byte(u.object), elliptic.P256())
	}
	if err != nil {
		return nil, fmt.Errorf("create key %s: %w", u, named(err))
	}
	return &signer{pair, u}, nil
}

// Close ends the session with the token. It may be called again.
func (t *Token) Close() error {
	if t.closed.Swap(true) {
		return nil
	}
	return t.context.Close()
}

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

// wrongPIN: the token was asked, and has rejected the PIN. A token that is locked says nothing of it.
func wrongPIN(err error) bool {
	var said pkcs11.Error
	return errors.As(err, &said) && (said == pkcs11.CKR_PIN_INCORRECT || said == pkcs11.CKR_PIN_LEN_RANGE || said == pkcs11.CKR_PIN_INVALID)
}

// absent is what crypto11, which does not export its error, says of a token that is not there.
const absent = "could not find PKCS#11 token"

// named gives the errors of a token our names.
func named(err error) error {
	var said pkcs11.Error
	_ = errors.As(err, &said)
	switch {
	case errors.Is(err, fault.ErrUnsupported):
		return err
	case wrongPIN(err):
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrUnauthenticated, err), "check the PIN; a token locks itself after a few wrong ones")
	case said == pkcs11.CKR_PIN_LOCKED:
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrUnauthenticated, err), "the token is locked after wrong PINs: set a new PIN with the SO PIN, by the tool of its maker")
	case err.Error() == absent, said == pkcs11.CKR_TOKEN_NOT_PRESENT, said == pkcs11.CKR_DEVICE_REMOVED, said == pkcs11.CKR_SLOT_ID_INVALID:
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrTemporary, err), "check that the token is there")
	default:
		return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
}
