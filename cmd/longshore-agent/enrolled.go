package main

import (
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/wipe"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/signing/token"
)

// keeping is the enrollment of a running device.
type keeping struct {
	cfg    *config.Config
	dir    enroll.Dir
	source *files.Source
	now    func() time.Time
	log    *slog.Logger
	wipe   bool // the manager asks for it, and the configuration permits it
}

// keepEnrolled renews the certificate of an enrolled device until ctx ends, or until the manager has removed the device and asks for a
// wipe: it returns true then.
func keepEnrolled(ctx context.Context, cfg *config.Config, now func() time.Time, log *slog.Logger) (wipe bool) {
	if cfg.Enrollment.Interval == 0 {
		return false
	}
	k := &keeping{cfg: cfg, dir: ownDir(cfg), source: files.New(credentialFiles(cfg, cfg.Fleet.Endpoint), now, log), now: now, log: log}
	(&enroll.Keeper{
		Ask: k.ask, Take: k.take, Removed: k.removed, Every: cfg.Enrollment.Interval, Now: now, Log: log,
		Lifetime: func() (time.Time, time.Time, error) { return enroll.Lifetime(cfg.Fleet.CertFile) },
	}).Run(ctx)
	return k.wipe
}

// ownDir is where an enrolled device has what its manager sent; "": it was not enrolled.
func ownDir(cfg *config.Config) enroll.Dir {
	if cfg.Enrollment.Interval == 0 {
		return ""
	}
	return enroll.Dir(filepath.Dir(cfg.Fleet.CertFile))
}

// ask asks by mutual TLS with the device's certificate. Where that cannot be used, because it has expired after a long time without
// the manager, the device proves its key alone, as when it was enrolled.
func (k *keeping) ask(ctx context.Context, renew bool) (enroll.Answer, error) {
	key, err := deviceSigner(k.cfg)()
	if err != nil {
		return enroll.Answer{}, err
	}
	request := enroll.Request{Check: !renew, Device: string(k.cfg.Device), About: enroll.About{Agent: build.Version()}}
	if renew {
		r, err := enroll.NewRequest(key)
		if err != nil {
			return enroll.Answer{}, err
		}
		request.CSR = r.CSR
	}
	o := enroll.Options{URL: k.cfg.Fleet.URL, Now: k.now, UserAgent: "longshore-agent/" + build.Version(), Proxy: http.ProxyFromEnvironment}
	own, err := k.source.Credentials()
	if err == nil && own.Check(k.now()) == nil {
		o.Enrolled = k.source
	} else if o.Key, err = key, k.trust(&o.Trust); err != nil {
		return enroll.Answer{}, err
	}
	client, err := enroll.New(o)
	if err != nil {
		return enroll.Answer{}, err
	}
	defer client.Close()
	return client.Ask(ctx, request)
}

// manager is the manager of the saved certificate, whatever its dates are.
func (k *keeping) manager() (identity.Name, error) {
	cert, err := bounded.File(os.Open, k.cfg.Fleet.CertFile, enroll.MaxAnswer)
	if err != nil {
		return identity.Name{}, err
	}
	name, err := identity.CertificateName(k.cfg.Fleet.CertFile, cert)
	return name.ManagerName(), err
}

// trust is how the manager is authenticated without a certificate that is valid.
func (k *keeping) trust(t *enroll.Trust) error {
	manager, err := k.manager()
	if err != nil {
		return err
	}
	t.Manager = manager.String()
	t.Anchors, err = bounded.File(os.Open, k.cfg.Fleet.TrustBundle, identity.MaxBundle)
	return err
}

// take saves a new certificate, a new trust bundle, or both.
func (k *keeping) take(a enroll.Answer) error {
	manager, err := k.manager()
	if err != nil {
		return err
	}
	if a.Grant == nil {
		return enroll.SaveBundle(k.cfg.Fleet.TrustBundle, a.TrustBundle, k.source, k.now())
	}
	key, err := deviceSigner(k.cfg)()
	if err != nil {
		return err
	}
	if _, err := a.Grant.Check(enroll.Expected{Key: key, Device: string(k.cfg.Device), Manager: manager, Now: k.now()}); err != nil {
		return err
	}
	return k.dir.Save(a.Grant)
}

func (k *keeping) removed(a enroll.Answer) (over bool) {
	if a.Wipe && k.cfg.Enrollment.AllowWipe {
		k.log.Warn("the manager has removed this device and asks it to delete everything")
		k.wipe = true
		return true
	}
	k.log.Error("the manager has removed this device: it gets nothing new; what was accepted runs on", "wipe", a.Wipe,
		"hint", "stop the agent, or enroll the device again: longshore-agent enroll --force")
	return false
}

// deviceSigner opens the device's own key.
func deviceSigner(cfg *config.Config) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) {
		key, err := keyPlace(cfg).Load()
		if err != nil { // a nil pointer would be a key
			return nil, fmt.Errorf("device key: %w", err)
		}
		return key, nil
	}
}

// wipeDevice deletes what this device has: credentials first, then applications with their data, the agent's data and its
// configuration. It goes on until that is done or ctx ends, and closes the parts.
func wipeDevice(ctx context.Context, cfg *config.Config, p *parts, log *slog.Logger) error {
	if err := wipe.Begin(cfg.DataDir); err != nil {
		return err
	}
	ro := registryOptions(cfg)
	key, _ := token.Parse(cfg.Report.Token) // empty: the key is in no token
	d := wipe.Device{
		Credentials: []string{
			cfg.Report.KeyFile, key.PINFile, cfg.Report.AuthFile, cfg.Registry.AuthFile, cfg.Registry.KeyFile, cfg.Fleet.TokenFile, cfg.Fleet.KeyFile, cfg.Fleet.CertFile,
			cfg.Source.Manager.TokenFile, cfg.Source.Manager.KeyFile, cfg.Source.Manager.CertFile, ro.AuthFile,
		},
		RunDir: cfg.RunDir, DataDir: cfg.DataDir,
		Configuration: []string{
			strings.TrimSuffix(cfg.Report.KeyFile, ".key") + ".pub", cfg.Trust, filepath.Join(filepath.Dir(cfg.Trust), artifacts.TrustedRootFile), cfg.File,
		},
	}
	release := func() error {
		err := p.close()
		*p = parts{}
		return err
	}
	if err := d.Wipe(ctx, p.runtime, release, log); err != nil {
		return err
	}
	log.Info("the device is wiped: it has no configuration, no applications and no data; stop the agent")
	<-ctx.Done() // it would be started again, and again
	return nil
}
