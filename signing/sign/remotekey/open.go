package remotekey

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms"
	_ "github.com/sigstore/sigstore/pkg/signature/kms/aws" // awskms://
	_ "github.com/sigstore/sigstore/pkg/signature/kms/azure"
	_ "github.com/sigstore/sigstore/pkg/signature/kms/gcp"
	_ "github.com/sigstore/sigstore/pkg/signature/kms/hashivault"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/token"
)

// Options of [Open].
type Options struct {
	// PKCS11Module is the C library for keys whose URI has no module-path; "" is none.
	PKCS11Module string
	// PIN asks for the PIN of a token whose URI has none. It is not called for other keys.
	PIN func(token string) ([]byte, error)
}

// Key signs at a distance. Close it when it is not needed any more.
type Key interface {
	signature.Signer
	io.Closer
}

// Is reports whether what a person gave for a key is the address of one, and not the name of a file.
func Is(ref string) bool {
	if strings.HasPrefix(ref, token.Scheme) {
		return true
	}
	scheme, _, found := strings.Cut(ref, "://")
	return found && scheme != "" && !strings.ContainsAny(scheme, `/\.`)
}

// Open finds a key by its address: pkcs11:… (RFC 7512), awskms://, azurekms://, gcpkms:// and hashivault:// as cosign writes
// them, and NAME:// for a program sigstore-kms-NAME in the PATH. Who may use the key is the business of each service's own
// settings, files and environment.
func Open(ctx context.Context, ref string, o Options) (Key, error) {
	if strings.HasPrefix(ref, token.Scheme) {
		uri, err := token.Parse(ref)
		if err != nil {
			return nil, err
		}
		return openPKCS11(uri, o)
	}
	sv, err := kms.Get(ctx, ref, crypto.SHA256)
	var none *kms.ProviderNotFoundError
	switch {
	case errors.As(err, &none):
		scheme, _, _ := strings.Cut(ref, "://")
		err := fmt.Errorf("key %s: %w: no service %s://, and no program sigstore-kms-%s", ref, fault.ErrUnsupported, scheme, scheme)
		return nil, fault.WithHint(err, "known are pkcs11:, awskms://, azurekms://, gcpkms:// and hashivault://")
	case err != nil && (statusOf(err) != 0 || unreached(err) || errors.Is(err, context.Canceled)): // some ask before
		return nil, fmt.Errorf("key %s: %w", ref, answered(err))
	case err != nil:
		return nil, fmt.Errorf("key %s: %w: %w", ref, fault.ErrInvalid, err)
	}
	// The first question to a service: whether it is there, the key is there, and we may use it.
	pub, err := sv.PublicKey(options.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("key %s: ask for its public half: %w", ref, answered(err))
	}
	return service{sv, ref, pub}, nil
}

// service is a key of a key management service. It has nothing to close.
type service struct {
	kms.SignerVerifier
	ref string
	pub crypto.PublicKey
}

// PublicKey implements signature.Signer. It does not ask again.
func (s service) PublicKey(...signature.PublicKeyOption) (crypto.PublicKey, error) { return s.pub, nil }

// SignMessage implements signature.Signer.
func (s service) SignMessage(message io.Reader, o ...signature.SignOption) ([]byte, error) {
	sig, err := s.SignerVerifier.SignMessage(message, o...)
	if err != nil {
		return nil, fmt.Errorf("sign with %s: %w", s.ref, answered(err))
	}
	return sig, nil
}

// Close implements io.Closer.
func (s service) Close() error { return nil }
