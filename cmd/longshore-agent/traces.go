package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/trace"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
)

// tracer makes what sends traces of the agent, before the agent runs; nil: the environment and agent.yaml name no collector, or what
// they name cannot be used, which keeps nothing else from running.
func tracer(cfg *config.Config, st *store.Store, getenv func(string) string, log *slog.Logger) *trace.Tracer {
	t, err := newTracer(cfg, st, getenv, log)
	if err != nil {
		log.Error("no traces are sent: correct this, then restart the agent", "err", err, "hint", fault.Hint(err))
	}
	return t
}

func newTracer(cfg *config.Config, st *store.Store, getenv func(string) string, log *slog.Logger) (*trace.Tracer, error) {
	c, err := trace.Read(func(name string) string {
		v := getenv(name)
		switch {
		case v != "":
		case name == "OTEL_EXPORTER_OTLP_ENDPOINT":
			v = cfg.Traces.Endpoint
		case name == "OTEL_EXPORTER_OTLP_CERTIFICATE":
			v = cfg.Traces.CAFile
		}
		return v
	})
	if c == nil || err != nil {
		return nil, err
	}
	o := trace.Options{Collector: c, Device: string(cfg.Device), Version: build.Version(), Epoch: st.Epoch(), Proxy: http.ProxyFromEnvironment, Logger: log}
	if o.TLS, err = collectorTLS(c); err != nil {
		return nil, err
	}
	err = st.View(func(tx *store.Tx) error {
		var accepted *store.State
		if o.Before, err = tx.Progress(); err != nil {
			return err
		}
		if o.Statuses, err = tx.Statuses(); err != nil {
			return err
		}
		if accepted, err = tx.State(store.Accepted); err == nil && accepted != nil && o.Before != nil && accepted.Digest == o.Before.Digest {
			o.Begun = accepted.AcceptedAt
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	log.Info("traces are sent", "collector", c.Name())
	return trace.New(o), nil
}

// collectorTLS is how the collector is verified, and who the agent is to it.
func collectorTLS(c *trace.Collector) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := authorities(c.CAFile)
		if err != nil {
			return nil, err
		}
		out.RootCAs = x509.NewCertPool()
		out.RootCAs.AppendCertsFromPEM(pem)
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, OTEL_EXPORTER_OTLP_CLIENT_KEY: %w: %w", fault.ErrConfig, err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}
