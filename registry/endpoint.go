package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/certsd"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Retries. A mirror gets few, because the next place has the same content.
const (
	upstreamAttempts = 5
	mirrorAttempts   = 1
	mirrorWait       = 2 * time.Second
	mirrorRest       = 30 * time.Second // after a request timed out
)

// endpoint is one address where a registry's content is served: the registry itself or a mirror of it.
type endpoint struct {
	scheme, host, path string
	mirror             bool
	pull, resolve      bool   // permitted uses of a mirror; both true for the registry itself
	ns                 string // the registry of a mirror, sent as a parameter as containerd does
	transport          *wire.Transport
	client             *http.Client // with retries and the endpoint's own headers, without credentials
	userAgent          string
	budget             wire.Budget  // of each request's retries
	small              atomic.Int32 // a smallPush
	mismatches         mismatches
	whole              atomic.Bool  // it accepts a blob only in one request
	largest            atomic.Int64 // bytes of a chunk, until one was too large for it
	log                *slog.Logger
}

// Endpoint is one server of a repository's content, for a container runtime that stores blobs itself. Its requests are like those of every other
// method of the [Client]: with this endpoint's certificates, proxy and retries, and with the credentials for this repository.
type Endpoint struct {
	p *remotePlace
	a *access
}

// Endpoints lists the servers from which the content of the repository "host/path" can be read by digest, in order: mirrors, then the
// registry itself.
func (c *Client) Endpoints(name string) ([]Endpoint, error) {
	for _, alias := range []string{dockerHubHost, "index.docker.io"} {
		if path, ok := strings.CutPrefix(name, alias+"/"); ok {
			name = dockerHub + "/" + path
		}
	}
	r, err := c.named(name)
	if err != nil {
		return nil, err
	}
	p, ok := r.place.(*remotePlace)
	if !ok {
		return nil, newError("find endpoints of", name, fmt.Errorf("a layout has none: %w", fault.ErrUnsupported))
	}
	var out []Endpoint
	for _, a := range p.at {
		if a.pull {
			out = append(out, Endpoint{&remotePlace{c: c, host: p.host, name: p.name, at: []*access{a}}, a})
		}
	}
	return out, nil
}

// Host is host[:port] of the server.
func (e Endpoint) Host() string { return e.a.host }

// Manifest reads a manifest of at most limit bytes, which match its digest.
func (e Endpoint) Manifest(ctx context.Context, d digest.Digest, limit int64) (ocispec.Descriptor, []byte, error) {
	if err := checkDigest(d); err != nil { // a manifest of a tag is compared with nothing
		return ocispec.Descriptor{}, nil, err
	}
	return e.p.manifestAt(e.p.reading(ctx, e.a), e.a, d.String(), limit)
}

// OpenBlob reads a blob from byte off on, also where a connection breaks. The caller checks the digest.
func (e Endpoint) OpenBlob(ctx context.Context, desc ocispec.Descriptor, off int64) (io.ReadCloser, error) {
	return e.p.openBlob(ctx, desc, off, false)
}

// Outcome must be called for everything that was read from here, also for wrong bytes (fault.ErrDigestMismatch), so that
// faulty mirrors are reported. It does not block.
func (e Endpoint) Outcome(err error) { e.p.outcome(e.a, err) }

// endpoints returns host's addresses, the registry itself last. They are created once, and hosts.toml is read then.
func (c *Client) endpoints(host string) ([]*endpoint, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.byHost[host]; ok {
		return found, nil
	}
	config, err := certsd.Load(c.o.CertsDir, host)
	if err != nil {
		return nil, unusable(err)
	}
	var out []*endpoint
	for _, m := range config.Mirrors {
		e, err := c.newEndpoint(m, true)
		if err != nil {
			return nil, unusable(fmt.Errorf("mirror %s: %w", m.Host, err))
		}
		e.pull, e.resolve, e.ns = m.Pull, m.Resolve, host
		out = append(out, e)
	}
	server := certsd.Host{}
	if config.Server != nil {
		server = *config.Server
	}
	if server.Host == "" {
		server.Scheme, server.Host, server.Path = "https", host, "/v2"
		if host == dockerHub {
			server.Host = dockerHubHost
		}
		if len(server.CAFiles)+len(server.Pairs) == 0 && !server.SkipVerify && c.o.plain(host) {
			server.Scheme = "http"
		}
	}
	e, err := c.newEndpoint(server, false)
	if err != nil {
		return nil, unusable(err)
	}
	e.pull, e.resolve = true, true
	c.byHost[host] = append(out, e)
	return c.byHost[host], nil
}

// unusable marks an error of a configuration file, so that it is not treated as a response of a registry: a missing file is not
// a missing state.
func unusable(err error) error {
	said := strings.TrimSuffix(err.Error(), ": "+fault.ErrInvalid.Error())
	return fault.WithHint(fmt.Errorf("%s: %w", said, fault.ErrConfig),
		cmp.Or(fault.Hint(err), "repair the file that the message names; on a device, longshore-agent check-config reads them all"))
}

// newEndpoint adds the options' certificates to those of hosts.toml: they apply to every host.
func (c *Client) newEndpoint(h certsd.Host, mirror bool) (*endpoint, error) {
	t := wire.TLS{CAFiles: h.CAFiles, Pairs: h.Pairs, SkipVerify: h.SkipVerify || c.o.SkipVerify, Now: c.o.Now}
	if c.o.CAFile != "" {
		t.CAFiles = append([]string{c.o.CAFile}, t.CAFiles...)
	}
	if c.o.CertFile != "" && len(h.Pairs) == 0 {
		t.Pairs = [][2]string{{c.o.CertFile, c.o.KeyFile}}
	}
	t.LaterCAFile = c.o.LaterCAFile
	transport, err := wire.NewTransport(t, c.o.StallTimeout*3/2, c.proxy, func(err error) {
		c.o.Logger.Warn("changed certificates cannot be used: those before stay in use", "registry", h.Host, "error", err, "hint", fault.Hint(err))
	})
	if err != nil {
		return nil, err
	}
	budget := wire.Budget{Attempts: upstreamAttempts, Wait: c.o.RetryBudget}
	if mirror {
		budget = wire.Budget{Attempts: mirrorAttempts, Wait: min(c.o.RetryBudget, mirrorWait)}
	}
	if c.o.RetryBudget < 0 {
		budget = wire.Budget{}
	}
	trips := wire.WithStall(wire.WithHeader(traced{transport, c.o.Logger, c.o.Date}, h.Host, h.Header), c.o.StallTimeout)
	trips = wire.WithRetry(wire.WithLimit(c.o.Budget.Wrap(trips), c.o.Requests), budget)
	if mirror {
		trips = wire.WithRest(trips, mirrorRest, func(err error) {
			c.o.Logger.Warn("a mirror does not answer and is left out, for a while each time", "mirror", h.Host, "pause", mirrorRest, "error", err)
		})
	}
	e := &endpoint{
		scheme: h.Scheme, host: h.Host, path: h.Path, mirror: mirror, transport: transport, budget: budget, userAgent: c.o.UserAgent, log: c.o.Logger,
		client: &http.Client{Transport: wire.WithTokenServers(trips, h.Host), CheckRedirect: wire.Redirect},
	}
	e.largest.Store(largest)
	return e, nil
}

// transportError separates the end of the caller's context from a timeout of the registry.
func (e *endpoint) transportError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	if link, ok := errors.AsType[*url.Error](err); ok {
		err = link.Err // without the address, which may contain secrets
	}
	out := classify(err)
	if e.mirror {
		return fmt.Errorf("mirror %s: %w", e.host, out)
	}
	return out
}
