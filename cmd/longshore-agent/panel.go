package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/panel"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/internal/serving"
)

const (
	panelLimit       = 15 * time.Second // of a request
	maxPanelBrowsers = 32               // connections at a time
	maxPINInput      = 1 << 10
)

// servePanel answers the people at the machine until ctx ends. What is wrong there is logged: the workloads do not depend on it.
func servePanel(ctx context.Context, cfg config.Panel, d panel.Device, log *slog.Logger) {
	o := panel.Options{
		Device: d, PINFile: cfg.PINFile, AnonymousViewers: cfg.AnonymousViewers, Hosts: cfg.Hosts, TLS: cfg.CertFile != "", Log: log, Now: time.Now,
	}
	if cfg.Translations != "" {
		var err error
		if o.Messages, err = panel.ReadMessages(cfg.Translations); err != nil {
			log.Error("the panel is in English", "err", err)
		}
	}
	h, err := panel.New(o)
	if err != nil {
		log.Error("the panel is not served", "err", err)
		return
	}
	keepListening(ctx, "panel", cfg.Listen, log, func(l net.Listener) error {
		srv := &http.Server{
			Handler: h, ReadHeaderTimeout: panelLimit, ReadTimeout: panelLimit, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
			BaseContext: func(net.Listener) context.Context { return ctx },
			ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		}
		scheme := "http"
		if cfg.CertFile != "" {
			var err error
			if srv.TLSConfig, err = serving.Certificate(cfg.CertFile, cfg.KeyFile, log); err != nil {
				_ = l.Close() // the first error says it
				return err
			}
			scheme = "https"
		}
		serving.Bound(srv, maxPanelBrowsers)
		log.Info("the panel is served", "url", scheme+"://"+l.Addr().String()+"/")
		return serving.Until(ctx, srv, l, stopLimit, quiet)
	})
}

// checkPanel reads the files that the panel needs.
func checkPanel(cfg config.Panel, check func(key string, err error)) {
	if cfg.PINFile != "" {
		_, err := panel.ReadPINs(cfg.PINFile)
		check("panel.pinFile", err)
	}
	if cfg.Translations != "" {
		_, err := panel.ReadMessages(cfg.Translations)
		check("panel.translations", err)
	}
	if cfg.CertFile != "" && cfg.KeyFile != "" {
		_, err := serving.Certificate(cfg.CertFile, cfg.KeyFile, nil)
		check("panel.certFile", err)
	}
}

var panelPINCommand = cmdline.Command{
	Name: "panel-pin", Usage: "hash a PIN for the panel", Args: "NAME",
	About: "Reads a PIN of at least 6 characters from stdin and prints the line for panel.pinFile in agent.yaml: the name of the person, and\n" +
		"the PIN's hash. Only root may be able to read that file.\n\n" +
		"Examples:\n  install -m 600 /dev/null /etc/longshore/panel.pins\n  longshore-agent panel-pin ana >>/etc/longshore/panel.pins <pin.txt",
	Run: func(c *cmdline.Context) error {
		if len(c.Args) != 1 {
			return outcome.Usagef(c.Command, "name the person whose PIN it is")
		}
		pin, err := bounded.Read(c.In, maxPINInput)
		if err != nil {
			return fmt.Errorf("read the PIN from stdin: %w", err)
		}
		line, err := panel.NewPIN(c.Arg(), strings.TrimRight(string(pin), "\r\n"))
		if err != nil {
			return outcome.Usagef(c.Command, "%v", err)
		}
		fmt.Fprintln(c.Out, line)
		return nil
	},
}
