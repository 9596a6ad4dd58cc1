package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/enroll"
	"github.com/longshore-dev/longshore/fleet/enroll/harbor"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/ca"
	protocol "github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/signing/sign/remotekey"
	"github.com/longshore-dev/longshore/signing/trust"
)

// Limits of the files that enroll.yaml names, in bytes.
const (
	maxSettings = 1 << 20
	maxSecret   = 4 << 10
)

// enrollment is how this manager enrolls devices.
type enrollment struct {
	file      string            // enroll.yaml
	serves    bool              // desired state
	key       *remotekey.Signer // nil: it is in ca.key
	authority *ca.Authority
	manager   identity.Source
	service   *enroll.Service
	log       *slog.Logger
}

// enrollment reads the settings. manager is the manager's own identity; nil: it is issued by the authority of the settings. serves: this
// server has desired state for devices.
func newEnrollment(ctx context.Context, file string, manager identity.Source, serves bool, log *slog.Logger) (_ *enrollment, err error) {
	e := &enrollment{file: file, manager: manager, serves: serves, log: log}
	policy, err := e.policy()
	if err != nil {
		return nil, err
	}
	at := policy.Settings.Authority
	if e.key, err = openCAKey(ctx, at.Key, at.KeyPassword); err != nil {
		return nil, fmt.Errorf("%s: authority.key: %w", file, err)
	}
	defer func() {
		if err != nil {
			closeCAKey(e.key)
		}
	}()
	if e.authority, err = authorityOf(at, e.key, log); err != nil {
		return nil, err
	}
	if manager == nil {
		name, err := identity.ParseName(identity.Name{TrustDomain: e.authority.Bundle().TrustDomain(), Manager: at.Manager}.String())
		if err != nil {
			return nil, fmt.Errorf("%s: authority.manager: %w", file, err)
		}
		if e.manager, err = e.authority.Manager(name, time.Now); err != nil {
			return nil, err
		}
	}
	return e, e.agree()
}

// agree checks that what the authority signs leads to the trust bundle that devices get.
func (e *enrollment) agree() error {
	own, err := e.manager.Credentials()
	if err != nil {
		return err
	}
	want, err := protocol.ManagerFingerprint(e.authority.Bundle())
	if err != nil {
		return err
	}
	for _, c := range own.Bundle.Anchors() {
		if f, err := identity.Fingerprint(c.PublicKey); err == nil && f == want && own.Bundle.TrustDomain() == e.authority.Bundle().TrustDomain() {
			return nil
		}
	}
	return fault.WithHint(fmt.Errorf("%s: the authority of %s is not in the trust bundle of this manager: %w", e.file, e.authority.Bundle().TrustDomain(), fault.ErrConfig),
		"add its certificate to the file of --trust-bundle; or leave --svid-cert, --svid-key, --trust-bundle and --workload-api out")
}

// authority opens the authority of a directory, or creates it where the settings say so.
func authorityOf(at enroll.Authority, key *remotekey.Signer, log *slog.Logger) (*ca.Authority, error) {
	a, err := openAuthority(at.Dir, key)
	if !errors.Is(err, fs.ErrNotExist) || at.TrustDomain == "" {
		if err == nil && at.TrustDomain != "" && at.TrustDomain != a.Bundle().TrustDomain() {
			err = fmt.Errorf("the authority in %s is of trust domain %s, and authority.trustDomain is %s: %w", at.Dir, a.Bundle().TrustDomain(), at.TrustDomain, fault.ErrConfig)
		}
		return a, err
	}
	if a, err = newAuthority(key, at.TrustDomain); err != nil {
		return nil, err
	}
	log.Info("authority created", "trustDomain", at.TrustDomain, "dir", at.Dir)
	return a, writeAuthority(at.Dir, a)
}

// open connects the service with the database.
func (e *enrollment) open(db store.Enrollments) {
	e.service = enroll.New(enroll.Options{Store: db, Policy: e.policy, Authority: e.authority, Manager: e.manager, Now: time.Now, Logger: e.log})
}

// announce reads who is enrolled, and logs by what devices authenticate this manager.
func (e *enrollment) announce(ctx context.Context, log *slog.Logger) error {
	if err := e.service.Start(ctx); err != nil {
		return err
	}
	own, err := e.manager.Credentials()
	if err != nil {
		return err
	}
	fingerprint, err := protocol.ManagerFingerprint(e.authority.Bundle())
	if err != nil {
		return err
	}
	log.Info("devices are enrolled", "manager", own.SVID.Name.String(), "fingerprint", fingerprint)
	return nil
}

// policy reads what devices receive. The files are read for each of them.
func (e *enrollment) policy() (*enroll.Policy, error) {
	data, err := bounded.File(os.Open, e.file, maxSettings)
	if err != nil {
		return nil, err
	}
	s, err := enroll.ParseSettings(e.file, data)
	if err != nil {
		return nil, err
	}
	p := &enroll.Policy{Settings: s}
	at := func(key string, err error) error { return fmt.Errorf("%s: %s: %w", e.file, key, err) }
	if s.Margo && !e.serves {
		return nil, fault.WithHint(at("source.margo", fmt.Errorf("this server serves no desired state: %w", fault.ErrConfig)), "start it with --state HOST/PATH, the repository of the states")
	}
	if s.Trust != "" {
		if p.Trust, err = readTrust(s.Trust); err != nil {
			return nil, at("trust", err)
		}
	}
	if s.CAFile != "" {
		pem, err := bounded.File(os.Open, s.CAFile, maxSettings)
		if err != nil {
			return nil, at("registry.caFile", err)
		}
		p.CA = string(pem)
	}
	switch {
	case s.Login != nil:
		password, err := readPassword(s.Login.PasswordFile)
		if err != nil {
			return nil, at("registry.login", err)
		}
		p.Pull = enroll.Shared{Host: s.Host(), Username: s.Login.Username, Password: password}
	case s.Harbor != nil:
		if p.Pull, err = openHarbor(s); err != nil {
			return nil, at("registry.harbor", err)
		}
	}
	return p, nil
}

func openHarbor(s *enroll.Settings) (*harbor.Project, error) {
	password, err := readPassword(s.Harbor.PasswordFile)
	if err != nil {
		return nil, err
	}
	o := harbor.Options{URL: s.Harbor.URL, Host: s.Host(), Name: s.Harbor.Project, Username: s.Harbor.Username, Password: password, Proxy: http.ProxyFromEnvironment}
	if file := cmp.Or(s.Harbor.CAFile, s.CAFile); file != "" {
		if o.CA, err = bounded.File(os.Open, file, maxSettings); err != nil {
			return nil, err
		}
	}
	return harbor.New(o)
}

// readTrust reads the trust policy, with what it names inside it.
func readTrust(file string) (*protocol.Trusted, error) {
	data, err := bounded.File(os.Open, file, maxSettings)
	if err != nil {
		return nil, err
	}
	document, root, err := trust.Inline(file, data, func(path string) ([]byte, error) { return bounded.File(os.Open, path, trust.MaxFileBytes) })
	if err != nil {
		return nil, err
	}
	return &protocol.Trusted{Digest: digest.FromBytes(document), Document: string(document), Root: string(root)}, nil
}

func readPassword(file string) (string, error) {
	data, err := bounded.File(os.Open, file, maxSecret)
	if err != nil {
		return "", err
	}
	password := strings.TrimSpace(string(data))
	if password == "" {
		return "", fmt.Errorf("password file %s is empty: %w", file, fault.ErrConfig)
	}
	return password, nil
}

// openAuthority opens an authority whose key is in its directory, or elsewhere.
func openAuthority(dir string, key *remotekey.Signer) (*ca.Authority, error) {
	cert, err := bounded.File(os.Open, filepath.Join(dir, caCert), maxCAFiles)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("read the authority: %w", err), "create one: longshore-fleet ca init")
	}
	if key != nil {
		return ca.OpenWith(cert, key)
	}
	private, err := bounded.File(os.Open, filepath.Join(dir, caKey), maxCAFiles)
	if errors.Is(err, fs.ErrNotExist) { // not as if there were no authority: none is made in its place
		return nil, fault.WithHint(fmt.Errorf("read the authority: %s has no %s: %w", dir, caKey, fault.ErrConfig),
			"if the key is in a token or a key service, say where: --key, or authority.key in enroll.yaml; else restore the file")
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	return ca.Open(cert, private)
}

// writeAuthority writes a new authority, and never in the place of one. The certificate is the last file: without it there is none.
func writeAuthority(dir string, a *ca.Authority) error {
	cert, key, err := a.Files()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{caKey, caCert} {
		file := filepath.Join(dir, name)
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(fmt.Errorf("create an authority: %s: %w", file, cmp.Or(err, fs.ErrExist)), "the directory has one already; name another one")
		}
	}
	if err := files.Write(filepath.Join(dir, caBundle), append(a.Bundle().JSON(), '\n'), 0o644); err != nil {
		return err
	}
	if key != nil {
		if err := files.WriteNew(filepath.Join(dir, caKey), key, 0o600); err != nil {
			return err
		}
	}
	return files.WriteNew(filepath.Join(dir, caCert), cert, 0o644)
}
