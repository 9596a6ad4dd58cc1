package remotekey

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/token"
)

// HasPKCS11 reports whether this build can load PKCS#11 modules.
const HasPKCS11 = token.Built

func openPKCS11(u token.URI, o Options) (Key, error) {
	u.Module = cmp.Or(u.Module, o.PKCS11Module)
	switch {
	case !HasPKCS11:
		_, err := token.Open(u, "")
		return nil, fault.WithHint(err, fault.Hint(err)+", or put a sigstore-kms-NAME program into the PATH and use --key NAME://…")
	case u.Module == "":
		_, err := token.Open(u, "")
		return nil, fault.WithHint(err, fault.Hint(err)+", or set COSIGN_PKCS11_MODULE_PATH")
	}
	pin, err := pinOf(u, o)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", u, err)
	}
	h, err := token.Call(u, o.wait(), func() (*held, error) { return hold(u, pin) }, func(h *held) {
		if h != nil {
			_ = h.token.Close()
		}
	})
	if err != nil {
		return nil, err
	}
	h.wait = o.wait()
	return h, nil
}

// hold opens the token of a key, and finds the key.
func hold(u token.URI, pin string) (*held, error) {
	opened, err := token.Open(u, pin)
	if err != nil {
		return nil, err
	}
	key, err := opened.Key(u)
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	hash, err := hashOf(key.Public())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("key %s: %w", u, err), opened.Close())
	}
	return &held{at: u, token: opened, key: key, hash: hash}, nil
}

func pinOf(u token.URI, o Options) (string, error) {
	switch {
	case u.PIN != nil:
		return *u.PIN, nil
	case u.PINFile != "":
		return u.ReadPIN()
	case o.PIN == nil:
		return "", fmt.Errorf("%w: no PIN", fault.ErrUnauthenticated)
	}
	pin, err := o.PIN(u.Token())
	return string(pin), err
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
	at    token.URI
	wait  time.Duration
	token *token.Token
	key   crypto.Signer
	hash  crypto.Hash
}

// PublicKey implements signature.Signer.
func (h *held) PublicKey(...signature.PublicKeyOption) (crypto.PublicKey, error) {
	return h.key.Public(), nil
}

// SignMessage implements signature.Signer. A signature that comes too late closes the session: nobody uses it any more.
func (h *held) SignMessage(message io.Reader, _ ...signature.SignOption) ([]byte, error) {
	sum := h.hash.New()
	if _, err := io.Copy(sum, message); err != nil {
		return nil, err
	}
	return token.Call(h.at, h.wait, func() ([]byte, error) { return h.key.Sign(rand.Reader, sum.Sum(nil), h.hash) }, func([]byte) { _ = h.token.Close() })
}

// Close ends the session with the token.
func (h *held) Close() error {
	_, err := token.Call(h.at, h.wait, func() (none struct{}, err error) { return none, h.token.Close() }, func(struct{}) {})
	return err
}
