//go:build cgo

package remotekey

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ThalesIgnite/crypto11"
	"github.com/miekg/pkcs11"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// HasPKCS11 tells whether this build can load PKCS#11 modules.
const HasPKCS11 = true

func openPKCS11(u pkcs11URI, o Options) (Key, error) {
	module := u.module
	if module == "" {
		module = o.PKCS11Module
	}
	if module == "" {
		err := fmt.Errorf("key %s: %w: no module", u, fault.ErrInvalid)
		return nil, fault.WithHint(err, "add ?module-path=/usr/lib/….so to the URI, or set COSIGN_PKCS11_MODULE_PATH")
	}
	if _, err := os.Stat(module); err != nil { // the loader's own error does not say what is missing
		return nil, fmt.Errorf("key %s: %w: %w", u, fault.ErrNotFound, err)
	}
	config := &crypto11.Config{Path: module, TokenLabel: u.token, TokenSerial: u.serial, SlotNumber: u.slot}
	if u.pin != nil {
		config.Pin = *u.pin
	} else {
		if o.PIN == nil {
			return nil, fmt.Errorf("key %s: %w: no PIN", u, fault.ErrUnauthenticated)
		}
		pin, err := o.PIN(u.tokenName())
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", u, err)
		}
		config.Pin = string(pin)
	}
	token, err := crypto11.Configure(config)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", u, named(err))
	}
	var id, object []byte
	if len(u.id) > 0 {
		id = u.id
	}
	if u.object != "" {
		object = []byte(u.object)
	}
	pair, err := token.FindKeyPair(id, object)
	if err == nil && pair == nil {
		err = fault.ErrNotFound
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("key %s: %w", u, named(err)), token.Close())
	}
	hash, err := hashOf(pair.Public())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("key %s: %w", u, err), token.Close())
	}
	return &held{uri: u, token: token, pair: pair, hash: hash}, nil
}

// named gives the errors of a token our names.
func named(err error) error {
	var said pkcs11.Error
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return err
	case errors.As(err, &said) && (said == pkcs11.CKR_PIN_INCORRECT || said == pkcs11.CKR_PIN_LOCKED || said == pkcs11.CKR_PIN_LEN_RANGE || said == pkcs11.CKR_PIN_INVALID):
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrUnauthenticated, err), "check the PIN; a token locks itself after a few wrong ones")
	default:
		return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
}

// hashOf is the hash that cosign uses with such a key.
func hashOf(pub crypto.PublicKey) (crypto.Hash, error) {
	switch p := pub.(type) {
	case *ecdsa.PublicKey:
		switch p.Curve {
		case elliptic.P256():
			return crypto.SHA256, nil
		case elliptic.P384():
			return crypto.SHA384, nil
		case elliptic.P521():
			return crypto.SHA512, nil
		}
		return 0, fmt.Errorf("%w: curve %s", fault.ErrUnsupported, p.Curve.Params().Name)
	case *rsa.PublicKey:
		return crypto.SHA256, nil
	}
	return 0, fmt.Errorf("%w: key type %T", fault.ErrUnsupported, pub)
}

// held is a key in a token.
type held struct {
	uri   pkcs11URI
	token *crypto11.Context
	pair  crypto11.Signer
	hash  crypto.Hash
}

// PublicKey implements signature.Signer.
func (h *held) PublicKey(...signature.PublicKeyOption) (crypto.PublicKey, error) {
	return h.pair.Public(), nil
}

// SignMessage implements signature.Signer.
func (h *held) SignMessage(message io.Reader, _ ...signature.SignOption) ([]byte, error) {
	sum := h.hash.New()
	if _, err := io.Copy(sum, message); err != nil {
		return nil, err
	}
	sig, err := h.pair.Sign(rand.Reader, sum.Sum(nil), h.hash)
	if err != nil {
		return nil, fmt.Errorf("sign with %s: %w", h.uri, named(err))
	}
	return sig, nil
}

// Close ends the session with the token.
func (h *held) Close() error { return h.token.Close() }
