package enroll

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/enroll"
)

// Certifier signs certificates.
type Certifier interface {
	Certify(public crypto.PublicKey, name identity.Name, now time.Time, lifetime time.Duration) (*x509.Certificate, error)
}

// Credentials creates the pull credentials of devices.
type Credentials interface {
	// Give makes the credential of a device, or a new secret for it. handle is the one of [Credentials.Handle].
	Give(ctx context.Context, device, handle string) (enroll.Login, error)
	// Handle identifies the credential of a key for its withdrawal, before it is created; "": nothing to withdraw.
	Handle(key digest.Digest) string
	// Withdraw deletes a credential. A missing one is not an error.
	Withdraw(ctx context.Context, handle string) error
}

// Policy has what devices receive in addition to their certificate; it is read for each device.
type Policy struct {
	Settings *Settings
	Trust    *enroll.Trusted
	CA       string      // PEM, of registries
	Pull     Credentials // nil: none
}

// grant creates the credentials and settings of an approved device.
func (s *Service) grant(ctx context.Context, device string, key crypto.PublicKey, fingerprint digest.Digest) (*enroll.Grant, error) {
	done, err := s.begin(fingerprint)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, grantTimeout)
	defer cancel()
	policy, err := s.o.Policy()
	if err != nil {
		return nil, &ownError{fmt.Errorf("settings of enrollment: %w", err)}
	}
	own, err := s.o.Manager.Credentials()
	if err != nil {
		return nil, &ownError{err}
	}
	name := own.SVID.Name
	name.Client = device
	now := s.o.Now()
	cert, err := s.o.Authority.Certify(key, name, now, policy.Settings.Lifetime)
	if err != nil {
		return nil, &ownError{err}
	}
	g := &enroll.Grant{
		Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})), TrustBundle: own.Bundle.JSON(),
		Manager: policy.Settings.URL, Source: enroll.Source{Registry: policy.Settings.Registry, Margo: policy.Settings.Margo},
		Trust: policy.Trust, RegistryCA: policy.CA,
	}
	handle := ""
	if policy.Pull != nil {
		handle = policy.Pull.Handle(fingerprint)
	}
	if err := s.o.Store.NoteGrant(ctx, fingerprint.String(), handle, cert.NotAfter); err != nil {
		return nil, err
	}
	if policy.Pull != nil {
		login, err := s.pull(ctx, policy.Pull, device, handle, fingerprint)
		if err != nil {
			return nil, err
		}
		g.Registries = []enroll.Login{login}
	}
	if err := s.refresh(ctx); err != nil { // the device uses its certificate next
		return nil, err
	}
	s.o.Logger.Info("certificate issued", "device", device, "key", fingerprint, "notAfter", cert.NotAfter)
	return g, nil
}

// pull makes the pull credential, and withdraws it again if the device was removed meanwhile.
func (s *Service) pull(ctx context.Context, c Credentials, device, handle string, fingerprint digest.Digest) (enroll.Login, error) {
	login, err := c.Give(ctx, device, handle)
	if err != nil {
		return enroll.Login{}, &ownError{fmt.Errorf("pull credential of %s: %w", device, err)}
	}
	e, err := s.o.Store.Enrollment(ctx, fingerprint.String())
	if err == nil && e.State != store.EnrollmentApproved {
		err = fmt.Errorf("%s is %s: %w", device, e.State, fault.ErrDenied)
		if handle != "" {
			err = errors.Join(err, c.Withdraw(ctx, handle))
		}
	}
	return login, err
}

// begin limits a key to one grant at a time, and their rate: each costs a signature and perhaps a new secret at a registry.
func (s *Service) begin(key digest.Digest) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Now()
	if last, ok := s.granted[key]; s.busy[key] || ok && now.Sub(last).Abs() < grantEvery {
		return nil, errBusy
	}
	select {
	case s.granting <- struct{}{}:
	default:
		return nil, errBusy
	}
	for k, at := range s.granted {
		if now.Sub(at).Abs() >= grantEvery {
			delete(s.granted, k)
		}
	}
	s.granted[key], s.busy[key] = now, true
	return func() {
		<-s.granting
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, key)
	}, nil
}

// Shared is one credential for all devices: it is not withdrawn when a device is removed. It implements [Credentials].
type Shared enroll.Login

// Give implements [Credentials].
func (s Shared) Give(context.Context, string, string) (enroll.Login, error) {
	return enroll.Login(s), nil
}

// Handle implements [Credentials].
func (s Shared) Handle(digest.Digest) string { return "" }

// Withdraw implements [Credentials]: a credential with a handle was made with other settings.
func (s Shared) Withdraw(_ context.Context, handle string) error {
	return fault.WithHint(fmt.Errorf("the settings name no registry that gives credentials of devices, as %s: %w", handle, fault.ErrConfig),
		"delete that account by hand, or restore the settings that it was made with")
}
