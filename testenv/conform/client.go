package conform

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
)

const (
	maxBody        = 64 << 20 // bytes of an answer
	requestTimeout = 20 * time.Second
	shownBody      = 300 // bytes of an answer in a message
	maxTries       = 4
	maxRetryAfter  = 10 // seconds
)

// peer is a client of the manager, with connections of its own.
type peer struct {
	id     spiffeID
	device string
	base   string
	http   *http.Client
}

// session is a run of the suite.
type session struct {
	Target
	roots  *x509.CertPool
	client *peer
	peers  []*peer
}

func newSession(t Target) (*session, error) {
	u, err := url.Parse(t.BaseURL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is no https URL", t.BaseURL)
	}
	if len(t.Anchors) == 0 {
		return nil, errors.New("no trust anchor")
	}
	t.BaseURL = strings.TrimSuffix(t.BaseURL, "/")
	if t.Patience <= 0 {
		t.Patience = time.Minute
	}
	s := &session{Target: t, roots: x509.NewCertPool()}
	for _, a := range t.Anchors {
		s.roots.AddCert(a)
	}
	if s.client, err = s.peer(t.Client, t.Device); err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	return s, nil
}

func (s *session) close() {
	for _, p := range s.peers {
		p.http.CloseIdleConnections()
	}
}

// peer is a client with a certificate, which talks to its own manager only.
func (s *session) peer(c tls.Certificate, device string) (*peer, error) {
	id, err := identityOf(c)
	if err != nil {
		return nil, err
	}
	p := s.dial(c, func(state tls.ConnectionState) error { return s.isManager(state, id.managerID()) })
	p.id, p.device = id, cmp.Or(device, id.client)
	return p, nil
}

// dial makes a client of any certificate.
func (s *session) dial(c tls.Certificate, verify func(tls.ConnectionState) error) *peer {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: verify}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
	return s.over(config)
}

func (s *session) over(config *tls.Config) *peer {
	p := &peer{base: s.BaseURL, http: &http.Client{
		Timeout: requestTimeout, Transport: &http.Transport{TLSClientConfig: config, DisableCompression: true, MaxIdleConnsPerHost: 4},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	s.peers = append(s.peers, p)
	return p
}

// isManager checks the certificate that a manager presents by the trust anchors.
func (s *session) isManager(state tls.ConnectionState, id string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the manager presents no certificate")
	}
	leaf := state.PeerCertificates[0]
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != id {
		return fmt.Errorf("the manager's certificate has the URIs %v, want only %s", leaf.URIs, id)
	}
	o := x509.VerifyOptions{Roots: s.roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, c := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(o); err != nil {
		return fmt.Errorf("the manager's certificate does not lead to the trust bundle: %w", err)
	}
	return nil
}

// answer is what a request was answered.
type answer struct {
	request string
	status  int
	proto   string
	header  http.Header
	body    []byte
}

func (a *answer) String() string {
	text := string(a.body[:min(len(a.body), shownBody)])
	return fmt.Sprintf("%s: %d %s %q", a.request, a.status, a.header.Get("Content-Type"), text)
}

// do sends a request, and again where the manager is busy. header are names and values in turn.
func (p *peer) do(ctx context.Context, method, path string, body any, header ...string) (*answer, error) {
	for try := 1; ; try++ {
		a, err := p.once(ctx, method, path, body, header...)
		if err != nil || try == maxTries || a.status != http.StatusTooManyRequests && a.status != http.StatusServiceUnavailable {
			return a, err
		}
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		if err != nil || seconds < 0 || seconds > maxRetryAfter {
			return a, nil
		}
		if err := delay.For(ctx, time.Duration(seconds)*time.Second); err != nil {
			return nil, err
		}
	}
}

// once sends a request.
func (p *peer) once(ctx context.Context, method, path string, body any, header ...string) (*answer, error) {
	var data []byte
	switch b := body.(type) {
	case nil:
	case []byte:
		data = b
	default:
		var err error
		if data, err = json.Marshal(b); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := p.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	a := &answer{request: method + " " + path, status: res.StatusCode, proto: res.Proto, header: res.Header}
	a.body, err = io.ReadAll(io.LimitReader(res.Body, maxBody))
	return a, err
}

func (p *peer) get(ctx context.Context, path string, header ...string) (*answer, error) {
	return p.do(ctx, http.MethodGet, path, nil, header...)
}

// want is nil where the answer has one of the status codes.
func (a *answer) want(status ...int) error {
	for _, s := range status {
		if a.status == s {
			return nil
		}
	}
	return fmt.Errorf("%s, want status %d", a, status)
}

// has is nil where a header has a value.
func (a *answer) has(name, value string) error {
	if got := a.header.Values(name); len(got) != 1 || got[0] != value {
		return fmt.Errorf("%s: %s is %q, want %q", a.request, name, got, value)
	}
	return nil
}

// expect sends a request and wants a status code.
func (p *peer) expect(ctx context.Context, method, path string, body any, status ...int) error {
	a, err := p.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	return a.want(status...)
}

// rejects sends a request and wants a problem.
func (p *peer) rejects(ctx context.Context, method, path string, body any, status int, fragment string, header ...string) error {
	a, err := p.do(ctx, method, path, body, header...)
	if err != nil {
		return err
	}
	return a.problem(status, fragment)
}
