package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/certsd"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Retries. A mirror gets few: the next place in the order is as good.
const (
	upstreamAttempts = 5
	mirrorAttempts   = 1
	mirrorWait       = 2 * time.Second
	mirrorRest       = 30 * time.Second // after it kept a request waiting for nothing
)

// endpoint is one address where a registry's content is served: the registry itself or a mirror of it.
type endpoint struct {
	scheme, host, path string
	mirror             bool
	pull, resolve      bool   // what a mirror may be asked for; both true for the registry itself
	ns                 string // the registry that a mirror stands for, sent along as containerd does
	transport          *http.Transport
	client             *http.Client // with retries and the endpoint's own headers, without credentials
	userAgent          string
	budget             wire.Budget  // of each request's retries
	takes              atomic.Int32 // a taking
}

// Endpoint is one place where a host's images may be asked for, for a container runtime that does its own requests.
type Endpoint struct {
	Scheme string       // "https" or "http"
	Host   string       // host[:port] to connect to
	Path   string       // what stands before the repository: "/v2"
	Client *http.Client // with this endpoint's certificates, proxy and retries; without credentials
	// Credentials gives what the endpoint's host may be told; both empty: nothing. An empty user with a secret is an
	// identity (refresh) token.
	Credentials func(ctx context.Context, host string) (user, secret string, err error)
}

// Endpoints lists where host's content may be read by digest, in order: mirrors, then the registry itself.
func (c *Client) Endpoints(host string) ([]Endpoint, error) {
	if host == dockerHubHost || host == "index.docker.io" {
		host = dockerHub
	}
	all, err := c.endpoints(host)
	if err != nil {
		return nil, newError("find endpoints of", host, err)
	}
	var out []Endpoint
	for _, e := range all {
		if !e.pull {
			continue
		}
		out = append(out, Endpoint{
			Scheme: e.scheme, Host: e.host, Path: e.path, Client: e.client,
			Credentials: func(ctx context.Context, at string) (string, string, error) {
				if at != e.host && at != host {
					return "", "", nil // a redirect or a foreign name is told nothing
				}
				cred, err := c.lookup(ctx, e, host, "")
				switch {
				case err != nil:
					return "", "", newError("find credentials of", e.host, err)
				case cred.RefreshToken != "":
					return "", cred.RefreshToken, nil
				}
				return cred.Username, cred.Password, nil
			},
		})
	}
	return out, nil
}

// endpoints gives host's addresses, the registry itself last. They are made once; hosts.toml is read then.
func (c *Client) endpoints(host string) ([]*endpoint, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.byHost[host]; ok {
		return found, nil
	}
	config, err := certsd.Load(c.o.CertsDir, host)
	if err != nil {
		return nil, err
	}
	var out []*endpoint
	for _, m := range config.Mirrors {
		e, err := c.newEndpoint(m, true)
		if err != nil {
			return nil, fmt.Errorf("mirror %s: %w", m.Host, err)
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
		return nil, err
	}
	e.pull, e.resolve = true, true
	c.byHost[host] = append(out, e)
	return c.byHost[host], nil
}

// newEndpoint adds the options' certificates to those of hosts.toml: they hold for every host.
func (c *Client) newEndpoint(h certsd.Host, mirror bool) (*endpoint, error) {
	t := wire.TLS{CAFiles: h.CAFiles, Pairs: h.Pairs, SkipVerify: h.SkipVerify || c.o.SkipVerify, Now: c.o.Now}
	if c.o.CAFile != "" {
		t.CAFiles = append([]string{c.o.CAFile}, t.CAFiles...)
	}
	if c.o.CertFile != "" && len(h.Pairs) == 0 {
		t.Pairs = [][2]string{{c.o.CertFile, c.o.KeyFile}}
	}
	transport, err := wire.NewTransport(t, c.o.StallTimeout*3/2, c.proxy)
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
	trips = wire.WithRetry(wire.WithLimit(trips, c.o.Requests), budget)
	if mirror {
		trips = wire.WithRest(trips, mirrorRest)
	}
	e := &endpoint{
		scheme: h.Scheme, host: h.Host, path: h.Path, mirror: mirror, transport: transport, budget: budget, userAgent: c.o.UserAgent,
		client: &http.Client{Transport: wire.WithTokenServers(trips, h.Host), CheckRedirect: wire.Redirect},
	}
	return e, nil
}

// newAuth makes the part that answers challenges. Tokens live in cache.
func (e *endpoint) newAuth(find auth.CredentialFunc, cache auth.Cache) *auth.Client {
	return &auth.Client{
		Client:     e.client,
		Header:     http.Header{"User-Agent": {e.userAgent}},
		Credential: find,
		Cache:      cache,
		ClientID:   "longshore",
	}
}

// request is one call of the distribution API. suffix stands behind "/v2/"; page replaces both when it is set.
type request struct {
	method, suffix string
	query          url.Values
	page           *url.URL
	header         http.Header
	body           []byte
	accept         []int // further statuses than 200 that are answers
}

// send gives the answer when its status is wanted, else the error that it tells. The caller closes the body.
func (e *endpoint) send(ctx context.Context, client *auth.Client, r request) (*http.Response, error) {
	u := &url.URL{Scheme: e.scheme, Host: e.host, Path: e.path + "/" + r.suffix}
	q := r.query
	if r.page != nil {
		u, q = r.page, nil
	}
	if e.ns != "" && r.page == nil {
		if q == nil {
			q = url.Values{}
		}
		q.Set("ns", e.ns)
	}
	if len(q) > 0 {
		u.RawQuery = q.Encode()
	}
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, e.transportError(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	for _, s := range r.accept {
		if resp.StatusCode == s {
			return resp, nil
		}
	}
	return nil, &statusError{resp.StatusCode, wire.AnswerError(resp)}
}

// transportError keeps the caller's own ending apart from the registry's silence.
func (e *endpoint) transportError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	out := classify(err)
	if e.mirror {
		return fmt.Errorf("mirror %s: %w", e.host, out)
	}
	return out
}

// statusError keeps the status for those who decide by it.
type statusError struct {
	status int
	err    error
}

func (s *statusError) Error() string { return s.err.Error() }
func (s *statusError) Unwrap() error { return s.err }

// statusOf is the status that err came from, 0 when no answer came.
func statusOf(err error) int {
	var s *statusError
	if errors.As(err, &s) {
		return s.status
	}
	return 0
}
