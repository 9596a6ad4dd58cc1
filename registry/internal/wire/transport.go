package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxPEM          = 4 << 20 // a whole system bundle of roots is about 250 KiB
	maxRedirects    = 10
	dialTimeout     = 15 * time.Second
	tlsTimeout      = 15 * time.Second
	idleTimeout     = 90 * time.Second
	maxAnswerHeader = 64 << 10
)

// TLS has the trusted roots and the client certificates.
type TLS struct {
	CAFiles     []string    // PEM, beside the system's roots
	LaterCAFile string      // like these, but it need not be there; "": none
	Pairs       [][2]string // certificate file, key file (may be the same)
	SkipVerify  bool
	Now         func() time.Time // for the validity of certificates; nil: the system's clock
}

// Proxy reads the usual variables. Loopback addresses are never sent through a proxy.
func Proxy(getenv func(string) string) func(*http.Request) (*url.URL, error) {
	either := func(upper, lower string) string {
		if v := getenv(upper); v != "" {
			return v
		}
		return getenv(lower)
	}
	c := httpproxy.Config{
		HTTPProxy:  either("HTTP_PROXY", "http_proxy"),
		HTTPSProxy: either("HTTPS_PROXY", "https_proxy"),
		NoProxy:    either("NO_PROXY", "no_proxy"),
	}
	f := c.ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return f(r.URL) }
}

// Config reads the files.
func (o TLS) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.SkipVerify, Time: o.Now} // only if a user sets it explicitly
	files := o.CAFiles
	if Exists(o.LaterCAFile) {
		files = append(slices.Clone(files), o.LaterCAFile)
	}
	if len(files) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		for _, f := range files {
			pem, err := readFile(f)
			if err != nil {
				return nil, fmt.Errorf("CA file %w", err)
			}
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fault.WithHint(fmt.Errorf("CA file %s holds no PEM certificate: %w", f, fault.ErrInvalid),
					"put the certificate of the registry's authority there, in PEM")
			}
		}
		c.RootCAs = pool
	}
	for _, p := range o.Pairs {
		cert, err := readFile(p[0])
		if err != nil {
			return nil, fmt.Errorf("client certificate %w", err)
		}
		key, err := readFile(p[1])
		if err != nil {
			return nil, fmt.Errorf("client key %w", err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			// The error of X509KeyPair names types and never contains key material.
			err = fmt.Errorf("client certificate %s with key %s: %w: %w", p[0], p[1], err, fault.ErrInvalid)
			if p[0] == p[1] {
				err = fault.WithHint(err, "the file has to hold both; hosts.toml names two files by a pair in a list: client = [[\"cert.pem\", \"key.pem\"]]")
			}
			return nil, err
		}
		c.Certificates = append(c.Certificates, pair)
	}
	return c, nil
}

func newTransport(o TLS, answer time.Duration, proxy func(*http.Request) (*url.URL, error)) (*http.Transport, error) {
	c, err := o.Config()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        c,
		TLSHandshakeTimeout:    tlsTimeout,
		ResponseHeaderTimeout:  answer,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           128,
		MaxIdleConnsPerHost:    128, // publishing a fleet uses as many
		MaxResponseHeaderBytes: maxAnswerHeader,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // sizes, ranges and digests are of the bytes on the wire
	}, nil
}

// Exists reports whether a file is there; "" is none.
func Exists(file string) bool {
	if file == "" {
		return false
	}
	_, err := os.Stat(file)
	return !errors.Is(err, os.ErrNotExist) // what cannot be looked at is told when it is read
}

func readFile(path string) ([]byte, error) {
	data, err := bounded.File(os.Open, path, maxPEM)
	var at *os.PathError
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", path, fault.ErrNotFound)
	case errors.As(err, &at):
		return nil, fmt.Errorf("%s: %w: %w", path, at.Err, fault.ErrInvalid)
	}
	return data, err
}

// Redirect rejects redirects from HTTPS to HTTP, and loops.
func Redirect(next *http.Request, via []*http.Request) error {
	if via[len(via)-1].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return fmt.Errorf("it redirects from https to %s: %w", next.URL.Scheme, fault.ErrDenied)
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects: %w", maxRedirects, fault.ErrTemporary)
	}
	return nil
}

// WithHeader adds header to requests for host, and to no other: redirects and token servers do not get it.
func WithHeader(base http.RoundTripper, host string, header http.Header) http.RoundTripper {
	if len(header) == 0 {
		return base
	}
	return &scoped{base, host, header}
}

type scoped struct {
	base   http.RoundTripper
	host   string
	header http.Header
}

func (s *scoped) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == s.host {
		r = r.Clone(r.Context())
		for k, v := range s.header {
			r.Header[k] = append(r.Header[k], v...)
		}
	}
	return s.base.RoundTrip(r)
}
