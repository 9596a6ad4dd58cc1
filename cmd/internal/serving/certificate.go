package serving

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/identity/files"
)

// Certificate is TLS 1.2 and newer with a certificate chain and its private key, both PEM, that may be renewed while the program runs: see
// [files.Kept]. An error is a wrong command line.
func Certificate(cert, key string, log *slog.Logger) (*tls.Config, error) {
	pair := files.Keep(func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			err = fmt.Errorf("load certificate %s with key %s: %w", cert, key, err)
		}
		return &pair, err
	}, log, cert, key)
	if _, err := pair.Get(); err != nil {
		return nil, outcome.Usagef("", "%v", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get() }}, nil
}
