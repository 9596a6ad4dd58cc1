package workloadapi_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/identity/workloadapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	manager = "spiffe://plant.acme.example/margo/wfm/main"
	press   = manager + "/client/press-07"
)

// text is a log that several goroutines write.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func source(t *testing.T, api *identitytest.WorkloadAPI, o workloadapi.Options) (*workloadapi.Source, *text) {
	t.Helper()
	log := &text{}
	o.Address, o.Log = api.Address, slog.New(slog.NewTextHandler(log, nil))
	if o.Now == nil {
		o.Now = time.Now
	}
	s, err := workloadapi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, log
}

// run follows the API until the test ends.
func run(t *testing.T, s *workloadapi.Source) {
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(done.Wait) // t.Context has ended by then
}

// until waits for something that the API brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func entry(t *testing.T, a *identitytest.Authority, id string, edit func(*x509.Certificate)) identitytest.Entry {
	return identitytest.Entry{ID: id, Pair: a.Issue(t, id, edit), Bundle: a.PEM()}
}

// The API may be away at the start and at any time later; certificates and anchors rotate without a restart.
func TestRotation(t *testing.T) {
	ours, next := identitytest.New(t), identitytest.New(t)
	api := identitytest.NewWorkloadAPI(t)
	s, log := source(t, api, workloadapi.Options{})
	if _, err := s.Credentials(); !errors.Is(err, fault.ErrTemporary) || !strings.Contains(err.Error(), "has not answered yet") {
		t.Errorf("Credentials before anything: %v", err)
	}
	run(t, s)
	until(t, "the API that is away is told", func() bool {
		_, err := s.Credentials()
		return errors.Is(err, fault.ErrTemporary) && strings.Contains(err.Error(), "no such file") && strings.Contains(fault.Hint(err), "is spire-agent running")
	})
	api.Start(t)
	until(t, "no identity is told", func() bool {
		_, err := s.Credentials()
		return errors.Is(err, fault.ErrTemporary) && strings.Contains(err.Error(), "no identity issued") && strings.Contains(fault.Hint(err), "spire-server entry create")
	})
	first := entry(t, ours, press, nil)
	api.Give(identitytest.Entry{ID: "spiffe://plant.acme.example/database", Pair: ours.Issue(t, "spiffe://plant.acme.example/database", nil), Bundle: ours.PEM()}, first)
	var now *identity.Credentials
	until(t, "the first certificate", func() bool {
		c, err := s.Credentials()
		now = c
		return err == nil
	})
	if now.SVID.Name.String() != press || now.Bundle.TrustDomain() != "plant.acme.example" || len(now.Bundle.Anchors()) != 1 {
		t.Errorf("Credentials = %s, %s", now.SVID.Name, now.Bundle.JSON())
	}
	same := func() bool { c, err := s.Credentials(); return err == nil && c == now }

	api.Give(identitytest.Entry{ID: press, Pair: ours.Issue(t, press, nil), Bundle: next.PEM()}) // leads to nothing
	until(t, "a wrong certificate is told", func() bool { return strings.Contains(log.String(), "leads to no authority") })
	if !same() {
		t.Error("a certificate that leads to no authority is in use")
	}
	api.Give()
	until(t, "the lost entry is told", func() bool { return strings.Contains(log.String(), "no identity issued") })
	api.Stop()
	until(t, "the lost API is told", func() bool {
		return strings.Contains(log.String(), "connection") || strings.Contains(log.String(), "no such file")
	})
	if !same() {
		t.Error("without the API the certificate is not in use any more")
	}
	api.Start(t)
	api.Give(identitytest.Entry{ID: press, Pair: next.Issue(t, press, nil), Bundle: append(ours.PEM(), next.PEM()...)})
	until(t, "the next certificate", func() bool {
		c, err := s.Credentials()
		return err == nil && c != now && len(c.Bundle.Anchors()) == 2
	})
	if n := strings.Count(log.String(), "certificate received"); n != 2 {
		t.Errorf("received %d times:\n%s", n, log)
	}
}

// What the profile does not allow is not used, whoever issued it.
func TestProfile(t *testing.T) {
	a := identitytest.New(t)
	two := func(c *x509.Certificate) { c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "x", Path: "/y"}) }
	for name, tt := range map[string]struct {
		entry   identitytest.Entry
		manager bool
		want    string // "": it is used
	}{
		"client":               {entry(t, a, press, nil), false, ""},
		"manager":              {entry(t, a, manager, nil), true, ""},
		"a client as manager":  {entry(t, a, press, nil), true, "no id of a manager, only " + press},
		"a manager as client":  {entry(t, a, manager, nil), false, "no id of a manager's client, only " + manager},
		"another id":           {entry(t, a, "spiffe://plant.acme.example/db", nil), false, "only spiffe://plant.acme.example/db"},
		"two URIs":             {entry(t, a, press, two), false, "URI"},
		"cA":                   {entry(t, a, press, func(c *x509.Certificate) { c.IsCA = true }), false, "CA"},
		"expired":              {entry(t, a, press, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), false, "expired at"},
		"no anchor":            {identitytest.Entry{ID: press, Pair: a.Issue(t, press, nil)}, false, "no certificate in PEM"},
		"the anchor is a leaf": {identitytest.Entry{ID: press, Pair: a.Issue(t, press, nil), Bundle: a.Issue(t, press, nil).Cert}, false, "may not sign certificates"},
	} {
		t.Run(name, func(t *testing.T) {
			api := identitytest.NewWorkloadAPI(t)
			api.Start(t)
			api.Give(tt.entry)
			s, _ := source(t, api, workloadapi.Options{Manager: tt.manager})
			err := s.Fetch(t.Context())
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, fault.ErrTemporary)) {
				t.Errorf("Fetch: %v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "BEGIN") {
				t.Errorf("a key in an error: %v", err)
			}
		})
	}
}

// A device whose clock is wrong at first uses the certificate as soon as the clock is right, without a new answer of the API; and one
// that the API does not renew ends with a sentence that says so.
func TestClock(t *testing.T) {
	a := identitytest.New(t)
	api := identitytest.NewWorkloadAPI(t)
	api.Start(t)
	api.Give(entry(t, a, press, nil))
	now := time.Now().Add(-24 * time.Hour)
	s, _ := source(t, api, workloadapi.Options{Now: func() time.Time { return now }})
	if err := s.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "is valid from") {
		t.Fatalf("Fetch with a clock of yesterday: %v", err)
	}
	now = time.Now()
	if _, err := s.Credentials(); err != nil {
		t.Fatal(err)
	}
	api.Stop()
	now = time.Now().Add(2 * time.Hour)
	if err := s.Fetch(t.Context()); !errors.Is(err, fault.ErrTemporary) || !strings.Contains(err.Error(), "expired at") || !strings.Contains(err.Error(), api.Address) {
		t.Errorf("an expired certificate without the API: %v", err)
	}
}

func TestNew(t *testing.T) {
	for _, address := range []string{"", "/run/spire/agent.sock", "unix:agent.sock", "unix://agent.sock", "tcp://127.0.0.1:8081", "unix:///a?b", "https://x"} {
		if _, err := workloadapi.New(workloadapi.Options{Address: address}); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("%q", address)) {
			t.Errorf("New(%q): %v", address, err)
		}
	}
}
