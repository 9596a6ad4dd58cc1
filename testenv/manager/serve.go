package manager

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
)

// ServeTLS serves the manager by TLS 1.3 with its certificate, to who has a certificate with exactly one URI that leads to one of
// the roots. Without roots clients need no certificate, and have tokens. It returns the URL; the server ends with the test.
func (m *Manager) ServeTLS(t testing.TB, cert tls.Certificate, roots *x509.CertPool) string {
	t.Helper()
	s := httptest.NewUnstartedServer(m)
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}
	if roots != nil {
		s.TLS.ClientAuth = tls.RequireAnyClientCert
		s.TLS.VerifyConnection = func(c tls.ConnectionState) error { return verify(c.PeerCertificates, roots) }
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func verify(chain []*x509.Certificate, roots *x509.CertPool) error {
	if len(chain) == 0 {
		return errors.New("no certificate")
	}
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(o); err != nil {
		return err
	}
	if len(chain[0].URIs) != 1 {
		return fmt.Errorf("%d URIs", len(chain[0].URIs))
	}
	return nil
}
