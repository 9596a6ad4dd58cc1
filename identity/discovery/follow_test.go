package discovery_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/discovery"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	domain  = "plant.acme.example"
	manager = "spiffe://" + domain + "/margo/wfm/main"
	press   = manager + "/client/press-07"
)

// site is a manager and a device of one trust domain.
type site struct {
	*httptest.Server
	served credentials
	answer map[string]http.HandlerFunc // by path
	file   string
	follow *discovery.Follower
}

// credentials may be exchanged.
type credentials struct{ now *identity.Credentials }

func (c *credentials) Credentials() (*identity.Credentials, error) { return c.now, nil }

func of(t *testing.T, a *identitytest.Authority, id string, anchors ...*identitytest.Authority) *identity.Credentials {
	t.Helper()
	pair := a.Issue(t, id, nil)
	svid, err := identity.ParseSVID("test", pair.Cert, "test", pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &identity.Credentials{SVID: svid, Bundle: bundle(t, anchors...)}
}

func bundle(t *testing.T, anchors ...*identitytest.Authority) *identity.Bundle {
	t.Helper()
	var text []byte
	for _, a := range anchors {
		text = append(text, a.PEM()...)
	}
	b, err := identity.ParseBundle("test", text, domain)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newSite(t *testing.T, a *identitytest.Authority) *site {
	t.Helper()
	s := &site{answer: map[string]http.HandlerFunc{}}
	s.served.now = of(t, a, manager, a)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := s.answer[r.URL.Path]; h != nil {
			h(w, r)
			return
		}
		http.NotFound(w, r)
	}))
	s.Listener = tls.NewListener(s.Listener, identity.ServerConfig(&s.served, time.Now)) // StartTLS has a certificate of its own
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	s.URL = strings.Replace(s.URL, "http:", "https:", 1)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	s.file = filepath.Join(dir, "bundle.pem")
	identitytest.Write(t, s.file, a.PEM())
	cert, key := a.Issue(t, press, nil).Write(t, dir, "press")
	log := slog.New(slog.DiscardHandler)
	s.follow = &discovery.Follower{
		URL: s.URL, File: s.file, Own: files.New(files.Files{Cert: cert, Key: key, Bundle: s.file}, time.Now, log), Now: time.Now, Log: log,
	}
	return s
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
}

// publish names the manager's own address, and has a bundle there.
func (s *site) publish(body string) {
	s.answer["/.well-known/margo"] = text(`{"trustDomain":"` + domain + `","trustBundleUri":"` + s.URL + `/bundle"}`)
	s.answer["/bundle"] = text(body)
}

func (s *site) anchors(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := identity.ParseBundle("file", data, domain)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range b.Anchors() {
		out = append(out, c.SerialNumber.String())
	}
	return strings.Join(out, " ")
}

// A bundle is replaced as a whole, by one that the manager serves whom the bundle before authenticates. Everything else keeps it.
func TestFollow(t *testing.T) {
	ours, next, stranger := identitytest.New(t), identitytest.New(t), identitytest.New(t)
	json := func(anchors ...*identitytest.Authority) string { return string(bundle(t, anchors...).JSON()) }
	web := httptest.NewTLSServer(text(json(ours, stranger)))
	t.Cleanup(web.Close)
	other := newSite(t, stranger) // a manager of the same name, by another authority
	other.answer["/bundle"] = text(json(ours, stranger))
	serial := func(a *identitytest.Authority) string { return a.Certificate.SerialNumber.String() }
	hinted := strings.Replace(json(ours, next), `{"keys"`, `{"spiffe_refresh_hint":120,"keys"`, 1)
	for name, tt := range map[string]struct {
		set  func(*site)
		want string // of the error; "": none
		have string // anchors afterwards
		next time.Duration
	}{
		"no document":         {func(*site) {}, "", serial(ours), time.Hour},
		"the same":            {func(s *site) { s.publish(json(ours)) }, "", serial(ours), time.Hour},
		"one more":            {func(s *site) { s.publish(hinted) }, "", serial(ours) + " " + serial(next), 2 * time.Minute},
		"without the manager": {func(s *site) { s.publish(json(next)) }, "does not pass by its own bundle", serial(ours), time.Hour},
		"no anchor":           {func(s *site) { s.publish(`{"keys":[]}`) }, "no trust anchor", serial(ours), time.Hour},
		"damaged":             {func(s *site) { s.publish(json(ours, next)[:200]) }, "no SPIFFE bundle", serial(ours), time.Hour},
		"huge":                {func(s *site) { s.publish(strings.Repeat(" ", 2<<20)) }, "too large", serial(ours), time.Hour},
		"away":                {func(s *site) { s.publish(""); delete(s.answer, "/bundle") }, "404 Not Found", serial(ours), time.Hour},
		"another trust domain": {func(s *site) {
			s.answer["/.well-known/margo"] = text(`{"trustDomain":"evil.example","trustBundleUri":"https://x/"}`)
		}, `"evil.example"`, serial(ours), time.Hour},
		"plain HTTP": {func(s *site) {
			s.answer["/.well-known/margo"] = text(`{"trustDomain":"` + domain + `","trustBundleUri":"http://x/"}`)
		}, "is no absolute https URL", serial(ours), time.Hour},
		"no JSON": {func(s *site) { s.answer["/.well-known/margo"] = text("<html>") }, "discovery document", serial(ours), time.Hour},
		"by web TLS": {func(s *site) {
			s.answer["/.well-known/margo"] = text(`{"trustDomain":"` + domain + `","trustBundleUri":"` + web.URL + `"}`)
		}, "names hosts and no SPIFFE id", serial(ours), time.Hour},
		"by another authority's manager": {func(s *site) {
			s.answer["/.well-known/margo"] = text(`{"trustDomain":"` + domain + `","trustBundleUri":"` + other.URL + `/bundle"}`)
		}, "leads to no authority", serial(ours), time.Hour},
		"the document by another authority's manager": {func(s *site) { s.follow.URL = other.URL }, "leads to no authority", serial(ours), time.Hour},
		"redirected": {func(s *site) {
			s.answer["/.well-known/margo"] = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, other.URL+"/bundle", http.StatusFound)
			}
		}, "302 Found", serial(ours), time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, ours)
			tt.set(s)
			every, err := s.follow.Once(t.Context())
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Once: %v, want %q", err, tt.want)
			}
			if have := s.anchors(t); have != tt.have || every != tt.next {
				t.Errorf("anchors %s, again in %s, want %s in %s", have, every, tt.have, tt.next)
			}
		})
	}
}

// An authority is exchanged step by step, and the last bundle lacks the first one: it is adopted because the bundle before vouches for it.
func TestRotation(t *testing.T) {
	ours, next := identitytest.New(t), identitytest.New(t)
	s := newSite(t, ours)
	once := func(want string) {
		t.Helper()
		if _, err := s.follow.Once(t.Context()); err != nil || s.anchors(t) != want {
			t.Fatalf("Once: %v, anchors %s, want %s", err, s.anchors(t), want)
		}
	}
	both := ours.Certificate.SerialNumber.String() + " " + next.Certificate.SerialNumber.String()
	s.publish(string(bundle(t, ours, next).JSON()))
	once(both)
	s.served.now = of(t, next, manager, ours, next)
	s.publish(string(bundle(t, next).JSON()))
	if _, err := s.follow.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "own certificate") || s.anchors(t) != both {
		t.Errorf("before the device has a new certificate: %v", err)
	}
	next.Issue(t, press, nil).Write(t, filepath.Dir(s.file), "press")
	once(next.Certificate.SerialNumber.String())
}

// Failures are told once each, and tried again more and more rarely.
func TestRun(t *testing.T) {
	a := identitytest.New(t)
	own := of(t, a, press, a)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		dials := 0
		f := &discovery.Follower{
			URL: "https://manager.invalid", File: "/nowhere", Own: own, Now: func() time.Time { return own.SVID.NotBefore.Add(time.Minute) },
			Log: slog.New(slog.NewTextHandler(&log, nil)), Proxy: func(*http.Request) (*url.URL, error) {
				dials++
				return nil, errors.New("no network")
			},
		}
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			f.Run(ctx)
		}()
		time.Sleep(24 * time.Hour) // of the test's own clock
		synctest.Wait()
		cancel()
		<-done
		if n := strings.Count(log.String(), "stays in use"); n != 1 || dials < 25 || dials > 35 {
			t.Errorf("told %d times, asked %d times in a day:\n%s", n, dials, &log)
		}
	})
}
