package conform

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"time"
)

// skew is how much earlier a certificate begins than it is issued.
const skew = 5 * time.Minute

func newKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// forge signs a certificate of a SPIFFE id, which edit makes a wrong one.
func (a *Authority) forge(id string, key crypto.Signer, edit func(*x509.Certificate)) (tls.Certificate, error) {
	u, err := url.Parse(id)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "conformance suite"}, URIs: []*url.URL{u}, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-skew), NotAfter: time.Now().Add(time.Hour),
	}
	if edit != nil {
		edit(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, key.Public(), a.Key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// stranger is an authority of the same name that no trust bundle has.
func (a *Authority) stranger() (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := *a.Certificate
	template.PublicKey = nil
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	return &Authority{c, key}, err
}

// issue signs the certificate of a client of the manager, and makes a peer of it.
func (s *session) issue(client string) (*peer, error) {
	if s.Authority == nil {
		return nil, skip("the trust domain's authority (--authority-cert, --authority-key)")
	}
	id := s.client.id
	id.client = client
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	c, err := s.Authority.forge(id.String(), key, nil)
	if err != nil {
		return nil, err
	}
	return s.peer(c, "")
}

// fresh is an accepted client without deployments.
func (s *session) fresh(context.Context) (*peer, error) {
	if s.Fresh == "" {
		return nil, skip("an accepted client without deployments (--fresh-client)")
	}
	return s.issue(s.Fresh)
}

// other is another accepted client.
func (s *session) other() (*peer, error) {
	if s.Other == nil {
		return nil, skip("a second accepted client (--other-cert, --other-key)")
	}
	return s.peer(*s.Other, s.OtherDevice)
}
