package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/discovery"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/workloadapi"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
)

// desired is where desired state comes from, and the repository that states are looked for in.
type desired interface {
	intake.Source
	Repository() string
}

// source is where agent.yaml says that desired state comes from.
func (p *parts) source(cfg *config.Config, clk *clock.Clock, log *slog.Logger) desired {
	if cfg.Source.Manager.URL == "" {
		return states{p.registry, cfg.State}
	}
	client, err := p.manager(cfg, cfg.Source.Manager, clk, log)
	if err != nil { // a file that cannot be read may be there later, and workloads start without it
		log.Error("no new state is looked for until this is corrected and the agent restarted", "err", err)
		name, _ := margo.ManagerName(cfg.Source.Manager.URL) // the configuration was checked
		return broken{states{p.registry, name}, err}
	}
	return manager.NewSource(client, p.registry, cfg.State, p.accepted)
}

// states is a repository of states.
type states struct {
	*registry.Client
	repository string
}

func (s states) Repository() string { return s.repository }

// broken is a manager that cannot be asked because of this device's configuration.
type broken struct {
	states
	err error
}

// EachResolve implements [intake.Source].
func (b broken) EachResolve(context.Context, string, string, func(ocispec.Descriptor) bool) error {
	return fmt.Errorf("%w: %w", fault.ErrConfig, b.err)
}

// accepted is the digest of the accepted state where a manager said so; "": there is none.
func (p *parts) accepted() (d digest.Digest) {
	_ = p.store.View(func(tx *store.Tx) error { // without it the manager sends the whole answer once more
		s, err := tx.State(store.Accepted)
		if s != nil && s.MediaType == artifacts.TypeState {
			d = s.Digest
		}
		return err
	})
	return d
}

// manager opens the connection to a server of the management API; one that is the same is shared.
func (p *parts) manager(cfg *config.Config, e config.Endpoint, clk *clock.Clock, log *slog.Logger) (*manager.Client, error) {
	if c := p.managers[e]; c != nil {
		return c, nil
	}
	own, err := p.identity(cfg, e, clk.Firm, log)
	if err != nil {
		return nil, err
	}
	o := manager.Options{
		URL: e.URL, Device: string(cfg.Device), Epoch: p.store.Epoch(), TokenFile: e.TokenFile, CAFile: e.CAFile,
		UserAgent: "longshore-agent/" + build.Version(), Interval: cfg.Fleet.Interval, Proxy: http.ProxyFromEnvironment,
		Now: clk.Firm, Date: func(t time.Time) { clk.Hint("the manager", t) },
	}
	if own != nil {
		o.TLS = identity.ClientConfig(own, clk.Firm)
	}
	c, err := manager.New(o)
	if err != nil {
		return nil, err
	}
	p.managers[e] = c
	return c, nil
}

// identity is where this device has the credentials from by which it and a manager prove themselves; nil: they do not by certificates.
// A Workload API is shared, and followed while the agent runs.
func (p *parts) identity(cfg *config.Config, e config.Endpoint, now func() time.Time, log *slog.Logger) (identity.Source, error) {
	switch {
	case e.WorkloadAPI != "":
		s := p.svids[e.WorkloadAPI]
		if s == nil {
			var err error
			if s, err = workloadapi.New(workloadapi.Options{Address: e.WorkloadAPI, Now: now, Log: log}); err != nil {
				return nil, err
			}
			p.svids[e.WorkloadAPI] = s
		}
		return s, nil
	case e.CertFile != "":
		return files.New(credentialFiles(cfg, e), now, log), nil
	}
	return nil, nil
}

// followers keep the trust bundles of this device's managers as those publish them. Enrollment brings that of its manager by itself, and
// a Workload API its own.
func followers(cfg *config.Config, now func() time.Time, log *slog.Logger) (out []*discovery.Follower) {
	seen := map[string]bool{"": true}
	if cfg.Enrollment.Interval > 0 {
		seen[cfg.Fleet.TrustBundle] = true
	}
	for _, e := range []config.Endpoint{cfg.Source.Manager, cfg.Fleet.Endpoint} {
		if seen[e.TrustBundle] {
			continue
		}
		seen[e.TrustBundle] = true
		out = append(out, &discovery.Follower{
			URL: e.URL, File: e.TrustBundle, Own: files.New(credentialFiles(cfg, e), now, log), Now: now, Log: log,
			UserAgent: "longshore-agent/" + build.Version(), Proxy: http.ProxyFromEnvironment,
		})
	}
	return out
}

func credentialFiles(cfg *config.Config, e config.Endpoint) files.Files {
	f := files.Files{Cert: e.CertFile, Key: e.KeyFile, Bundle: e.TrustBundle}
	if f.Key == "" {
		f.Signer = deviceSigner(cfg)
	}
	return f
}

// unsigned is a manager to the trust policy: a place without a signature.
type unsigned struct {
	signing.Source
	name string
}

// Name implements [signing.Source].
func (u unsigned) Name() string { return u.name }

// Referrers implements [signing.Source].
func (unsigned) Referrers(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	return nil, nil
}
