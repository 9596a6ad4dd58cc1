package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// SVID is the certificate that one presents, with its private key. It does not change.
type SVID struct {
	Name      Name
	NotBefore time.Time
	NotAfter  time.Time

	pair  tls.Certificate
	chain []*x509.Certificate
}

// ParseSVID reads a certificate with its intermediates, the leaf first, and its private key, all PEM. What a peer would reject
// because of the leaf alone is an error here, but for its dates. Errors never tell anything of the key.
func ParseSVID(certFile string, cert []byte, keyFile string, key []byte) (*SVID, error) {
	fail := func(format string, args ...any) (*SVID, error) {
		return nil, fmt.Errorf("SVID %s with key %s: %w", certFile, keyFile, fmt.Errorf(format, args...))
	}
	chain, err := parseCertificates(cert)
	if err != nil {
		return fail("%w: %w", fault.ErrInvalid, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fail("%w: %w", fault.ErrInvalid, err)
	}
	return newSVID(certFile, chain, pair)
}

// ParseSVIDFor is [ParseSVID] for a private key that is in no file, such as one in a TPM.
func ParseSVIDFor(key crypto.Signer, certFile string, cert []byte) (*SVID, error) {
	chain, err := parseCertificates(cert)
	if err != nil {
		return nil, fmt.Errorf("SVID %s: %w: %w", certFile, fault.ErrInvalid, err)
	}
	return NewSVID(key, certFile, chain)
}

// CertificateName is whose a certificate is, the first of those in PEM. Nothing is verified.
func CertificateName(file string, cert []byte) (Name, error) {
	chain, err := parseCertificates(cert)
	if err != nil {
		return Name{}, fmt.Errorf("certificate %s: %w: %w", file, fault.ErrInvalid, err)
	}
	return checkLeaf(chain[0])
}

// Lifetime is from when to when a certificate is valid, the first of those in PEM.
func Lifetime(file string, cert []byte) (from, to time.Time, err error) {
	chain, err := parseCertificates(cert)
	if err != nil {
		return from, to, fmt.Errorf("certificate %s: %w: %w", file, fault.ErrInvalid, err)
	}
	return chain[0].NotBefore, chain[0].NotAfter, nil
}

// NewSVID makes an SVID of a certificate with its intermediates, the leaf first, and its private key. from names it in errors.
func NewSVID(key crypto.Signer, from string, chain []*x509.Certificate) (*SVID, error) {
	if len(chain) == 0 {
		return nil, fmt.Errorf("SVID %s: no certificate: %w", from, fault.ErrInvalid)
	}
	if public, ok := chain[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("SVID %s: the certificate is of another key: %w", from, fault.ErrInvalid)
	}
	pair := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	return newSVID(from, chain, pair)
}

func newSVID(from string, chain []*x509.Certificate, pair tls.Certificate) (*SVID, error) {
	leaf := chain[0]
	name, err := checkLeaf(leaf)
	if err != nil {
		return nil, fmt.Errorf("SVID %s: %w", from, err)
	}
	pair.Leaf = leaf
	return &SVID{Name: name, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, pair: pair, chain: chain}, nil
}

// Fingerprint identifies a public key: the SHA-256 digest of its PKIX form (SubjectPublicKeyInfo, DER).
func Fingerprint(public crypto.PublicKey) (digest.Digest, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("fingerprint of a key: %w: %w", fault.ErrInvalid, err)
	}
	return digest.FromBytes(der), nil
}

// Credentials are what one side of a connection has: its own SVID, and the trust anchors of its trust domain.
type Credentials struct {
	SVID   *SVID
	Bundle *Bundle
}

// Source gives the credentials as they are now. It is asked at every handshake and every request, and has to be quick.
type Source interface {
	Credentials() (*Credentials, error)
}

// Credentials implements [Source] with credentials that stay.
func (c *Credentials) Credentials() (*Credentials, error) { return c, nil }

// Check tells what a peer would reject: an SVID that is not valid at a time, or that the bundle does not vouch for.
func (c *Credentials) Check(now time.Time) error {
	if _, err := c.Bundle.verify(c.SVID.chain, now); err != nil {
		return fmt.Errorf("own certificate: %w", err)
	}
	return nil
}

// Leaf is the certificate of the SVID itself.
func (s *SVID) Leaf() *x509.Certificate { return s.chain[0] }
