package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/internal/serving"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/fleet/web"
)

// Times of the server. Reports are small; whoever takes longer is stuck or means harm.
const (
	headerTimeout  = 10 * time.Second
	requestTimeout = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	healthTimeout  = 3 * time.Second
	maxHeaders     = 32 << 10
	offlineAfter   = 24 * time.Hour
)

var serveCommand = cmdline.Command{
	Name:  "serve",
	Usage: "receive reports and show them; serve desired state",
	About: "Serves the Margo management API under /api/v1, the reports as JSON under /fleet/v1, a page at /, metrics at\n" +
		"/metrics and /healthz. Devices need tokens: longshore-fleet token create --device ID. With --state the API also\n" +
		"serves desired state, as it was pushed to the registry; it is stored on disk, and served while the registry is unavailable.\n\n" +
		"   longshore-fleet serve --listen :8440 --tls-cert fleet.crt --tls-key fleet.key\n" +
		"   longshore-fleet serve --database ./fleet.db                  # for a test: plain HTTP on 127.0.0.1:8440\n" +
		"   longshore-fleet serve --database ./fleet.db --state harbor.acme.example/plant/state\n" +
		"   longshore-fleet serve --mtls-listen :8443 --svid-cert main.crt --svid-key main.key --trust-bundle bundle.json --clients clients.yaml\n" +
		"   longshore-fleet serve --mtls-listen :8443 --workload-api unix:///run/spire/agent.sock --clients clients.yaml\n" +
		"   longshore-fleet serve --mtls-listen :8443 --enroll enroll.yaml\n\n" + exitCodes,
	Flags: append(append([]cmdline.Flag{
		{Name: "listen", Usage: "`ADDRESS` to listen on", Value: "127.0.0.1:8440", Env: env("listen")},
		newDatabaseFlag,
		{Name: "tls-cert", Usage: "`FILE` with the certificate chain (PEM); read again when it changes", Env: env("tls-cert")},
		{Name: "tls-key", Usage: "`FILE` with its private key (PEM)", Env: env("tls-key")},
		{Name: "plain-http", Value: false, Usage: "allow plain HTTP on an address that is not loopback: tokens are sent in clear", Env: env("plain-http")},
		{Name: "viewer-password-file", Usage: "`FILE` with the password for the page, /fleet/v1 and /metrics (any user name); required on an address that is not loopback", Env: env("viewer-password-file")},
		{Name: "report-keys", Usage: "`DIR` with the devices' public keys, DEVICE-TAG.pub: viewers may hand in reports that devices have signed (longshore import --reports --endpoint)", Env: env("report-keys")},
		{Name: "anonymous-viewers", Value: false, Usage: "show the fleet to everyone who can reach the address, without a password", Env: env("anonymous-viewers")},
		{Name: "state", Value: []string(nil), Usage: "serve desired state from the states in `HOST/PATH`; may be repeated", Env: env("state")},
		{Name: "state-cache", Usage: "`DIR` for what is served, on disk; default: states beside the database", Env: env("state-cache")},
		{Name: "state-interval", Usage: "`TIME` between two requests to the registry for a device's state", Value: stateInterval, Env: env("state-interval")},
		{Name: "offline-after", Usage: "`TIME` without reports until a device without a report interval is offline; other devices are offline after three intervals; 0: never", Value: offlineAfter, Env: env("offline-after")},
		{Name: "max-deployments", Usage: "`NUMBER` of stored deployments of one device", Value: store.DefaultQuota().Deployments, Env: env("max-deployments")},
		{Name: "max-children", Usage: "`NUMBER` of devices behind one gateway; an eighth behind each of those", Value: store.DefaultQuota().Children, Env: env("max-children")},
		{Name: "max-bytes", Usage: "`BYTES` stored for a gateway, or a device without one, with all devices behind it; an eighth for each of those", Value: int64(store.DefaultQuota().Bytes), Env: env("max-bytes")},
	}, mutualFlags()...), registryFlags("registry-plain-http")...),
	Run: runServer,
}

func runServer(c *cmdline.Context) (err error) {
	log := slog.New(slog.NewTextHandler(c.Err, nil))
	certificate, err := transport(c, log)
	if err != nil {
		return err
	}
	admit, err := viewers(c)
	if err != nil {
		return err
	}
	mutual, err := newMutual(c, log)
	if err != nil {
		return err
	}
	if mutual.enroll != nil {
		defer closeCAKey(mutual.enroll.key)
	}
	quota, err := quotaOf(c)
	if err != nil {
		return err
	}
	db, err := openStore(c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetQuota(quota)
	if mutual.enroll != nil {
		mutual.enroll.open(db)
	}
	hub := web.NewHub(time.Now)
	states, err := newStates(c, db, log)
	if err != nil {
		return err
	}
	defer states.close()
	started := time.Now() // with its monotonic clock
	viewer := &status.Viewer{View: db, Now: time.Now, Up: func() time.Duration { return time.Since(started) }, OfflineAfter: c.Duration("offline-after"), Logger: log}
	handler, err := handler(db, hub, viewer, admit, states, mutual)
	if err != nil {
		return err
	}
	if dir := c.String("report-keys"); dir != "" {
		mux := http.NewServeMux()
		mux.Handle("/", handler)
		o := status.Options{Store: db, Now: time.Now, Logger: log, Changed: hub.Notify}
		mux.Handle("POST "+status.PathCarried, admit(status.NewGate().Wrap(status.CarriedReports(o, reportKeys(dir).verify))))
		handler = mux
	}
	l, err := serving.Listen(c.Context, c.String("listen"), "longshore-fleet")
	if err != nil {
		return err
	}
	srv := server(handler, log)
	serving.Bound(srv, mutual.most)
	srv.RegisterOnShutdown(hub.Close)
	scheme := "http"
	if srv.TLSConfig = certificate; certificate != nil {
		scheme = "https"
	}
	log.Info("listening", "url", scheme+"://"+l.Addr().String(), "database", c.String("database"), "version", build.Version())
	return states.during(c.Context, func(ctx context.Context) error {
		return mutual.beside(ctx, handler, func(ctx context.Context) error { return serving.Until(ctx, srv, l, serving.Grace, log) })
	})
}

// transport decides how the connection is protected. Plain HTTP beyond this machine has to be asked for.
func transport(c *cmdline.Context, log *slog.Logger) (*tls.Config, error) {
	cert, key := c.String("tls-cert"), c.String("tls-key")
	switch {
	case (cert == "") != (key == ""):
		return nil, outcome.Usagef("", "--tls-cert and --tls-key belong together")
	case cert != "":
		return serving.Certificate(cert, key, log)
	case !serving.Loopback(c.String("listen")) && !c.Bool("plain-http"):
		err := outcome.Usagef("", "%s is reached by others, and without TLS tokens can be read on the way", c.String("listen"))
		return nil, fault.WithHint(err, "give --tls-cert and --tls-key, or --plain-http when something in front of it speaks TLS")
	}
	return nil, nil
}

// handler puts the endpoint together.
func handler(db *store.SQLite, hub *web.Hub, viewer *status.Viewer, admit func(http.Handler) http.Handler, states *states, mutual *mutual) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	gate := status.NewGate()
	page, err := web.New(web.Options{Viewer: viewer, Hub: hub, Gate: gate, Version: build.Version()})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	o := status.Options{Store: db, Now: time.Now, Logger: viewer.Logger, Changed: hub.Notify, Metrics: reg}
	states.serve(&o)
	o.Identify = mutual.identify(o.Identify)
	mux.Handle("/api/v1/", status.API(o))
	mux.Handle(status.PathDiscovery, mutual.discovery())
	mux.Handle(status.PathBundle, mutual.discovery())
	mux.Handle("/fleet/v1/", admit(gate.Wrap(status.Views(viewer))))
	mux.Handle("GET /metrics", admit(gate.Wrap(status.Metrics(viewer, reg))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { healthz(w, r, db, viewer) })
	mux.Handle("/", admit(page))
	return mux, nil
}

// quotaOf is what the flags let one device have.
func quotaOf(c *cmdline.Context) (store.Quota, error) {
	q := store.Quota{Deployments: c.Int("max-deployments"), Children: c.Int("max-children"), Bytes: c.Int64("max-bytes")}
	if q.Deployments < 1 || q.Children < 0 || q.Bytes < 1<<20 {
		return q, outcome.Usagef("serve", "--max-deployments must be at least 1, --max-children at least 0, --max-bytes at least %d", 1<<20)
	}
	if c.Duration("offline-after") < 0 {
		return q, outcome.Usagef("serve", "--offline-after must not be negative")
	}
	return q, nil
}

func healthz(w http.ResponseWriter, r *http.Request, db *store.SQLite, viewer *status.Viewer) {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	if err := db.Health(ctx, viewer.Now()); err != nil {
		viewer.Logger.Error("health", "error", err, "hint", fault.Hint(err))
		status.Refuse(w, r, http.StatusServiceUnavailable, "the database takes no reports")
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
}
