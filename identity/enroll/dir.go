package enroll

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/files"
)

// Dir is the directory of what a device received, only for the user of the agent.
type Dir string

// Files in a [Dir].
func (d Dir) Certificate() string { return filepath.Join(string(d), "device.crt") } // X.509-SVID with intermediates
func (d Dir) Bundle() string      { return filepath.Join(string(d), "bundle.json") }
func (d Dir) Logins() string      { return filepath.Join(string(d), "registry.json") }   // in Docker's format
func (d Dir) RegistryCA() string  { return filepath.Join(string(d), "registry-ca.crt") } // of registries

// Expected is what a grant must agree with.
type Expected struct {
	Key     crypto.Signer
	Device  string        // "": whatever the manager decided
	Manager identity.Name // that was authenticated
	Now     time.Time
}

// Check verifies a grant: its certificate is for the key, the device and the manager, and leads to its trust bundle now.
func (g *Grant) Check(e Expected) (*identity.Credentials, error) {
	svid, err := identity.ParseSVIDFor(e.Key, "from the manager", []byte(g.Certificate))
	if err != nil {
		return nil, err
	}
	bundle, err := identity.ParseBundle("from the manager", g.TrustBundle, e.Manager.TrustDomain)
	if err != nil {
		return nil, err
	}
	c := &identity.Credentials{SVID: svid, Bundle: bundle}
	switch {
	case svid.Name.ManagerName() != e.Manager:
		return nil, fmt.Errorf("the certificate is for %s, and the manager is %s: %w", svid.Name, e.Manager, fault.ErrInvalid)
	case svid.Name.Client == "":
		return nil, fmt.Errorf("the certificate is for the manager %s and not for a device: %w", svid.Name, fault.ErrInvalid)
	case e.Device != "" && svid.Name.Client != e.Device:
		return nil, fault.WithHint(fmt.Errorf("the manager approved this device as %s, and not as %s: %w", svid.Name.Client, e.Device, fault.ErrConflict),
			"enroll it with --device "+svid.Name.Client+"; or remove it at the manager and approve it as "+e.Device)
	}
	if err := c.Check(e.Now); err != nil {
		return nil, fault.WithHint(fmt.Errorf("the certificate from the manager: %w", err), "compare the clocks of this device and of the manager; set the wrong one and try again")
	}
	return c, nil
}

// Save writes the files of a grant that was checked. Each is whole after a power cut, and the certificate is the last: what the agent
// reads stays usable in between.
func (d Dir) Save(g *Grant) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	auths := map[string]any{}
	for _, l := range g.Registries {
		auths[l.Host] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(l.Username + ":" + l.Password))}
	}
	logins, err := json.MarshalIndent(map[string]any{"auths": auths}, "", "  ")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{d.Bundle(), g.TrustBundle}, {d.Logins(), logins}, {d.RegistryCA(), []byte(g.RegistryCA)}, {d.Certificate(), []byte(g.Certificate)}} {
		if len(f.data) == 0 { // authorities that the manager does not name any more
			if err := os.Remove(f.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("save what the manager sent: %w", err)
			}
			continue
		}
		if err := files.Write(f.name, f.data, 0o600); err != nil {
			return fmt.Errorf("save what the manager sent: %w", err)
		}
	}
	return nil
}

// Lifetime is from when to when a saved certificate is valid.
func Lifetime(file string) (from, to time.Time, err error) {
	data, err := bounded.File(os.Open, file, MaxAnswer)
	if err != nil {
		return from, to, err
	}
	return identity.Lifetime(file, data)
}

// SaveBundle writes a trust bundle that an authenticated manager sent, if it is another one than before. One that the device's own
// certificate does not lead to is an error: the device would lose its manager.
func SaveBundle(file string, bundle []byte, own identity.Source, now time.Time) error {
	before, err := bounded.File(os.Open, file, identity.MaxBundle)
	if err != nil || len(bundle) == 0 || bytes.Equal(bytes.TrimSpace(before), bytes.TrimSpace(bundle)) {
		return err
	}
	c, err := own.Credentials()
	if err != nil {
		return err
	}
	next, err := identity.ParseBundle("from the manager", bundle, c.SVID.Name.TrustDomain)
	if err != nil {
		return err
	}
	if err := (&identity.Credentials{SVID: c.SVID, Bundle: next}).Check(now); err != nil {
		return fmt.Errorf("trust bundle from the manager: %w", err)
	}
	return files.Write(file, bundle, 0o600)
}
