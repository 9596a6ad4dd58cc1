package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity/files"
)

// maxAuthorities bounds a file of certificates.
const maxAuthorities = 1 << 20

// telemetry is where containers send measurements. They get a copy of the collector's authorities that stays: one of them that cannot
// be read or is gone must not keep a container from starting.
func telemetry(cfg *config.Config, log *slog.Logger) runspec.Telemetry {
	o := cfg.OTLP
	out := runspec.Telemetry{Endpoint: o.Endpoint, GRPCEndpoint: o.GRPCEndpoint, Protocol: o.Protocol}
	if o.CAFile == "" {
		return out
	}
	kept := filepath.Join(cfg.DataDir, "otlp-ca.crt")
	data, err := authorities(o.CAFile)
	if err == nil {
		err = files.Write(kept, data, 0o644)
	}
	if err != nil {
		log.Error("containers do not get the present authorities of the collector: correct this, then restart the agent", "key", "observability.otlp.caFile", "err", err)
		if _, err := os.Stat(kept); errors.Is(err, fs.ErrNotExist) {
			return out
		}
	}
	if out.Certificate, err = filepath.Abs(kept); err != nil {
		out.Certificate = ""
	}
	return out
}

// authorities reads certificates.
func authorities(file string) ([]byte, error) {
	data, err := bounded.File(os.Open, file, maxAuthorities)
	if err != nil {
		return nil, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return nil, fault.WithHint(fmt.Errorf("%s has no certificate in PEM: %w", file, fault.ErrInvalid), "name a file with the certificates of the collector's CA")
	}
	return data, nil
}
