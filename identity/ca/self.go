package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/identity"
)

// selfLifetime is short: whoever has the authority can have the next certificate at any time.
const selfLifetime = 24 * time.Hour

// Manager is the credentials of a manager that has the authority itself. They are in memory only, and made anew when half of their
// lifetime is over. It implements [identity.Source].
type Manager struct {
	authority *Authority
	name      identity.Name
	now       func() time.Time

	mu      sync.Mutex
	current *identity.Credentials
}

var _ identity.Source = (*Manager)(nil)

// Manager makes the credentials of a manager.
func (a *Authority) Manager(name identity.Name, now func() time.Time) (*Manager, error) {
	m := &Manager{authority: a, name: name, now: now}
	_, err := m.Credentials()
	return m, err
}

// Credentials implements [identity.Source].
func (m *Manager) Credentials() (*identity.Credentials, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if c := m.current; c != nil && !now.Before(c.SVID.NotBefore) && c.SVID.NotAfter.Sub(now) > selfLifetime/2 {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := m.authority.Certify(key.Public(), m.name, now, selfLifetime)
	if err != nil {
		return nil, err
	}
	svid, err := identity.NewSVID(key, "of the manager", []*x509.Certificate{cert})
	if err != nil {
		return nil, err
	}
	m.current = &identity.Credentials{SVID: svid, Bundle: m.authority.bundle}
	return m.current, nil
}
