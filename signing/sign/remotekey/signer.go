package remotekey

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Signer is a key at a distance as crypto/x509 uses keys: it signs whole messages, of which the key's side or this one makes the hash.
// After a failure the key is opened anew for the next message: a token that was away, or a login that was replaced, needs no restart. A
// PIN that a token has rejected is not tried again: tokens lock themselves. It is safe for concurrent use; close it when it is not needed
// any more.
type Signer struct {
	ctx    context.Context // of the program: crypto.Signer has none of its own
	open   func() (Key, error)
	public crypto.PublicKey

	mu  sync.Mutex
	key Key // nil: to be opened
}

var _ crypto.MessageSigner = (*Signer)(nil)

// NewSigner opens a key as [Open] does. ctx is for all that the signer does.
func NewSigner(ctx context.Context, ref string, o Options) (*Signer, error) {
	s := &Signer{ctx: ctx, open: func() (Key, error) { return Open(ctx, ref, o) }}
	key, err := s.open()
	if err != nil {
		return nil, err
	}
	if s.public, err = key.PublicKey(); err != nil {
		return nil, errors.Join(err, key.Close())
	}
	s.key = key
	return s, nil
}

// Public implements crypto.Signer.
func (s *Signer) Public() crypto.PublicKey { return s.public }

// Sign implements crypto.Signer. Not every key signs what somebody else has hashed: it is an error.
func (s *Signer) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, fmt.Errorf("a remote key signs messages only: %w", fault.ErrUnsupported)
}

// SignMessage implements crypto.MessageSigner. The hash is the one that goes with the key; callers verify the signature.
func (s *Signer) SignMessage(_ io.Reader, message []byte, _ crypto.SignerOpts) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == nil {
		key, err := s.open()
		if err != nil {
			return nil, err
		}
		public, err := key.PublicKey()
		if before, ok := s.public.(interface{ Equal(crypto.PublicKey) bool }); err == nil && (!ok || !before.Equal(public)) {
			err = fmt.Errorf("the remote key is another one than before: %w", fault.ErrConflict)
		}
		if err != nil {
			return nil, errors.Join(err, key.Close())
		}
		s.key = key
	}
	signature, err := s.key.SignMessage(bytes.NewReader(message), options.WithContext(s.ctx))
	if err != nil {
		_ = s.key.Close() // why there is no signature counts
		s.key = nil
	}
	return signature, err
}

// Close ends the connection to the key.
func (s *Signer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == nil {
		return nil
	}
	key := s.key
	s.key = nil
	return key.Close()
}
