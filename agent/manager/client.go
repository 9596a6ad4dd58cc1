// Package manager is the device's side of the Margo management API, 1.0.0-rc.3, towards any manager that speaks it.
//
// A [Client] is the connection: it delivers one report at a time ([Client.Deliver]) and says by its error whether the report is
// worth keeping; the outbox is the agent's. A [Source] reads desired state with it. TestDeliver and TestProblems hold what an
// answer means.
package manager

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	maxToken   = 64 << 10 // bytes of a token file
	maxCA      = 4 << 20  // bytes of a CA file
	maxAnswer  = 64 << 10 // bytes of an answer that are looked at
	maxDelay   = time.Hour
	maxDetail  = 512              // bytes of an answer that get into an error
	waitAnswer = 30 * time.Second // for an answer to a report, for an answer to begin, and for its next byte
)

// Options make a [Client].
type Options struct {
	URL       string // of the manager, https://host[:port][/prefix]; http only where told so by writing it
	Device    string // device id
	Epoch     string // of the agent's store
	TokenFile string // bearer token, read at every request so that it can be replaced; "": none
	CAFile    string // PEM; "": the system's
	// TLS is mutual TLS, in which certificates say who both sides are; TokenFile and CAFile do not count then. nil: none.
	TLS       *tls.Config
	UserAgent string
	Interval  time.Duration // in which the device reports at least once, whole seconds; 0: it reports only changes
	Timeout   time.Duration // of a report, and of the pause between two bytes of an answer; 0: 30 s

	// Proxy chooses a proxy for a request, as http.ProxyFromEnvironment does; nil: none.
	Proxy func(*http.Request) (*url.URL, error)
	// Transport replaces the one made of the above; for tests.
	Transport http.RoundTripper
	// Now turns a Retry-After date into a delay, and is what certificates' dates are held against. nil: dates are not
	// obeyed, and certificates are held against the system's clock.
	Now func() time.Time
	// Date learns the manager's clock, for information only; nil: it is not reported.
	Date func(time.Time)
}

// Client is the connection to a manager. It is safe for concurrent use.
type Client struct {
	o    Options
	base *url.URL
	name string
	http *http.Client

	mu   sync.Mutex
	pair *tls.Certificate // that connections were opened with, where o.TLS has one
}

// New checks the options. It opens no connection.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, fault.WithHint(fmt.Errorf("manager %q: %w", o.URL, fault.ErrInvalid), "write it as https://host[:port]")
	}
	if base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fault.WithHint(fmt.Errorf("manager %q: %w", base.Redacted(), fault.ErrInvalid), "only scheme, host, port and a path")
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	name, err := margo.ManagerName(base.String())
	if err != nil {
		return nil, err
	}
	if o.Timeout <= 0 {
		o.Timeout = waitAnswer
	}
	rt := o.Transport
	if rt == nil {
		t := &http.Transport{
			Proxy: o.Proxy, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: 90 * time.Second,
			TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: o.Timeout, MaxResponseHeaderBytes: maxAnswer,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, Time: o.Now},
		}
		if o.TLS != nil {
			t.TLSClientConfig, t.ForceAttemptHTTP2 = o.TLS, false
			o.TokenFile, o.CAFile = "", ""
		}
		if o.CAFile != "" {
			if t.TLSClientConfig.RootCAs, err = authorities(o.CAFile); err != nil {
				return nil, fmt.Errorf("manager: %w", err)
			}
		}
		rt = t
	}
	return &Client{o: o, base: base, name: name, http: &http.Client{
		Transport:     rt,
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
			"put the certificate of the manager's authority there, in PEM; without caFile the system's authorities count")
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

func (c *Client) Close() { c.http.CloseIdleConnections() }

// Name is what the trust policy calls the manager: "margo+https://host[:port][/prefix]".
func (c *Client) Name() string { return c.name }

// send makes a request, with what the device proves itself by. The error is temporary, whatever became of it.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body []byte) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	req.Header = header
	header.Set(HeaderDevice, c.o.Device)
	if c.o.UserAgent != "" {
		header.Set("User-Agent", c.o.UserAgent)
	}
	if c.o.TokenFile != "" {
		token, err := readToken(c.o.TokenFile)
		if err != nil {
			return nil, fault.WithHint(fmt.Errorf("%w: %w", fault.ErrTemporary, err), "check tokenFile in agent.yaml")
		}
		header.Set("Authorization", "Bearer "+token)
	}
	c.renewed()
	res, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok { // its method and URL are said by us
			err = u.Err
		}
		if errors.Is(err, fault.ErrUnauthenticated) { // who answered is not the manager, and has judged nothing
			err = fault.WithHint(errors.New(err.Error()), fault.Hint(err))
		}
		err = fmt.Errorf("%w: %w", fault.ErrTemporary, err)
		if op := (*net.OpError)(nil); c.o.TLS != nil && errors.As(err, &op) && op.Op == "remote error" {
			err = fault.WithHint(err, "the manager rejects this device's certificate; its log says why")
		}
		return nil, err
	}
	if t, err := http.ParseTime(res.Header.Get("Date")); err == nil && c.o.Date != nil {
		c.o.Date(t)
	}
	return res, nil
}

// renewed closes connections that were opened with a certificate before the one of now: the manager judges each request by the
// certificate of its connection.
func (c *Client) renewed() {
	if c.o.TLS == nil || c.o.TLS.GetClientCertificate == nil {
		return
	}
	pair, err := c.o.TLS.GetClientCertificate(new(tls.CertificateRequestInfo))
	if err != nil {
		return // the next handshake tells
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != nil && !slices.EqualFunc(c.pair.Certificate, pair.Certificate, bytes.Equal) {
		c.http.CloseIdleConnections()
	}
	c.pair = pair
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
