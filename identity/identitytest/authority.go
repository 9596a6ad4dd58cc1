// Package identitytest makes certificates for tests of mutual TLS: right ones, and every kind of wrong one.
package identitytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// New makes an authority with a certificate of its own.
func New(t testing.TB) *Authority {
	t.Helper()
	return sign(t, nil, NewKey(t), authority("test authority"))
}

// Intermediate makes an authority below this one.
func (a *Authority) Intermediate(t testing.TB) *Authority {
	t.Helper()
	return sign(t, a, NewKey(t), authority("test intermediate"))
}

func authority(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
	}
}

func sign(t testing.TB, by *Authority, key crypto.Signer, template *x509.Certificate) *Authority {
	t.Helper()
	parent, signer := template, key
	if by != nil {
		parent, signer = by.Certificate, by.Key
	}
	if template.SerialNumber == nil {
		template.SerialNumber = big.NewInt(time.Now().UnixNano())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{Certificate: c, Key: key}
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return certificates(a.Certificate) }

// Pair is a certificate, with its intermediates, and its key; all PEM.
type Pair struct{ Cert, Key []byte }

// Issue signs a good SVID of an id that is valid for an hour; edit, which may be nil, makes it a wrong one.
func (a *Authority) Issue(t testing.TB, id string, edit func(*x509.Certificate)) Pair {
	t.Helper()
	return a.IssueKey(t, NewKey(t), id, edit)
}

// IssueKey is Issue for a key. Where the authority is an intermediate one, its certificate is part of the pair.
func (a *Authority) IssueKey(t testing.TB, key crypto.Signer, id string, edit func(*x509.Certificate)) Pair {
	t.Helper()
	u, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, URIs: []*url.URL{u}, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotBefore:   time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}
	if edit != nil {
		edit(template)
	}
	leaf := sign(t, a, key, template)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := []*x509.Certificate{leaf.Certificate}
	if string(a.Certificate.RawIssuer) != string(a.Certificate.RawSubject) {
		chain = append(chain, a.Certificate)
	}
	return Pair{certificates(chain...), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}
}

// Write puts the pair into a directory, as NAME.crt and NAME.key.
func (p Pair) Write(t testing.TB, dir, name string) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	Write(t, cert, p.Cert)
	Write(t, key, p.Key)
	return cert, key
}

// Write writes a file that only its owner reads, in the place of one that is there.
func Write(t testing.TB, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// NewKey makes a key of the kind that everybody has to know.
func NewKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func certificates(all ...*x509.Certificate) (out []byte) {
	for _, c := range all {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}
