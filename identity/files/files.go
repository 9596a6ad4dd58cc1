// Package files reads the credentials of mutual TLS from files that may be replaced while a program runs. The entry point is [New];
// TestReload holds what happens when new files are damaged.
package files

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
)

// maxPEM bounds a file with certificates or a key, in bytes.
const maxPEM = 256 << 10

// Files are where the credentials are. All are needed.
type Files struct {
	Cert   string // the SVID and its intermediates, PEM, the leaf first
	Key    string // its private key, PEM; nobody but its owner and group may read it
	Bundle string // trust bundle: SPIFFE's JSON, or PEM
}

// Source reads credentials. It implements [identity.Source], is safe for concurrent use and needs no end.
type Source struct{ kept *Kept[*identity.Credentials] }

var _ identity.Source = (*Source)(nil)

// New reads nothing yet: the first call of Credentials does. now is what dates are held against.
func New(f Files, now func() time.Time, log *slog.Logger) *Source {
	return &Source{Keep(func() (*identity.Credentials, error) {
		c, err := read(f)
		if err == nil {
			err = c.Check(now())
		}
		if err != nil {
			return nil, err
		}
		log.Info("certificate read", "file", f.Cert, "id", c.SVID.Name.String(), "notAfter", c.SVID.NotAfter, "anchors", len(c.Bundle.Anchors()))
		return c, nil
	}, log, f.Cert, f.Key, f.Bundle)}
}

// Credentials implements [identity.Source]: they are as in the files now; where these cannot be used, as they were in them last.
func (s *Source) Credentials() (*identity.Credentials, error) { return s.kept.Get() }

func read(f Files) (*identity.Credentials, error) {
	info, err := os.Stat(f.Key)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	if mode := info.Mode(); mode.Perm()&0o007 != 0 {
		return nil, fault.WithHint(fmt.Errorf("private key %s: mode %04o, everybody may read it: %w", f.Key, mode.Perm(), fault.ErrConfig), "chmod 600 "+f.Key)
	}
	var data [3][]byte
	for i, file := range []string{f.Cert, f.Key, f.Bundle} {
		limit := int64(maxPEM)
		if i == 2 {
			limit = identity.MaxBundle
		}
		if data[i], err = bounded.File(os.Open, file, limit); err != nil {
			return nil, fmt.Errorf("read credentials: %w", err)
		}
	}
	svid, err := identity.ParseSVID(f.Cert, data[0], f.Key, data[1])
	if err != nil {
		return nil, err
	}
	bundle, err := identity.ParseBundle(f.Bundle, data[2], svid.Name.TrustDomain)
	if err != nil {
		return nil, err
	}
	return &identity.Credentials{SVID: svid, Bundle: bundle}, nil
}
