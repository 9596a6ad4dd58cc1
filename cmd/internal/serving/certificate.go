package serving

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Certificate is a key pair in two files that may be renewed while the program runs.
type Certificate struct {
	cert, key string

	mu     sync.Mutex
	pair   *tls.Certificate
	loaded time.Time // of modification of the certificate's file
}

// NewCertificate loads a certificate chain and its private key, both PEM. An error is a wrong command line.
func NewCertificate(cert, key string) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key}
	if _, err := c.get(nil); err != nil {
		return nil, outcome.Usagef("", "%v", err)
	}
	return c, nil
}

// Config serves TLS 1.2 and newer with the certificate as it is in its files now; of nil it is nil.
func (c *Certificate) Config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

// get loads the files again when the certificate's has changed. When the new pair is no pair (yet), the old one stays.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(c.cert)
	if err == nil && c.pair != nil && info.ModTime().Equal(c.loaded) {
		return c.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	switch {
	case err == nil && info != nil:
		c.pair, c.loaded = &pair, info.ModTime()
	case c.pair == nil:
		return nil, fmt.Errorf("load certificate %s with key %s: %w", c.cert, c.key, err)
	}
	return c.pair, nil
}
