package main

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/internal/serving"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/workloadapi"
)

const (
	maxClients     = 16 << 20 // bytes of the accepted-client policy
	maxConnections = 1 << 14
	workloadWait   = 10 * time.Second // for the first answer of the Workload API
)

// mutual is the address at which clients prove themselves with certificates. Without --mtls-listen there is none.
type mutual struct {
	source  identity.Source               // nil: there is none
	svids   *workloadapi.Source           // where source is from; nil: it is from elsewhere
	clients *files.Kept[*status.Accepted] // nil: only enrolled devices are accepted
	enroll  *enrollment                   // nil: devices are not enrolled here
	uri     string
	listen  string
	most    int
	log     *slog.Logger
}

func mutualFlags() []cmdline.Flag {
	file := func(name, usage string) cmdline.Flag {
		return cmdline.Flag{Name: name, Usage: usage + "; read again when it changes", Env: env(name)}
	}
	return []cmdline.Flag{
		{Name: "mtls-listen", Usage: "second `ADDRESS`, for the API by mutual TLS with SPIFFE ids", Env: env("mtls-listen")},
		file("svid-cert", "`FILE` with this manager's SVID and its intermediates (PEM)"),
		file("svid-key", "`FILE` with its private key (PEM)"),
		file("trust-bundle", "`FILE` with the trust bundle of its trust domain (SPIFFE's JSON, or PEM)"),
		{Name: "workload-api", Usage: "in place of these three: the `SOCKET` of the SPIFFE Workload API, unix:///run/spire/agent.sock", Env: env("workload-api")},
		file("clients", "`FILE` with the clients that are accepted by mutual TLS (YAML)"),
		file("enroll", "enroll devices at this address, as configured in `FILE` (YAML)"),
		{Name: "trust-bundle-uri", Usage: "absolute https `URL` of the trust bundle, for /.well-known/margo", Env: env("trust-bundle-uri")},
		{Name: "max-connections", Usage: "`NUMBER` of connections to an address; above it, the connection that has been idle longest is closed", Value: maxConnections, Env: env("max-connections")},
	}
}

func newMutual(c *cmdline.Context, log *slog.Logger) (*mutual, error) {
	m := &mutual{uri: c.String("trust-bundle-uri"), listen: c.String("mtls-listen"), most: c.Int("max-connections"), log: log}
	policy, settings := c.String("clients"), c.String("enroll")
	api := workloadAddress(c)
	f := files.Files{Cert: c.String("svid-cert"), Key: c.String("svid-key"), Bundle: c.String("trust-bundle")}
	whole := f.Cert != "" && f.Key != "" && f.Bundle != ""
	some := f.Cert+f.Key+f.Bundle != ""
	u, err := url.Parse(m.uri)
	switch {
	case m.most < 1:
		return nil, outcome.Usagef("serve", "--max-connections must be at least 1")
	case api != "" && some:
		return nil, outcome.Usagef("serve", "--workload-api takes the place of --svid-cert, --svid-key and --trust-bundle")
	case m.listen == "" && !some && api+policy+m.uri+settings == "":
		return m, nil
	case m.listen == "" || some && !whole || !whole && api+settings == "" || policy+settings == "":
		return nil, outcome.Usagef("serve", "mutual TLS needs --mtls-listen, --svid-cert, --svid-key, --trust-bundle (or --workload-api) and --clients together; or --mtls-listen and --enroll")
	case m.uri != "" && (err != nil || u.Scheme != "https" || u.Host == ""):
		return nil, outcome.Usagef("serve", "--trust-bundle-uri %s is no absolute https URL", m.uri)
	}
	switch {
	case whole:
		m.source = files.New(f, time.Now, log)
	case api != "":
		if m.svids, err = workloadapi.New(workloadapi.Options{Address: api, Manager: true, Now: time.Now, Log: log}); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(c.Context, workloadWait)
		defer cancel()
		if err := m.svids.Fetch(ctx); err != nil {
			return nil, err
		}
		m.source = m.svids
	}
	if settings != "" {
		if m.enroll, err = newEnrollment(c.Context, settings, m.source, c.IsSet("state"), log); err != nil {
			return nil, err
		}
		m.source = m.enroll.manager
	}
	own, err := m.source.Credentials()
	if err != nil {
		return nil, err
	}
	if own.SVID.Name.Client != "" {
		return nil, outcome.Usagef("serve", "--svid-cert %s is of the client %s, not of a manager", f.Cert, own.SVID.Name)
	}
	if policy == "" {
		return m, nil
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

// workloadAddress is where the Workload API is; "": it is not used. SPIFFE's own variable counts only for a manager that would have no
// identity otherwise: on a machine with SPIRE it may be set for other programs.
func workloadAddress(c *cmdline.Context) string {
	api := c.String("workload-api")
	if api == "" && c.String("mtls-listen") != "" && c.String("svid-cert")+c.String("svid-key")+c.String("trust-bundle")+c.String("enroll") == "" {
		api = os.Getenv(workloadapi.Variable)
	}
	return api
}

// identify finds out who sends a request: by the certificate of its connection, or else by another way. A connection outlives
// certificates, trust bundles and policies: all are looked at again.
func (m *mutual) identify(other status.Identify) status.Identify {
	return func(r *http.Request) (status.Client, error) {
		if m.source == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			if m.source != nil && r.Header.Get("Authorization") == "" {
				return status.Client{}, status.Denied("no certificate and no token was presented: certificates are for the address of --mtls-listen, and a proxy before it must pass TLS through")
			}
			return other(r)
		}
		own, err := m.source.Credentials()
		if err != nil {
			return status.Client{}, err
		}
		name, err := own.VerifyClient(r.TLS.PeerCertificates, time.Now())
		if err != nil {
			return status.Client{}, status.Denied(err.Error())
		}
		return m.accept(name, r.TLS.PeerCertificates[0])
	}
}

// accept decides who may be a client: enrolled devices and those of the policy, and nobody whom the policy denies.
func (m *mutual) accept(name identity.Name, leaf *x509.Certificate) (status.Client, error) {
	var policy *status.Accepted
	if m.clients != nil {
		var err error
		if policy, err = m.clients.Get(); err != nil {
			return status.Client{}, err
		}
	}
	if m.enroll != nil && !policy.Denies(name.Client) {
		enrolled, err := m.enroll.service.Look(name.Client, leaf)
		if err != nil {
			return status.Client{}, status.Denied(err.Error())
		}
		if _, listed := policy.Client(name.Client); enrolled && !listed {
			return status.DeviceClient(name.Client), nil
		}
	}
	client, ok := policy.Client(name.Client)
	switch {
	case !ok && m.enroll != nil:
		return status.Client{}, status.Denied(name.String() + " is neither enrolled at this manager nor an accepted client; see longshore-fleet devices pending, then approve")
	case !ok:
		return status.Client{}, status.Denied(name.String() + " is not an accepted client")
	}
	return client, nil
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
	srv := server(m.routes(handler), m.log)
	srv.TLSConfig = identity.ServerConfig(m.source, time.Now)
	if m.enroll != nil {
		srv.TLSConfig = enroll.ServerConfig(srv.TLSConfig)
	}
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true) // what the specification names; a connection has one request at a time
	serving.Bound(srv, m.most)
	m.log.Info("mutual TLS", "mtls", "https://"+l.Addr().String())
	if m.enroll != nil {
		if err := m.enroll.announce(ctx, m.log); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	if m.svids != nil {
		g.Go(func() error { return m.svids.Run(ctx) })
	}
	if m.enroll != nil {
		g.Go(func() error { return m.enroll.service.Run(ctx) })
	}
	g.Go(func() error { return serving.Until(ctx, srv, l, serving.Grace, m.log) })
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

// routes keeps pages for people away from where clients prove themselves, and connections of devices that are not enrolled away from
// all but enrollment.
func (m *mutual) routes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		enrolling := enroll.Enrolling(r.TLS)
		switch {
		case m.enroll != nil && r.URL.Path == enroll.Path:
			m.enroll.service.ServeHTTP(w, r)
		case enrolling && r.URL.Path != status.PathBundle, !strings.HasPrefix(r.URL.Path, "/api/v1/") && !strings.HasPrefix(r.URL.Path, "/.well-known/"):
			status.Refuse(w, r, http.StatusNotFound, "no such resource")
		default:
			next.ServeHTTP(w, r)
		}
	})
}
