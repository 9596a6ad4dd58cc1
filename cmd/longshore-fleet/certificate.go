package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// certificate is a key pair in two files that may be renewed while the program runs.
type certificate struct {
	cert, key string

	mu     sync.Mutex
	pair   *tls.Certificate
	loaded time.Time // of modification of the certificate's file
}

func newCertificate(cert, key string) (*certificate, error) {
	c := &certificate{cert: cert, key: key}
	if _, err := c.get(nil); err != nil {
		return nil, outcome.Usagef("", "%v", err)
	}
	return c, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

// get loads the files again when the certificate's has changed. When the new pair is no pair (yet), the old one stays.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
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
