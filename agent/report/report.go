// Package report delivers the agent's reports to a fleet endpoint that speaks the Margo management API, 1.0.0-rc.3.
//
// The outbox is the agent's (agent/store); a [Client] sends one report at a time and says by its error whether it is worth
// keeping. The entry point is [New]. TestDeliver holds what is kept and what is dropped.
package report

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Headers of our own on every report, so that a fleet endpoint can drop what it has already.
const (
	HeaderSequence = "Longshore-Sequence" // number of the report within the epoch, decimal
	HeaderEpoch    = "Longshore-Epoch"    // UUID of the agent's database
)

// Limits.
const (
	maxToken    = 64 << 10 // bytes of a token file
	maxCA       = 4 << 20  // bytes of a CA file
	maxAnswer   = 64 << 10 // bytes of an answer that are looked at
	maxDelay    = time.Hour
	maxDetail   = 512 // bytes of an answer that get into an error
	sendTimeout = 30 * time.Second
)

// Options make a [Client].
type Options struct {
	URL       string // of the endpoint, https://host[:port][/prefix]; http only where told so by writing it
	Device    string // device id
	Epoch     string // of the agent's store
	TokenFile string // bearer token, read at every request so that it can be replaced; "": none
	CAFile    string // PEM; "": the system's
	// TLS is mutual TLS, in which certificates say who both sides are; TokenFile and CAFile do not count then. nil: none.
	TLS       *tls.Config
	UserAgent string
	Timeout   time.Duration // of one request; 0: 30 s

	// Proxy chooses a proxy for a request, as http.ProxyFromEnvironment does; nil: none.
	Proxy func(*http.Request) (*url.URL, error)
	// Transport replaces the one made of the above; for tests.
	Transport http.RoundTripper
	// Now turns a Retry-After date into a delay, and is what certificates' dates are held against. nil: dates are not
	// obeyed, and certificates are held against the system's clock.
	Now func() time.Time
}

// Client delivers reports. It implements [agent.Reporter].
type Client struct {
	o    Options
	base *url.URL
	http *http.Client
}

var _ agent.Reporter = (*Client)(nil)

// New checks the options. It opens no connection.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, fault.WithHint(fmt.Errorf("fleet endpoint %q: %w", o.URL, fault.ErrInvalid), "write it as https://host[:port]")
	}
	if base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fault.WithHint(fmt.Errorf("fleet endpoint %q: %w", base.Redacted(), fault.ErrInvalid), "only scheme, host, port and a path")
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	if o.Timeout <= 0 {
		o.Timeout = sendTimeout
	}
	rt := o.Transport
	if rt == nil {
		t := &http.Transport{
			Proxy: o.Proxy, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: 90 * time.Second,
			TLSHandshakeTimeout: 15 * time.Second, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, Time: o.Now},
		}
		if o.TLS != nil {
			t.TLSClientConfig, t.ForceAttemptHTTP2 = o.TLS, false
			o.TokenFile, o.CAFile = "", ""
		}
		if o.CAFile != "" {
			if t.TLSClientConfig.RootCAs, err = authorities(o.CAFile); err != nil {
				return nil, fmt.Errorf("fleet endpoint: %w", err)
			}
		}
		rt = t
	}
	return &Client{o: o, base: base, http: &http.Client{
		Transport: rt, Timeout: o.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a token goes nowhere else
	}}, nil
}

// ReadFiles tells which of the options names a file that cannot be used, and why; "" for none. A TokenFile otherwise shows at the
// first report.
func (o Options) ReadFiles() (option string, err error) {
	if o.CAFile != "" {
		if _, err := authorities(o.CAFile); err != nil {
			return "CAFile", err
		}
	}
	if o.TokenFile != "" {
		if _, err := readToken(o.TokenFile); err != nil {
			return "TokenFile", err
		}
	}
	return "", nil
}

// authorities reads the certificates of a CA file.
func authorities(file string) (*x509.CertPool, error) {
	pem, err := bounded.File(os.Open, file, maxCA)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fault.WithHint(fmt.Errorf("CA file %s holds no PEM certificate: %w", file, fault.ErrInvalid),
			"put the certificate of the endpoint's authority there, in PEM; without fleet.caFile the system's authorities count")
	}
	return pool, nil
}

// readToken reads a bearer token, without the white space around it.
func readToken(file string) (string, error) {
	data, err := bounded.File(os.Open, file, maxToken)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fault.WithHint(fmt.Errorf("token file %s is empty: %w", file, fault.ErrInvalid), "write the device's token there: longshore-fleet token create")
	}
	return token, nil
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Deliver sends one report. fault.ErrTemporary means that it should be sent again, after fault.RetryAfter if told: all
// but the answers that say that the report itself is at fault.
func (c *Client) Deliver(ctx context.Context, r agent.Report) error {
	method, path := http.MethodPost, "/api/v1/deployments/"+url.PathEscape(r.Subject)+"/status"
	if r.Kind == agent.ReportCapabilities {
		method, path = http.MethodPut, "/api/v1/capabilities/"+escapeDevice(r.Subject)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, bytes.NewReader(r.Body))
	if err != nil {
		return fmt.Errorf("report to %s: %w: %w", c.base, fault.ErrInvalid, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, "+margo.ProblemMediaType)
	req.Header.Set(HeaderSequence, strconv.FormatUint(r.Sequence, 10))
	req.Header.Set(HeaderEpoch, c.o.Epoch)
	if c.o.UserAgent != "" {
		req.Header.Set("User-Agent", c.o.UserAgent)
	}
	if c.o.TokenFile != "" {
		token, err := readToken(c.o.TokenFile)
		if err != nil {
			return fault.WithHint(fmt.Errorf("report to %s: %w: %w", c.base, fault.ErrTemporary, err), "check fleet.tokenFile in agent.yaml")
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		err = fmt.Errorf("report to %s: %w: %w", c.base, fault.ErrTemporary, bare(err))
		if op := (*net.OpError)(nil); c.o.TLS != nil && errors.As(err, &op) && op.Op == "remote error" {
			err = fault.WithHint(err, "the endpoint rejects this device's certificate (fleet.certFile); its log says why")
		}
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil // taken, whatever became of the answer's body
	}
	if err != nil {
		return fmt.Errorf("report to %s: %s: %w: %w", c.base, res.Status, fault.ErrTemporary, err)
	}
	return c.judge(res, body)
}

// judge tells what is worth sending again. Only the API itself can say that a report is at fault, by a problem of a type that
// it knows: proxies, captive portals and wrong addresses answer 400 and 422 as well, and what they say passes. Who is not let
// in, or asks at the wrong place, has a setting to mend: the report waits for that.
func (c *Client) judge(res *http.Response, body []byte) error {
	again := true
	detail := strings.TrimSpace(string(body[:min(len(body), maxDetail)]))
	var delay time.Duration
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && kind == margo.ProblemMediaType {
		if p, err := margo.ParseProblem("problem", body); err == nil {
			detail = p.Title
			if p.Detail != "" {
				detail += ": " + p.Detail
			}
			for _, f := range p.Errors {
				detail += "; " + f.Field + ": " + f.Message
			}
			again = !final(res.StatusCode) || !registered(p.Type) || p.Retryable != nil && *p.Retryable
			delay = time.Duration(p.RetryAfterSeconds) * time.Second
		}
	}
	err := fmt.Errorf("report to %s: %s: %s", c.base, res.Status, clip(detail))
	if !again {
		return fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	err = fmt.Errorf("%w: %w", err, fault.ErrTemporary)
	switch status := res.StatusCode; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		hint := "check fleet.tokenFile; a new token: longshore-fleet token create --device " + c.o.Device
		if c.o.TLS != nil {
			hint = "the endpoint knows the certificate and does not accept it for this device: see the clients file of longshore-fleet serve"
		}
		err = fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnauthenticated), hint)
	case status == http.StatusNotFound:
		hint := "check fleet.url in agent.yaml"
		if i := strings.LastIndexByte(c.o.Device, '/'); i > 0 {
			hint += "; the gateway " + c.o.Device[:i] + " must report its own capabilities first"
		}
		err = fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), hint)
	case final(status):
		err = fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	if d, ok := c.retryAfter(res.Header.Get("Retry-After")); ok {
		delay = d
	}
	if delay > 0 {
		err = fault.WithRetryAfter(err, min(delay, maxDelay))
	}
	return err
}

// final tells the status codes that speak about the report itself.
func final(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusConflict:
		return true
	}
	return false
}

// registered tells the types of problems that the API may answer a report with.
func registered(kind string) bool {
	switch kind {
	case "about:blank", margo.ProblemBase + "invalid-request", margo.ProblemBase + "semantic-error":
		return true
	}
	return false
}

// retryAfter reads RFC 9110 section 10.2.3: seconds or a date.
func (c *Client) retryAfter(h string) (time.Duration, bool) {
	if h == "" {
		return 0, false
	}
	if n, err := strconv.ParseUint(h, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	if t, err := http.ParseTime(h); err == nil && c.o.Now != nil {
		return max(t.Sub(c.o.Now()), 0), true
	}
	return 0, false
}

// escapeDevice keeps the slashes of a child device's id, which the path has too.
func escapeDevice(id string) string {
	parts := strings.Split(id, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// bare drops the method and URL that net/http puts before an error: we say it ourselves.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// clip keeps foreign text short and on one line.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}
