package ca_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/ca"
)

// service is a key in a key service, which may be away.
type service struct {
	crypto.Signer
	away  bool
	asked int
}

func (s *service) SignMessage(random io.Reader, message []byte, o crypto.SignerOpts) ([]byte, error) {
	s.asked++
	if s.away {
		return nil, fault.ErrTemporary
	}
	return crypto.SignMessage(s.Signer, random, message, o)
}

// The manager's own certificate stays in use while the key of the authority is out of reach, until it expires; the key is not asked at
// every request.
func TestManagerWithoutItsKey(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	key := &service{Signer: private}
	a, err := ca.NewWith(key, "plant.acme.example", now)
	if err != nil {
		t.Fatal(err)
	}
	m, err := a.Manager(identity.Name{TrustDomain: "plant.acme.example", Manager: "main"}, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	first, err := m.Credentials()
	if err != nil {
		t.Fatal(err)
	}
	key.away, key.asked = true, 0
	now = now.Add(13 * time.Hour)
	for range 5 {
		if c, err := m.Credentials(); err != nil || c != first {
			t.Fatalf("Credentials after half of the lifetime = %p, %v", c, err)
		}
	}
	if key.asked != 1 {
		t.Errorf("the key was asked %d times at once", key.asked)
	}
	now = now.Add(2 * time.Minute)
	key.away = false
	if c, err := m.Credentials(); err != nil || c == first {
		t.Errorf("Credentials with the key again = %p, %v", c, err)
	}
	key.away = true
	now = now.Add(25 * time.Hour)
	if _, err := m.Credentials(); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Credentials that expired: %v", err)
	}
	weak, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.NewWith(weak, "plant.acme.example", now); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a key that the profile does not allow: %v", err)
	}
}
