package identity

import (
	"crypto/tls"
	"time"
)

// ServerConfig is TLS as a manager speaks it: 1.3, with the SVID of the source, and only with its own clients. A handshake without
// a certificate, or with another one, fails. The application checks the peer again with [Credentials.VerifyClient] at each request:
// a connection outlives certificates and trust bundles.
func ServerConfig(s Source, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequestClientCert, // required and verified below, by SPIFFE's rules
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own(s) },
		VerifyConnection: func(state tls.ConnectionState) error { // of resumed sessions too, other than VerifyPeerCertificate
			c, err := s.Credentials()
			if err == nil {
				_, err = c.VerifyClient(state.PeerCertificates, now())
			}
			return err
		},
	}
}

// ClientConfig is TLS as a client speaks it: 1.3, with the SVID of the source, and only with the manager that this SVID names.
func ClientConfig(s Source, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		InsecureSkipVerify:   true, // the name of the host does not count: VerifyConnection checks the SVID
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own(s) },
		VerifyConnection: func(state tls.ConnectionState) error {
			c, err := s.Credentials()
			if err == nil {
				err = c.VerifyManager(state.PeerCertificates, now())
			}
			return err
		},
	}
}

// own is the certificate of this side.
func own(s Source) (*tls.Certificate, error) {
	c, err := s.Credentials()
	if err != nil {
		return nil, err
	}
	return &c.SVID.pair, nil
}
