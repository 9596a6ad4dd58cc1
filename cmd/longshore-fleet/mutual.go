package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/internal/serving"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/files"
)

const (
	maxClients     = 16 << 20 // bytes of the accepted-client policy
	maxConnections = 1 << 14
)

// mutual is the address at which clients prove themselves with certificates. Without --mtls-listen there is none.
type mutual struct {
	source  *files.Source
	clients *files.Kept[*status.Accepted]
	now     func() time.Time
	uri     string
	listen  string
	most    int
	log     *slog.Logger
}

func mutualFlags() []cli.Flag {
	file := func(name, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Usage: usage + "; read again when it changes", EnvVars: env(name)}
	}
	return []cli.Flag{
		&cli.StringFlag{Name: "mtls-listen", Usage: "second `ADDRESS`, for the API by mutual TLS with SPIFFE ids", EnvVars: env("mtls-listen")},
		file("svid-cert", "`FILE` with this manager's SVID and its intermediates (PEM)"),
		file("svid-key", "`FILE` with its private key (PEM)"),
		file("trust-bundle", "`FILE` with the trust bundle of its trust domain (SPIFFE's JSON, or PEM)"),
		file("clients", "`FILE` with the clients that are accepted by mutual TLS (YAML)"),
		&cli.StringFlag{Name: "trust-bundle-uri", Usage: "absolute https `URL` of the trust bundle, for /.well-known/margo", EnvVars: env("trust-bundle-uri")},
		&cli.IntFlag{Name: "max-connections", Usage: "`NUMBER` of connections to an address; for one more the one is closed that has waited longest", Value: maxConnections, EnvVars: env("max-connections")},
	}
}

func (p *program) mutual(c *cli.Context, log *slog.Logger) (*mutual, error) {
	m := &mutual{now: p.now, uri: c.String("trust-bundle-uri"), listen: c.String("mtls-listen"), most: c.Int("max-connections"), log: log}
	f := files.Files{Cert: c.String("svid-cert"), Key: c.String("svid-key"), Bundle: c.String("trust-bundle")}
	policy := c.String("clients")
	all := f.Cert != "" && f.Key != "" && f.Bundle != "" && policy != ""
	u, err := url.Parse(m.uri)
	switch {
	case m.most < 1:
		return nil, outcome.Usagef("serve", "--max-connections must be at least 1")
	case m.listen == "" && f.Cert+f.Key+f.Bundle+policy+m.uri == "":
		return m, nil
	case m.listen == "" || !all:
		return nil, outcome.Usagef("serve", "mutual TLS needs --mtls-listen, --svid-cert, --svid-key, --trust-bundle and --clients together")
	case m.uri != "" && (err != nil || u.Scheme != "https" || u.Host == ""):
		return nil, outcome.Usagef("serve", "--trust-bundle-uri %s is no absolute https URL", m.uri)
	}
	m.source = files.New(f, p.now, log)
	own, err := m.source.Credentials()
	if err != nil {
		return nil, err
	}
	if own.SVID.Name.Client != "" {
		return nil, outcome.Usagef("serve", "--svid-cert %s is of the client %s, not of a manager", f.Cert, own.SVID.Name)
	}
	m.clients = files.Keep(func() (*status.Accepted, error) {
		data, err := bounded.File(os.Open, policy, maxClients)
		if err != nil {
			return nil, err
		}
		return status.ParseAccepted(policy, data)
	}, log, policy)
	_, err = m.clients.Get()
	return m, err
}

// identify finds out who sends a request: by the certificate of its connection, or else by another way. A connection outlives
// certificates, trust bundles and policies: all are looked at again.
func (m *mutual) identify(other status.Identify) status.Identify {
	return func(r *http.Request) (status.Client, error) {
		if m.source == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return other(r)
		}
		own, err := m.source.Credentials()
		if err != nil {
			return status.Client{}, err
		}
		name, err := own.VerifyClient(r.TLS.PeerCertificates, m.now())
		if err != nil {
			return status.Client{}, status.Denied(err.Error())
		}
		accepted, err := m.clients.Get()
		if err != nil {
			return status.Client{}, err
		}
		client, ok := accepted.Client(name.Client)
		if !ok {
			return status.Client{}, status.Denied(name.String() + " is not an accepted client")
		}
		return client, nil
	}
}

// discovery serves the documents by which clients find the trust bundle.
func (m *mutual) discovery() http.Handler {
	if m.source == nil {
		return status.Discovery(nil, "")
	}
	return status.Discovery(func() (status.Trust, error) {
		own, err := m.source.Credentials()
		if err != nil {
			return status.Trust{}, err
		}
		return status.Trust{Domain: own.Bundle.TrustDomain(), Bundle: own.Bundle.JSON()}, nil
	}, m.uri)
}

// beside serves the API by mutual TLS while main serves the other address.
func (m *mutual) beside(ctx context.Context, handler http.Handler, main func(context.Context) error) error {
	if m.source == nil {
		return main(ctx)
	}
	l, err := serving.Listen(ctx, m.listen, "longshore-fleet")
	if err != nil {
		return fault.WithHint(err, "choose another address with --mtls-listen")
	}
	srv := server(apiOnly(handler), m.log)
	srv.TLSConfig = identity.ServerConfig(m.source, m.now)
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true) // what the specification names; a connection has one request at a time
	serving.Bound(srv, m.most)
	m.log.Info("mutual TLS", "mtls", "https://"+l.Addr().String())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serving.Until(ctx, srv, l, m.log) })
	g.Go(func() error { return main(ctx) })
	return g.Wait()
}

// server is an HTTP server with our limits.
func server(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaders, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// apiOnly keeps pages for people away from where clients prove themselves.
func apiOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/v1/") && !strings.HasPrefix(r.URL.Path, "/.well-known/") {
			status.Refuse(w, r, http.StatusNotFound, "there is nothing here")
			return
		}
		next.ServeHTTP(w, r)
	})
}
