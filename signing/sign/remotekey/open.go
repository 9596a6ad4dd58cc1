package remotekey

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

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
	// Wait is how long a token or a key service may take for an answer; 0: 20 seconds.
	Wait time.Duration
}

func (o Options) wait() time.Duration { return cmp.Or(o.Wait, defaultWait) }

const defaultWait = 20 * time.Second

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
	// What it makes keeps ctx.
	sv, err := within(ctx, ref, o.wait(), func(context.Context) (kms.SignerVerifier, error) { return kms.Get(ctx, ref, crypto.SHA256) })
	var none *kms.ProviderNotFoundError
	switch {
	case errors.As(err, &none):
		scheme, _, _ := strings.Cut(ref, "://")
		err := fmt.Errorf("key %s: %w: no service %s://, and no program sigstore-kms-%s", ref, fault.ErrUnsupported, scheme, scheme)
		return nil, fault.WithHint(err, "known are pkcs11:, awskms://, azurekms://, gcpkms:// and hashivault://")
	case errors.Is(err, errSilent):
		return nil, err
	case err != nil && (statusOf(err) != 0 || unreached(err) || errors.Is(err, context.Canceled)): // some ask before
		return nil, fmt.Errorf("key %s: %w", ref, answered(err))
	case err != nil:
		return nil, fmt.Errorf("key %s: %w: %w", ref, fault.ErrInvalid, err)
	}
	// The first question to a service: whether it is there, the key is there, and we may use it.
	pub, err := within(ctx, ref, o.wait(), func(ctx context.Context) (crypto.PublicKey, error) { return sv.PublicKey(options.WithContext(ctx)) })
	if err != nil {
		return nil, fmt.Errorf("key %s: ask for its public half: %w", ref, answered(err))
	}
	return &service{sv, ctx, ref, pub, o.wait()}, nil
}

// errSilent is the answer of a service that gives none.
var errSilent = fmt.Errorf("the key service does not answer: %w", fault.ErrTemporary)

// within has a service do something. Some clients do not heed a context: their calls are left alone when the time is over.
func within[T any](ctx context.Context, ref string, wait time.Duration, do func(context.Context) (T, error)) (none T, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do(ctx)
		done <- result{value, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = context.Cause(ctx)
	}
	if r.err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return none, fault.WithHint(fmt.Errorf("key %s: %w", ref, errSilent), "check that the service can be reached from here")
	}
	return r.value, r.err
}

// service is a key of a key management service. It has nothing to close.
type service struct {
	kms.SignerVerifier
	ctx  context.Context // of the program, for calls without one
	ref  string
	pub  crypto.PublicKey
	wait time.Duration
}

// PublicKey implements signature.Signer. It does not ask again.
func (s *service) PublicKey(...signature.PublicKeyOption) (crypto.PublicKey, error) {
	return s.pub, nil
}

// SignMessage implements signature.Signer.
func (s *service) SignMessage(message io.Reader, o ...signature.SignOption) ([]byte, error) {
	ctx := s.ctx
	for _, option := range o {
		option.ApplyContext(&ctx)
	}
	sig, err := within(ctx, s.ref, s.wait, func(ctx context.Context) ([]byte, error) {
		return s.SignerVerifier.SignMessage(message, append(slices.Clone(o), options.WithContext(ctx))...)
	})
	if err != nil {
		return nil, fmt.Errorf("sign with %s: %w", s.ref, answered(err))
	}
	return sig, nil
}

// Close implements io.Closer.
func (s *service) Close() error { return nil }
