// Package enrolltest is a manager for tests of enrollment: real TLS, a real database, and a small authority.
package enrolltest

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/fleet/enroll"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/ca"
	protocol "github.com/longshore-dev/longshore/identity/enroll"
)

// Plant is a manager with a real database and real TLS.
type Plant struct {
	*store.SQLite
	Authority *ca.Authority
	Service   *enroll.Service
	URL       string // at which devices reach it

	mu   sync.Mutex
	pull enroll.Credentials
	ca   string
	skew time.Duration // of the manager's clock
}

func (p *Plant) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Add(p.skew)
}

// Start runs a manager whose devices pull with a credential of pull; nil: they get none. edit changes its server.
func Start(t testing.TB, pull enroll.Credentials, edit ...func(*http.Server)) *Plant {
	t.Helper()
	p := &Plant{pull: pull}
	var err error
	if p.Authority, err = ca.New("plant.acme.example", time.Now()); err != nil {
		t.Fatal(err)
	}
	if p.SQLite, err = store.Open(t.Context(), filepath.Join(t.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	manager, err := p.Authority.Manager(identity.Name{TrustDomain: "plant.acme.example", Manager: "main"}, p.now)
	if err != nil {
		t.Fatal(err)
	}
	const document = "rules: [{scope: harbor.acme.example/plant/**, allowUnsigned: true}]\n"
	p.Service = enroll.New(enroll.Options{
		Store: p.SQLite, Authority: p.Authority, Manager: manager, Now: p.now, Logger: slog.New(slog.DiscardHandler),
		Policy: func() (*enroll.Policy, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return &enroll.Policy{
				Settings: &enroll.Settings{URL: p.URL, Lifetime: time.Hour, Registry: "harbor.acme.example/plant/state"},
				Trust:    &protocol.Trusted{Digest: digest.FromString(document), Document: document}, Pull: p.pull, CA: p.ca,
			}, nil
		},
	})
	if err := p.Service.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Service.Run(ctx) }()
	mux := http.NewServeMux()
	mux.Handle(protocol.Path, p.Service)
	mux.Handle(status.PathBundle, status.Discovery(func() (status.Trust, error) {
		return status.Trust{Domain: "plant.acme.example", Bundle: p.Authority.Bundle().JSON()}, nil
	}, ""))
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, e := range edit {
		e(s.Config)
	}
	// Not StartTLS, which presents a certificate of its own.
	s.Listener = tls.NewListener(s.Listener, protocol.ServerConfig(identity.ServerConfig(manager, p.now)))
	s.Start()
	p.URL = "https://" + s.Listener.Addr().String()
	t.Cleanup(func() {
		s.Close()
		cancel()
		if err := errors.Join(<-ended, p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Registry changes what devices get for registries from now on: a pull credential, nil for none, and authorities in PEM.
func (p *Plant) Registry(pull enroll.Credentials, authorities string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pull, p.ca = pull, authorities
}

// Skew sets the manager's clock wrong.
func (p *Plant) Skew(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skew = by
}
