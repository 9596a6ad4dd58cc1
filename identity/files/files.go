// Package files reads the credentials of mutual TLS from files that may be replaced while a program runs. The entry point is [New];
// TestReload holds what happens when new files are damaged.
package files

import (
	"crypto"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
)

// maxPEM bounds a file with certificates or a key, in bytes.
const maxPEM = 256 << 10

// Files are where the credentials are. All are needed, but of Key and Signer one.
type Files struct {
	Cert   string // the SVID and its intermediates, PEM, the leaf first
	Key    string // its private key, PEM; nobody but its owner and group may read it
	Bundle string // trust bundle: SPIFFE's JSON, or PEM

	Signer func() (crypto.Signer, error) // opens a private key that is in no file of PEM, such as one in a TPM; nil: it is in Key
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
	}, log, slices.DeleteFunc([]string{f.Cert, f.Key, f.Bundle}, func(file string) bool { return file == "" })...)}
}

// Credentials implements [identity.Source]: they are as in the files now; where these cannot be used, as they were in them last.
func (s *Source) Credentials() (*identity.Credentials, error) { return s.kept.Get() }

func read(f Files) (*identity.Credentials, error) {
	svid, err := readSVID(f)
	if err != nil {
		return nil, err
	}
	data, err := bounded.File(os.Open, f.Bundle, identity.MaxBundle)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	bundle, err := identity.ParseBundle(f.Bundle, data, svid.Name.TrustDomain)
	if err != nil {
		return nil, err
	}
	return &identity.Credentials{SVID: svid, Bundle: bundle}, nil
}

func readSVID(f Files) (*identity.SVID, error) {
	if f.Signer == nil {
		info, err := os.Stat(f.Key)
		if err != nil {
			return nil, fmt.Errorf("private key: %w", err)
		}
		if mode := info.Mode(); mode.Perm()&0o007 != 0 {
			return nil, fault.WithHint(fmt.Errorf("private key %s: mode %04o, everybody may read it: %w", f.Key, mode.Perm(), fault.ErrConfig), "chmod 600 "+f.Key)
		}
	}
	cert, err := bounded.File(os.Open, f.Cert, maxPEM)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	if f.Signer != nil {
		key, err := f.Signer()
		if err != nil {
			return nil, err
		}
		return identity.ParseSVIDFor(key, f.Cert, cert)
	}
	key, err := bounded.File(os.Open, f.Key, maxPEM)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	return identity.ParseSVID(f.Cert, cert, f.Key, key)
}
