//go:build !cgo

package remotekey

import (
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// HasPKCS11 tells whether this build can load PKCS#11 modules.
const HasPKCS11 = false

func openPKCS11(u pkcs11URI, _ Options) (Key, error) {
	err := fmt.Errorf("key %s: %w: this longshore is built without cgo and cannot load PKCS#11 modules, which are C libraries", u, fault.ErrUnsupported)
	return nil, fault.WithHint(err, "build it with CGO_ENABLED=1 on a machine like this one, or put a sigstore-kms-NAME program into the PATH and use --key NAME://…")
}
