package enroll_test

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/ca"
	"github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const managerID = "spiffe://plant.acme.example/margo/wfm/main"

var managerName = identity.Name{TrustDomain: "plant.acme.example", Manager: "main"}

func authority(t *testing.T) *ca.Authority {
	t.Helper()
	a, err := ca.New("plant.acme.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// manager is a server that approves everybody, and counts.
type manager struct {
	authority *ca.Authority
	url       string
	requests  atomic.Int64
	key       atomic.Value // fingerprint of the last request
	seen      atomic.Value // its body
}

func startManager(t *testing.T, a *ca.Authority, source identity.Source) *manager {
	t.Helper()
	m := &manager{authority: a}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/spiffe/bundle.json", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(a.Bundle().JSON()) })
	mux.HandleFunc("POST "+enroll.Path, func(w http.ResponseWriter, r *http.Request) {
		m.requests.Add(1)
		key, fingerprint, err := enroll.PeerKey(r.TLS)
		body, _ := io.ReadAll(r.Body)
		m.seen.Store(string(body))
		if err == nil {
			_, err = enroll.ParseRequest(body, key)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		m.key.Store(fingerprint.String())
		_ = json.NewEncoder(w).Encode(enroll.Answer{Status: enroll.Pending, After: 7})
	})
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = enroll.ServerConfig(identity.ServerConfig(source, time.Now))
	s.StartTLS()
	t.Cleanup(s.Close)
	m.url = s.URL
	return m
}

func newManager(t *testing.T) *manager {
	t.Helper()
	a := authority(t)
	source, err := a.Manager(managerName, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return startManager(t, a, source)
}

func ask(t *testing.T, o enroll.Options) (enroll.Answer, error) {
	t.Helper()
	if o.Now == nil {
		o.Now = time.Now
	}
	c, err := enroll.New(o)
	if err != nil {
		return enroll.Answer{}, err
	}
	defer c.Close()
	r, err := enroll.NewRequest(o.Key)
	if err != nil {
		t.Fatal(err)
	}
	r.Token = "lsj_id_secret"
	return c.Ask(t.Context(), r)
}

func TestAsk(t *testing.T) {
	m := newManager(t)
	key := identitytest.NewKey(t)
	pin, err := enroll.ManagerFingerprint(m.authority.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	o := enroll.Options{URL: m.url, Key: key, Now: time.Now}
	fetched, err := enroll.Anchors(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for name, trust := range map[string]enroll.Trust{
		"a trust bundle":          {Anchors: m.authority.Bundle().JSON()},
		"a fingerprint":           {Anchors: fetched, Pin: pin},
		"the manager by its name": {Anchors: fetched, Pin: pin, Manager: managerID},
	} {
		o.Trust = trust
		a, err := ask(t, o)
		if err != nil || a.Status != enroll.Pending || a.RetryAfter() != 7*time.Second {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if want, _ := identity.Fingerprint(key.Public()); m.key.Load() != want.String() {
			t.Errorf("%s: the manager knows the key as %v, want %s", name, m.key.Load(), want)
		}
	}
}

// A device sends nothing to a server that is not its manager.
func TestWrongManager(t *testing.T) {
	m, other := newManager(t), newManager(t)
	key := identitytest.NewKey(t)
	pin, err := enroll.ManagerFingerprint(m.authority.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	client, err := m.authority.Manager(identity.Name{TrustDomain: "plant.acme.example", Manager: "main", Client: "press-08"}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	posing := startManager(t, m.authority, client)
	ours := m.authority.Bundle().JSON()
	for name, tt := range map[string]struct {
		at    *manager
		trust enroll.Trust
		now   func() time.Time
		want  string
	}{
		"nothing is known":                 {m, enroll.Trust{}, nil, "nothing is known"},
		"another authority":                {other, enroll.Trust{Anchors: ours}, nil, "leads to no authority"},
		"another fingerprint":              {other, enroll.Trust{Anchors: other.authority.Bundle().JSON(), Pin: pin}, nil, "no authority of the server has the fingerprint"},
		"its own authority beside ours":    {other, enroll.Trust{Anchors: joined(t, m, other), Pin: pin}, nil, "leads to no authority"},
		"a client of the trust domain":     {posing, enroll.Trust{Anchors: ours}, nil, "id of a client"},
		"another manager of the domain":    {m, enroll.Trust{Anchors: ours, Manager: managerID + "-2"}, nil, "is expected"},
		"the device's clock is far behind": {m, enroll.Trust{Anchors: ours}, func() time.Time { return time.Unix(0, 0) }, "is valid from"},
		"the device's clock is far ahead":  {m, enroll.Trust{Anchors: ours}, func() time.Time { return time.Now().AddDate(20, 0, 0) }, "expired at"},
	} {
		before := tt.at.requests.Load()
		_, err := ask(t, enroll.Options{URL: tt.at.url, Key: key, Trust: tt.trust, Now: tt.now})
		if !errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(err.Error(), tt.want) || errors.Is(err, fault.ErrTemporary) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if tt.now != nil && !strings.Contains(fault.Hint(err), "clocks") {
			t.Errorf("%s: hint %q", name, fault.Hint(err))
		}
		if n := tt.at.requests.Load() - before; n != 0 {
			t.Errorf("%s: %d requests arrived", name, n)
		}
	}
}

// joined is a bundle with the anchors of two managers.
func joined(t *testing.T, all ...*manager) []byte {
	t.Helper()
	var out []byte
	for _, m := range all {
		cert, _, err := m.authority.Files()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, cert...)
	}
	return out
}

// A proxy that ends TLS sees no request of a device, and cannot make one itself.
func TestProxy(t *testing.T) {
	m := newManager(t)
	target, err := url.Parse(m.url)
	if err != nil {
		t.Fatal(err)
	}
	var passed atomic.Int64
	behind := httputil.NewSingleHostReverseProxy(target)
	behind.ErrorLog = log.New(io.Discard, "", 0)
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{enroll.Protocol, "http/1.1"}}}
	defer tr.CloseIdleConnections()
	behind.Transport = tr
	own := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		passed.Add(1)
		behind.ServeHTTP(w, r)
	}))
	own.Config.ErrorLog = log.New(io.Discard, "", 0)
	own.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	own.StartTLS()
	defer own.Close()
	_, err = ask(t, enroll.Options{URL: own.URL, Key: identitytest.NewKey(t), Trust: enroll.Trust{Anchors: m.authority.Bundle().JSON()}})
	if !errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(fault.Hint(err), "must not end it") || passed.Load() != 0 {
		t.Errorf("through a proxy that ends TLS: %v (%s), %d requests", err, fault.Hint(err), passed.Load())
	}
	// What the proxy sends itself has no key of a device.
	res, err := own.Client().Post(own.URL+enroll.Path, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusBadGateway || m.requests.Load() != 0 {
		t.Errorf("a request of the proxy itself: %s, %d arrived", res.Status, m.requests.Load())
	}
}

// One that passes TLS on is no obstacle.
func TestPassThrough(t *testing.T) {
	m := newManager(t)
	target, err := url.Parse(m.url)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", target.Host)
			if err != nil {
				_ = from.Close()
				return
			}
			go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
			go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		}
	}()
	a, err := ask(t, enroll.Options{URL: "https://" + l.Addr().String(), Key: identitytest.NewKey(t), Trust: enroll.Trust{Anchors: m.authority.Bundle().JSON()}})
	if err != nil || a.Status != enroll.Pending {
		t.Errorf("through a proxy that passes TLS on: %+v, %v", a, err)
	}
}

// The address of enrolled devices stays as strict as it is; that of others takes no certificate that names somebody.
func TestServerConfig(t *testing.T) {
	m := newManager(t)
	self := identitytest.New(t)
	named := self.Issue(t, managerID+"/client/press-07", nil)
	nameless := self.Issue(t, managerID, func(c *x509.Certificate) { c.URIs = nil })
	svid, key, err := m.authority.Issue(identity.Name{TrustDomain: "plant.acme.example", Manager: "main", Client: "press-07"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		pair   identitytest.Pair
		protos []string
		want   bool
	}{
		"nobody, enrolling":                    {nameless, []string{enroll.Protocol}, true},
		"nobody, not enrolling":                {nameless, nil, false},
		"a name of another authority":          {named, nil, false},
		"a name of another authority, enrolls": {named, []string{enroll.Protocol}, false},
		"an enrolled device":                   {identitytest.Pair{Cert: svid, Key: key}, nil, true},
		"an enrolled device, enrolls":          {identitytest.Pair{Cert: svid, Key: key}, []string{enroll.Protocol}, false},
	} {
		pair, err := tls.X509KeyPair(tt.pair.Cert, tt.pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		protos := append(tt.protos, "http/1.1")
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}, NextProtos: protos}}
		res, err := (&http.Client{Transport: tr}).Get(m.url + "/.well-known/spiffe/bundle.json")
		if (err == nil) != tt.want {
			t.Errorf("%s: %v, want success %v", name, err, tt.want)
		}
		if err == nil {
			_ = res.Body.Close()
		}
		tr.CloseIdleConnections()
	}
}

func TestPeerKey(t *testing.T) {
	weak := identitytest.New(t).Certificate
	weak.PublicKey = crypto.PublicKey(struct{}{})
	for _, state := range []*tls.ConnectionState{nil, {}, {PeerCertificates: []*x509.Certificate{weak}}} {
		if _, _, err := enroll.PeerKey(state); err == nil {
			t.Errorf("PeerKey(%+v): no error", state)
		}
	}
}

// What a server answers that is no manager, or breaks.
func TestAnswers(t *testing.T) {
	a := authority(t)
	source, err := a.Manager(managerName, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	var answer http.HandlerFunc
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	s.TLS = enroll.ServerConfig(identity.ServerConfig(source, time.Now))
	s.StartTLS()
	defer s.Close()
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if header != nil {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(code)
		}
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
	}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		is     error
	}{
		"not found":    {status(404), fault.ErrUnsupported},
		"a redirect":   {status(302, "Location", "https://evil.example/"), fault.ErrUnsupported},
		"busy":         {status(503, "Retry-After", "42"), fault.ErrTemporary},
		"denied":       {status(403), fault.ErrDenied},
		"a conflict":   {status(409), fault.ErrConflict},
		"no JSON":      {text("<html>"), fault.ErrInvalid},
		"no status":    {text("{}"), fault.ErrInvalid},
		"endless":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, enroll.MaxAnswer+1)) }, fault.ErrTooLarge},
		"wipe":         {text(`{"status":"approved","wipe":true}`), fault.ErrInvalid},
		"pending gift": {text(`{"status":"pending","grant":{"certificate":"x","trustBundle":{},"manager":"x","source":{"margo":true}}}`), fault.ErrInvalid},
		"another policy": {text(`{"status":"approved","grant":{"certificate":"x","trustBundle":{},"manager":"x","source":{"margo":true},` +
			`"trust":{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","document":"rules: []"}}}`), fault.ErrDigestMismatch},
	} {
		answer = tt.answer
		_, err := ask(t, enroll.Options{URL: s.URL, Key: identitytest.NewKey(t), Trust: enroll.Trust{Anchors: a.Bundle().JSON()}})
		if !errors.Is(err, tt.is) {
			t.Errorf("%s: %v, want %v", name, err, tt.is)
		}
		if after, _ := fault.RetryAfter(err); name == "busy" && after != 42*time.Second {
			t.Errorf("%s: retry after %s", name, after)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := enroll.New(enroll.Options{URL: s.URL, Key: identitytest.NewKey(t), Now: time.Now, Trust: enroll.Trust{Anchors: a.Bundle().JSON()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Ask(ctx, enroll.Request{Check: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context ended: %v", err)
	}
	for _, bad := range []string{"http://fleet.example", "fleet.example:8443", "https://fleet.example/path", "https://user@fleet.example", "https://"} {
		if _, err := enroll.New(enroll.Options{URL: bad, Key: identitytest.NewKey(t), Now: time.Now}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("New(%s): %v", bad, err)
		}
	}
}
