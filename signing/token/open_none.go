//go:build !cgo

package token

import (
	"crypto"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Built reports whether this build can load PKCS#11 modules.
const Built = false

// Token is a token that is open. This build has none.
type Token struct{}

// Open reports what this build lacks.
func Open(u URI, _ string) (*Token, error) {
	err := fmt.Errorf("key %s: %w: this program is built without cgo and cannot load PKCS#11 modules, which are C libraries", u, fault.ErrUnsupported)
	return nil, fault.WithHint(err, "build it with CGO_ENABLED=1 on a machine like this one")
}

// Key finds nothing.
func (*Token) Key(u URI) (crypto.Signer, error) {
	return nil, fmt.Errorf("key %s: %w", u, fault.ErrUnsupported)
}

// Create creates nothing.
func (t *Token) Create(u URI) (crypto.Signer, error) { return t.Key(u) }

// Close implements io.Closer.
func (*Token) Close() error { return nil }
