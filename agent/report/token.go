package report

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/token"
)

// tokenKey is a key in a PKCS#11 token. It holds nothing open between two signatures: a token may be pulled out and put back.
type tokenKey struct {
	at     token.URI
	public *ecdsa.PublicKey
}

// tokens lets one goroutine at a time use a module: who closes it last ends it for the process.
var tokens sync.Mutex

// openToken finds the key at an address, or creates it where there is none.
func openToken(address string, create bool) (*tokenKey, error) {
	at, err := token.Parse(address)
	if err != nil {
		return nil, err
	}
	k := &tokenKey{at: at}
	err = k.use(func(t *token.Token, key crypto.Signer, err error) error {
		if errors.Is(err, token.ErrNoKey) && create {
			key, err = t.Create(at)
		}
		if err != nil {
			return err
		}
		var ok bool
		if k.public, ok = key.Public().(*ecdsa.PublicKey); !ok || k.public.Curve != elliptic.P256() {
			return fault.WithHint(fmt.Errorf("key %s: not an ECDSA P-256 key: %w", at, fault.ErrUnsupported), "name another object: the agent creates the key if there is none")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// use gives the key to do, or the error why it is not found in the open token.
func (k *tokenKey) use(do func(*token.Token, crypto.Signer, error) error) error {
	if !token.Built {
		_, err := token.Open(k.at, "")
		return fault.WithHint(err, fault.Hint(err)+", or keep the device's key in a file or a TPM")
	}
	switch {
	case k.at.PIN != nil:
		return fault.WithHint(fmt.Errorf("key %s: pin-value, where others may read it: %w", k.at, fault.ErrConfig), "write the PIN into a file of mode 0600, and its path into the address: pin-source=/etc/longshore/token.pin")
	case k.at.PINFile == "":
		return fault.WithHint(fmt.Errorf("key %s: no PIN: %w", k.at, fault.ErrConfig), "add the path of a file with the PIN: pin-source=/etc/longshore/token.pin")
	}
	pin, err := k.at.ReadPIN()
	if err != nil {
		return err
	}
	tokens.Lock()
	defer tokens.Unlock()
	t, err := token.Open(k.at, pin)
	if err != nil {
		return err
	}
	key, err := t.Key(k.at)
	return errors.Join(do(t, key, err), t.Close())
}

// Public implements crypto.Signer: an *ecdsa.PublicKey on P-256.
func (k *tokenKey) Public() crypto.PublicKey { return k.public }

// Sign implements crypto.Signer.
func (k *tokenKey) Sign(_ io.Reader, digest []byte, o crypto.SignerOpts) (signature []byte, err error) {
	err = k.use(func(_ *token.Token, key crypto.Signer, err error) error {
		if err != nil {
			return err
		}
		if !k.public.Equal(key.Public()) {
			return fmt.Errorf("key %s: the token has another key than before: %w", k.at, fault.ErrConflict)
		}
		signature, err = key.Sign(rand.Reader, digest, o)
		return err
	})
	return signature, err
}
