// Package ca is a small authority for one trust domain: it signs X.509-SVIDs of managers and clients. The entry points are [New] and
// [Open]. Who has its key can be anybody in the trust domain; sites with an authority of their own, such as SPIRE, do not need it.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
)

// Lifetimes. A certificate may begin before its authority's own clock says so: clocks differ.
const (
	Lifetime = 10 * 365 * 24 * time.Hour // of the authority
	skew     = 5 * time.Minute
	serial   = 128 // bits
)

// Authority signs certificates of a trust domain.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	bundle      *identity.Bundle
}

// New makes an authority, with a key of its own.
func New(trustDomain string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return NewWith(key, trustDomain, now)
}

// NewWith is [New] with a key that is there, such as in a PKCS#11 token or a key service.
func NewWith(key crypto.Signer, trustDomain string, now time.Time) (*Authority, error) {
	u := &url.URL{Scheme: "spiffe", Host: trustDomain}
	if _, err := identity.ParseName(u.String() + "/margo/wfm/x"); err != nil {
		return nil, fmt.Errorf("trust domain %q: %w", trustDomain, err)
	}
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serial))
	if err != nil {
		return nil, err
	}
	if err := identity.CheckKey(key.Public()); err != nil {
		return nil, fmt.Errorf("make an authority for %s: %w: %w", trustDomain, err, fault.ErrUnsupported)
	}
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: trustDomain, SerialNumber: number.Text(16)}, URIs: []*url.URL{u},
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		NotBefore: now.Add(-skew), NotAfter: now.Add(Lifetime),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make an authority for %s: %w", trustDomain, err)
	}
	return open(der, key)
}

// Open takes an authority from what [Authority.Files] returned.
func Open(cert, key []byte) (*Authority, error) {
	c, _ := pem.Decode(cert)
	k, _ := pem.Decode(key)
	if c == nil || k == nil {
		return nil, fmt.Errorf("authority: certificate and key must be PEM: %w", fault.ErrInvalid)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(k.Bytes)
	private, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("authority: the key is no ECDSA key in PKCS #8: %w", fault.ErrInvalid)
	}
	return open(c.Bytes, private)
}

// OpenWith is [Open] for a private key that is in no file.
func OpenWith(cert []byte, key crypto.Signer) (*Authority, error) {
	c, _ := pem.Decode(cert)
	if c == nil {
		return nil, fmt.Errorf("authority: the certificate must be PEM: %w", fault.ErrInvalid)
	}
	return open(c.Bytes, key)
}

func open(der []byte, key crypto.Signer) (*Authority, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority: %w: %w", fault.ErrInvalid, err)
	}
	if len(c.URIs) != 1 || c.URIs[0].Scheme != "spiffe" {
		return nil, fmt.Errorf("authority: its certificate names no trust domain: %w", fault.ErrInvalid)
	}
	trustDomain := c.URIs[0].Host
	if public, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("authority of %s: the key is not that of the certificate: %w", trustDomain, fault.ErrInvalid)
	}
	b, err := identity.ParseBundle("of the authority", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), trustDomain)
	if err != nil {
		return nil, err
	}
	return &Authority{c, key, b}, nil
}

// Files are the authority's certificate and private key, PEM. There is no key if that is elsewhere.
func (a *Authority) Files() (cert, key []byte, err error) {
	if private, ok := a.key.(*ecdsa.PrivateKey); ok {
		key, err = encodeKey(private)
	}
	return encode(a.certificate), key, err
}

// Bundle is its trust bundle.
func (a *Authority) Bundle() *identity.Bundle { return a.bundle }

// Issue signs an SVID with a new key, for a manager or client of the trust domain.
func (a *Authority) Issue(name identity.Name, now time.Time, lifetime time.Duration) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	c, err := a.Certify(private.Public(), name, now, lifetime)
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(private)
	return encode(c), key, err
}

// Certify signs an SVID for a key whose owner has proved to have it.
func (a *Authority) Certify(public crypto.PublicKey, name identity.Name, now time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	if name.TrustDomain != a.bundle.TrustDomain() {
		return nil, fmt.Errorf("issue %s: the authority is of trust domain %s: %w", name, a.bundle.TrustDomain(), fault.ErrInvalid)
	}
	if err := identity.CheckKey(public); err != nil {
		return nil, fmt.Errorf("issue %s: %w: %w", name, err, fault.ErrUnsupported)
	}
	end := now.Add(lifetime)
	if lifetime <= 0 || end.After(a.certificate.NotAfter) {
		return nil, fmt.Errorf("issue %s: until %s, and the authority's certificate ends at %s: %w", name, end.UTC().Format(time.RFC3339), a.certificate.NotAfter.Format(time.RFC3339), fault.ErrInvalid)
	}
	u, err := url.Parse(name.String())
	if err != nil {
		return nil, err
	}
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serial))
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: number, URIs: []*url.URL{u}, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, NotBefore: now.Add(-skew), NotAfter: end,
	}, a.certificate, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue %s: %w", name, err)
	}
	return x509.ParseCertificate(der)
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func encodeKey(private *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
