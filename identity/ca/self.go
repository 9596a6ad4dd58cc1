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

// selfRetry is the pause after a failure, as of a key service, while the certificate before is valid.
const selfRetry = time.Minute

// selfLifetime is short: whoever has the authority can have the next certificate at any time.
const selfLifetime = 24 * time.Hour

// Manager is the credentials of a manager that has the authority itself. They are in memory only, and made anew when half of their
// lifetime is over. It implements [identity.Source].
type Manager struct {
	authority *Authority
	name      identity.Name
	now       func() time.Time

	mu       sync.Mutex
	current  *identity.Credentials
	renewing bool
	retry    time.Time // nothing is tried before, while current is valid
}

var _ identity.Source = (*Manager)(nil)

// Manager makes the credentials of a manager.
func (a *Authority) Manager(name identity.Name, now func() time.Time) (*Manager, error) {
	m := &Manager{authority: a, name: name, now: now}
	_, err := m.Credentials()
	return m, err
}

// Credentials implements [identity.Source]. While the next certificate is made, or cannot be made as its key is out of reach, the one
// before stays in use until it expires.
func (m *Manager) Credentials() (*identity.Credentials, error) {
	now := m.now()
	m.mu.Lock()
	c := m.current
	valid := c != nil && !now.Before(c.SVID.NotBefore) && now.Before(c.SVID.NotAfter)
	if valid && (m.renewing || now.Before(m.retry) || c.SVID.NotAfter.Sub(now) > selfLifetime/2) {
		m.mu.Unlock()
		return c, nil
	}
	m.renewing = true
	m.mu.Unlock()
	made, err := m.issue(now) // a key service may take its time
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renewing = false
	switch {
	case err == nil:
		m.current, m.retry = made, time.Time{}
	case valid:
		m.retry = now.Add(selfRetry)
		return c, nil
	}
	return made, err
}

func (m *Manager) issue(now time.Time) (*identity.Credentials, error) {
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
	return &identity.Credentials{SVID: svid, Bundle: m.authority.bundle}, nil
}
