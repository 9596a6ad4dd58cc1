package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/fleet/web"
)

// Times of the server. Reports are small; whoever takes longer is stuck or means harm.
const (
	headerTimeout   = 10 * time.Second
	requestTimeout  = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 10 * time.Second
	healthTimeout   = 3 * time.Second
	maxHeaders      = 32 << 10
	maxPassword     = 4 << 10
)

func (p *program) serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "receive reports and show them",
		Description: "Serves the Margo management API for reports under /api/v1, the same as JSON under /fleet/v1, a page at /,\n" +
			"metrics at /metrics and /healthz. Devices need tokens: longshore-fleet token create --device ID.\n\n" +
			"   longshore-fleet serve --listen :8440 --tls-cert fleet.crt --tls-key fleet.key\n" +
			"   longshore-fleet serve --database ./fleet.db                  # try it: plain HTTP on 127.0.0.1:8440\n\n" + exitCodes,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Usage: "`ADDRESS` to listen on", Value: "127.0.0.1:8440", EnvVars: env("listen")},
			databaseFlag(),
			&cli.StringFlag{Name: "tls-cert", Usage: "`FILE` with the certificate chain (PEM); read again when it changes", EnvVars: env("tls-cert")},
			&cli.StringFlag{Name: "tls-key", Usage: "`FILE` with its private key (PEM)", EnvVars: env("tls-key")},
			&cli.BoolFlag{Name: "plain-http", Usage: "allow plain HTTP on an address that others reach: tokens can be read on the way", EnvVars: env("plain-http")},
			&cli.StringFlag{Name: "viewer-password-file", Usage: "`FILE` with the password for the page, /fleet/v1 and /metrics (any user name)", EnvVars: env("viewer-password-file")},
		},
		Action: p.serve,
	}
}

func (p *program) serve(c *cli.Context) (err error) {
	if err := noArguments(c); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	certificate, err := p.transport(c)
	if err != nil {
		return err
	}
	password, err := viewerPassword(c.String("viewer-password-file"))
	if err != nil {
		return err
	}
	db, err := p.open(c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	hub := web.NewHub(p.now)
	handler, err := p.handler(db, hub, log, password)
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(c.Context, "tcp", c.String("listen"))
	if err != nil {
		return fault.WithHint(fmt.Errorf("listen on %s: %w", c.String("listen"), err), "choose another address with --listen")
	}
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaders, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	srv.RegisterOnShutdown(hub.Close)
	scheme := "http"
	if certificate != nil {
		srv.TLSConfig, scheme = certificate.config(), "https"
	}
	log.Info("listening", "url", scheme+"://"+l.Addr().String(), "database", c.String("database"), "version", build.Version())
	if password == nil && !loopback(l.Addr().String()) {
		log.Warn("everybody who reaches this address can look at the fleet; --viewer-password-file asks for a password")
	}
	return serveUntil(c.Context, srv, l, log)
}

// serveUntil serves until ctx ends, then lets requests under way finish.
func serveUntil(ctx context.Context, srv *http.Server, l net.Listener, log *slog.Logger) error {
	failed := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			failed <- srv.ServeTLS(l, "", "")
		} else {
			failed <- srv.Serve(l)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("stopping")
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := srv.Shutdown(wait)
	if err != nil {
		err = errors.Join(fmt.Errorf("stop: %w", err), srv.Close())
	}
	<-failed
	return err
}

// transport decides how the connection is protected. Plain HTTP beyond this machine has to be asked for.
func (p *program) transport(c *cli.Context) (*certificate, error) {
	cert, key := c.String("tls-cert"), c.String("tls-key")
	switch {
	case (cert == "") != (key == ""):
		return nil, outcome.Usagef("", "--tls-cert and --tls-key belong together")
	case cert != "":
		return newCertificate(cert, key)
	case !loopback(c.String("listen")) && !c.Bool("plain-http"):
		err := outcome.Usagef("", "%s is reached by others, and without TLS tokens can be read on the way", c.String("listen"))
		return nil, fault.WithHint(err, "give --tls-cert and --tls-key, or --plain-http when something in front of it speaks TLS")
	}
	return nil, nil
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func viewerPassword(file string) (*[sha256.Size]byte, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, outcome.Usagef("", "read the viewer password: %v", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return nil, fmt.Errorf("read the viewer password: %w", err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" || len(data) > maxPassword {
		return nil, outcome.Usagef("", "read the viewer password: %s is empty or longer than %d bytes", file, maxPassword)
	}
	sum := sha256.Sum256([]byte(text))
	return &sum, nil
}

// handler puts the endpoint together.
func (p *program) handler(db *store.SQLite, hub *web.Hub, log *slog.Logger, password *[sha256.Size]byte) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	page, err := web.New(web.Options{View: db, Hub: hub, Now: p.now, Logger: log, Version: build.Version()})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", status.API(status.Options{Store: db, Now: p.now, Logger: log, Changed: hub.Notify, Metrics: reg}))
	mux.Handle("/fleet/v1/", guard(password, status.Views(db, log)))
	mux.Handle("GET /metrics", guard(password, status.Metrics(db, reg, log)))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { healthz(w, r, db, log) })
	mux.Handle("/", guard(password, page))
	return mux, nil
}

// guard asks viewers for the password; nil asks nobody.
func guard(password *[sha256.Size]byte, next http.Handler) http.Handler {
	if password == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		sum := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(sum[:], password[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="longshore-fleet", charset="UTF-8"`)
			http.Error(w, "the viewer password is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func healthz(w http.ResponseWriter, r *http.Request, db store.View, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if _, err := db.Devices(ctx, store.DeviceQuery{Limit: 1}); err != nil {
		log.Error("health", "error", err)
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "the database does not answer\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}
