package main

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/net/netutil"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/internal/serving"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/site/serve"
)

// Limits of the server: pulls have no bodies, and their headers are short.
const (
	serveHeaders    = 10 * time.Second
	serveIdle       = 2 * time.Minute
	maxServeHeaders = 32 << 10
	maxServed       = 1024 // connections
)

var serveCommand = command{
	name: "serve", args: "DIRECTORY|TAR…", min: 1, max: -1,
	usage: "serve an export or an OCI layout as a read-only registry",
	about: "Serves states, components, images and signatures of an export for a site without a registry, with the read-only part of the " +
		"OCI distribution API. HOST/PATH of an export is served as PATH. Anyone who can reach the address can read everything. " +
		"Damaged files are logged and not served. The command ends with Ctrl-C or SIGTERM.",
	examples: []string{"/media/stick", "--listen :5000 --tls-cert registry.crt --tls-key registry.key /media/stick"},
	flags: []cmdline.Flag{
		{Name: "listen", Value: "127.0.0.1:5000", Usage: "`ADDRESS` to listen on"},
		{Name: "tls-cert", Usage: "`FILE` with the certificate chain (PEM); read again when it changes"},
		{Name: "tls-key", Usage: "`FILE` with its private key (PEM)"},
		{Name: "plain-http", Value: false, Usage: "allow plain HTTP on an address that is not loopback"},
		{Name: "host-paths", Value: false, Usage: "serve HOST/PATH as HOST/PATH; default: as PATH, for every HOST"},
	},
	run: (*call).serve,
}

type serveResult struct {
	URL          string   `json:"url"`
	Directory    string   `json:"directory"`
	Repositories []string `json:"repositories"`
	Tags         int      `json:"tags"`
	Difference   bool     `json:"difference"` // it lacks content that the site has
}

func (r serveResult) quietText() string { return r.URL }

func (r serveResult) text(w io.Writer) {
	row(w, "serving", "%s", r.URL)
	row(w, "content", "%s in %s", printable.Counted(r.Tags, "tag"), strings.Join(r.Repositories, ", "))
	if r.Difference {
		row(w, "note", "the export is a difference: content that the site already had is missing here")
	}
}

func (c *call) serve(args []string) error {
	log := c.logger(slog.LevelInfo)
	certificate, err := c.serveTransport(log)
	if err != nil {
		return err
	}
	client, err := registry.New(registry.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	e, err := openMedia(c.Context, client, args)
	if _, missing := os.Stat(filepath.Join(args[0], ocispec.ImageIndexFile)); len(args) == 1 && errors.Is(err, fault.ErrNotFound) && missing == nil {
		e, err = &site.Media{Export: &site.Export{}, Path: args[0]}, nil // a layout of another tool
	}
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := serve.New(c.Context, client, e.Path, serve.Options{Files: e.Files, HostPaths: c.Bool("host-paths"), Logger: log})
	if err != nil {
		return err
	}
	l, err := serving.Listen(c.Context, c.String("listen"), "registry")
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: serving.Watched(s, log), TLSConfig: certificate, ReadHeaderTimeout: serveHeaders, ReadTimeout: serveHeaders, IdleTimeout: serveIdle,
		MaxHeaderBytes: maxServeHeaders, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	scheme := "http://"
	if certificate != nil {
		scheme = "https://"
	}
	err = c.show(serveResult{scheme + l.Addr().String(), strings.Join(args, " "), s.Repositories, s.Tags, e.Difference})
	if err == nil {
		err = printable.Flush(c.stdout)
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	return serving.Until(c.Context, srv, netutil.LimitListener(l, maxServed), serving.Grace, log)
}

// serveTransport returns the certificate; nil means plain HTTP.
func (c *call) serveTransport(log *slog.Logger) (*tls.Config, error) {
	cert, key := c.String("tls-cert"), c.String("tls-key")
	switch {
	case (cert == "") != (key == ""):
		return nil, c.misused("--tls-cert needs --tls-key, and the other way round")
	case cert != "":
		return serving.Certificate(cert, key, log)
	case !serving.Loopback(c.String("listen")) && !c.Bool("plain-http"):
		err := outcome.Usagef("serve", "serve: other machines can reach %s, and without TLS an attacker can change what they receive", c.String("listen"))
		return nil, fault.WithHint(err, "give --tls-cert and --tls-key, or --plain-http: devices verify signatures in any case")
	}
	return nil, nil
}
