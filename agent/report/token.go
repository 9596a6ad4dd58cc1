package report

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/token"
)

// tokenKey is a key in a PKCS#11 token. It holds nothing open between two signatures: a token may be pulled out and put back.
type tokenKey struct {
	at     token.URI
	public *ecdsa.PublicKey
}

// openToken finds the key at an address, or creates it where there is none.
func openToken(address string, create bool) (*tokenKey, error) {
	at, err := token.Parse(address)
	if err != nil {
		return nil, err
	}
	public, err := useToken(at, func(t *token.Token, key crypto.Signer, err error) (*ecdsa.PublicKey, error) {
		if errors.Is(err, token.ErrNoKey) && create {
			key, err = t.Create(at)
		}
		if err != nil {
			return nil, err
		}
		public, ok := key.Public().(*ecdsa.PublicKey)
		if !ok || public.Curve != elliptic.P256() {
			return nil, fault.WithHint(fmt.Errorf("key %s: not an ECDSA P-256 key: %w", at, fault.ErrUnsupported), "name another object: the agent creates the key if there is none")
		}
		return public, nil
	})
	if err != nil {
		return nil, err
	}
	return &tokenKey{at, public}, nil
}

// useToken gives the key to do, or the error why it is not found in the open token.
func useToken[T any](at token.URI, do func(*token.Token, crypto.Signer, error) (T, error)) (none T, err error) {
	if !token.Built {
		_, err := token.Open(at, "")
		return none, fault.WithHint(err, fault.Hint(err)+", or keep the device's key in a file or a TPM")
	}
	switch {
	case at.PIN != nil:
		return none, fault.WithHint(fmt.Errorf("key %s: pin-value, where others may read it: %w", at, fault.ErrConfig), "write the PIN into a file of mode 0600, and its path into the address: pin-source=/etc/longshore/token.pin")
	case at.PINFile == "":
		return none, fault.WithHint(fmt.Errorf("key %s: no PIN: %w", at, fault.ErrConfig), "add the path of a file with the PIN: pin-source=/etc/longshore/token.pin")
	}
	pin, err := at.ReadPIN()
	if err != nil {
		return none, err
	}
	return token.Call(at, token.Wait, func() (value T, err error) {
		t, err := token.Open(at, pin)
		if err != nil {
			return value, err
		}
		key, err := t.Key(at)
		value, err = do(t, key, err)
		return value, errors.Join(err, t.Close())
	}, func(T) {})
}

// Public implements crypto.Signer: an *ecdsa.PublicKey on P-256.
func (k *tokenKey) Public() crypto.PublicKey { return k.public }

func (k *tokenKey) Sign(_ io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	return useToken(k.at, func(_ *token.Token, key crypto.Signer, err error) ([]byte, error) {
		if err != nil {
			return nil, err
		}
		if !k.public.Equal(key.Public()) {
			return nil, fmt.Errorf("key %s: the token has another key than before: %w", k.at, fault.ErrConflict)
		}
		return key.Sign(rand.Reader, digest, o)
	})
}
