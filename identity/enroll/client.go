package enroll

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/identity"
)

// Times and sizes of a client.
const (
	callTimeout  = time.Minute // a TPM signs slowly, and a manager may ask a registry for a credential
	minRetry     = time.Second
	maxRetry     = 10 * time.Minute
	pathBundle   = "/.well-known/spiffe/bundle.json"
	maxDetail    = 2 << 10 // bytes of an answer that get into an error
	statusDetail = 200     // of an answer that is no problem document
)

// Options make a [Client]. URL and Now are required.
type Options struct {
	URL       string // of the manager: https://host[:port]
	Key       crypto.Signer
	Trust     Trust // how the manager is authenticated
	Now       func() time.Time
	UserAgent string
	Proxy     func(*http.Request) (*url.URL, error) // as http.ProxyFromEnvironment; nil: none

	// Enrolled are the credentials of a device that has them: the connection is then mutual TLS with them, and Key and Trust do not
	// count.
	Enrolled identity.Source
}

// Client sends requests to one manager. It is safe for concurrent use. Close it when done.
type Client struct {
	o    Options
	base *url.URL
	http *http.Client

	mu      sync.Mutex
	manager identity.Name // authenticated last
}

// New checks the options. It opens no connection.
func New(o Options) (*Client, error) {
	c := &Client{o: o}
	return c, c.open(c.verify)
}

// open prepares connections; verify authenticates the manager of a device that has no certificate.
func (c *Client) open(verify func(tls.ConnectionState) error) (err error) {
	if c.base, err = parseURL(c.o.URL); err != nil {
		return err
	}
	config := (*tls.Config)(nil)
	if c.o.Enrolled != nil {
		config = identity.ClientConfig(c.o.Enrolled, c.o.Now)
	} else if config, err = clientConfig(c.o.Key, verify); err != nil {
		return err
	}
	c.http = httpClient(config, c.o.Proxy)
	return nil
}

// CheckURL checks how the address of a manager is written.
func CheckURL(address string) error {
	_, err := parseURL(address)
	return err
}

func parseURL(address string) (*url.URL, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" || base.User != nil || strings.Trim(base.Path, "/") != "" {
		return nil, fault.WithHint(fmt.Errorf("manager %q: %w", address, fault.ErrInvalid), "write it as https://host[:port], the manager's address of mutual TLS")
	}
	base.Path = ""
	return base, nil
}

// verify authenticates the manager of a device that has no certificate.
func (c *Client) verify(state tls.ConnectionState) error {
	name, err := c.o.Trust.Verify(state.PeerCertificates, c.o.Now())
	if err == nil {
		c.mu.Lock()
		c.manager = name
		c.mu.Unlock()
	}
	return err
}

// Manager is who answered last, on a connection without the device's own certificate.
func (c *Client) Manager() identity.Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.manager
}

// clientConfig is TLS of [Protocol]; verify authenticates the manager.
func clientConfig(key crypto.Signer, verify func(tls.ConnectionState) error) (*tls.Config, error) {
	pair, err := selfSigned(key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{Protocol, http11},
		InsecureSkipVerify:   true, // the name of the host does not count: VerifyConnection authenticates the manager
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		VerifyConnection:     verify,
	}, nil
}

const notHere = "use the address of mutual TLS (--mtls-listen) of a manager that runs with --enroll; a proxy before it may pass TLS on, and must not end it"

func httpClient(config *tls.Config, proxy func(*http.Request) (*url.URL, error)) *http.Client {
	t := &http.Transport{Proxy: proxy, TLSClientConfig: config, MaxIdleConnsPerHost: 1, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 30 * time.Second}
	return &http.Client{
		Transport: t, Timeout: callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a join token goes nowhere else
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Ask sends a request. An error that wraps fault.ErrTemporary may pass, after fault.RetryAfter if the manager says so;
// fault.ErrDenied: the manager rejects the request, for example because of its join token; fault.ErrUnauthenticated: the server is not
// the expected manager.
func (c *Client) Ask(ctx context.Context, r Request) (Answer, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Answer{}, err
	}
	data, err := c.do(ctx, http.MethodPost, Path, body)
	if err != nil {
		return Answer{}, fmt.Errorf("enroll at %s: %w", c.base, err)
	}
	a, err := ParseAnswer(data)
	if err != nil {
		return Answer{}, fmt.Errorf("enroll at %s: %w", c.base, err)
	}
	return a, nil
}

// Anchors reads the trust bundle of the manager at o.URL, whoever that is: nothing is authenticated, and o.Trust does not count.
// What is read must be compared with a fingerprint that came another way, see [Trust].Pin, or by a person.
func Anchors(ctx context.Context, o Options) ([]byte, error) {
	c := &Client{o: o}
	if err := c.open(func(tls.ConnectionState) error { return nil }); err != nil {
		return nil, err
	}
	defer c.Close()
	data, err := c.do(ctx, http.MethodGet, pathBundle, nil)
	if err != nil {
		return nil, fmt.Errorf("read the trust bundle of %s: %w", c.base, err)
	}
	return data, nil
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", c.o.UserAgent)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, unreached(ctx, err)
	}
	defer res.Body.Close()
	data, err := bounded.Read(res.Body, MaxAnswer)
	switch {
	case err != nil && !errors.Is(err, fault.ErrTooLarge):
		return nil, fmt.Errorf("%w: %w", fault.ErrTemporary, err)
	case err != nil:
		return nil, err
	case res.StatusCode != http.StatusOK:
		return nil, rejected(res, data)
	}
	return data, nil
}

// unreached is an error of a connection. One that says who the server is stays; others may pass.
func unreached(ctx context.Context, err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fault.ErrUnauthenticated), errors.Is(err, fault.ErrUnsupported), errors.Is(err, fault.ErrInvalid):
		return err
	case strings.HasPrefix(err.Error(), "remote error: tls:"):
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrTemporary, err), "the manager rejects the connection, and its log says why; does it run with --enroll?")
	}
	return fmt.Errorf("%w: %w", fault.ErrTemporary, err)
}

// rejected turns a problem document into an error.
func rejected(res *http.Response, body []byte) error {
	detail := strings.TrimSpace(string(body[:min(len(body), statusDetail)]))
	var after time.Duration
	ours := false // the answer is one of a manager
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && kind == margo.ProblemMediaType {
		if p, err := margo.ParseProblem("problem", body); err == nil {
			ours, detail, after = true, p.Detail[:min(len(p.Detail), maxDetail)], time.Duration(p.RetryAfterSeconds)*time.Second
		}
	}
	detail = strings.Join(strings.Fields(strings.ToValidUTF8(detail, "?")), " ") // on one line
	if n, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); err == nil {
		after = time.Duration(n) * time.Second
	}
	kind := fault.ErrInvalid
	switch s := res.StatusCode; {
	case s == http.StatusForbidden, s == http.StatusUnauthorized:
		kind = fault.ErrDenied
	case s == http.StatusConflict:
		kind = fault.ErrConflict
	case s == http.StatusNotFound, s == http.StatusMethodNotAllowed, s >= 300 && s < 400:
		return fault.WithHint(fmt.Errorf("%s: %s: %w", res.Status, detail, fault.ErrUnsupported), notHere)
	case s == http.StatusTooManyRequests, s >= 500:
		kind = fault.ErrTemporary
	}
	err := fmt.Errorf("%s: %s: %w", res.Status, detail, kind)
	if !ours {
		err = fault.WithHint(err, notHere)
	}
	if after > 0 {
		err = fault.WithRetryAfter(err, min(after, maxRetry))
	}
	return err
}
