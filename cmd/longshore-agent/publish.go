package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/agent/report"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
)

// publisher puts the current state into the registry, as agent.yaml says; nil: it does not say so. o is how the registry of the
// states is reached. A slip in the key or in a file must not keep workloads from starting: it is shown in the status.
func (p *parts) publisher(cfg *config.Config, o registry.Options, log *slog.Logger) currentstate.Publisher {
	if !cfg.Report.Registry {
		return nil
	}
	out := report.Registry{Reference: cfg.Report.Repository + ":" + artifacts.CurrentTag(cfg.Device.Tag())}
	var err error
	if out.Push, err = p.pushes(cfg, o); err != nil {
		log.Error("reports are not pushed to the registry: correct this, then restart the agent", "err", err)
		err = fmt.Errorf("%w: %w", err, fault.ErrTemporary)
		out.Sign = func([]byte) ([]byte, error) { return nil, err }
		return out
	}
	var key *report.Key
	load := func() error { // until it succeeds: a TPM or a token may come late in a boot, or be busy
		if key != nil {
			return nil
		}
		var made bool
		var err error
		if key, made, err = keyPlace(cfg).Make(); err != nil {
			return fmt.Errorf("%w: %w", err, fault.ErrTemporary)
		}
		if made {
			log.Info("created the device's key", "public", key.PublicFile)
		}
		return nil
	}
	if cfg.Report.TPM+cfg.Report.Token == "" { // hardware is not waited for: workloads start after this
		if err := load(); err != nil {
			log.Error("reports are not pushed to the registry until this is corrected", "err", err)
		}
	}
	out.Sign = func(statement []byte) ([]byte, error) {
		if err := load(); err != nil {
			return nil, err
		}
		bundle, err := signing.SignStatement(statement, key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, fault.ErrTemporary)
		}
		return bundle, nil
	}
	return out
}

func keyPlace(cfg *config.Config) report.Place {
	return report.Place{File: cfg.Report.KeyFile, TPM: cfg.Report.TPM, Token: cfg.Report.Token}
}

// pushes opens the repository of the reports, with credentials of its own where there are some.
func (p *parts) pushes(cfg *config.Config, o registry.Options) (func(context.Context, *artifacts.Artifact) error, error) {
	client := p.registry
	if cfg.Report.AuthFile != "" {
		o.AuthFile = cfg.Report.AuthFile
		o.Host, _, _ = strings.Cut(cfg.Report.Repository, "/")
		var err error
		if client, err = registry.New(o); err != nil {
			return nil, err
		}
		p.reports = client
	}
	repo, err := client.OpenName(context.Background(), cfg.Report.Repository)
	if err != nil {
		return nil, err
	}
	tag := artifacts.CurrentTag(cfg.Device.Tag())
	return func(ctx context.Context, a *artifacts.Artifact) error {
		_, err := release.Publish(ctx, repo, a, release.PublishOptions{Tags: []string{tag}})
		return err
	}, nil
}

// bootID is the UUID that the kernel gives each boot; "" where it does not.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
