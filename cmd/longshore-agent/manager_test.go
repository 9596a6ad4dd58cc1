package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/identitytest"
	othermanager "github.com/longshore-dev/longshore/testenv/manager"
)

const (
	managerID = "spiffe://plant.acme.example/margo/wfm/main"
	pressID   = managerID + "/client/press-07"
)

// plant is a trust domain with the files of one device.
type plant struct {
	*identitytest.Authority
	roots *x509.CertPool
	files config.Endpoint
}

func newPlant(t *testing.T) *plant {
	t.Helper()
	p := &plant{Authority: identitytest.New(t), roots: x509.NewCertPool()}
	p.roots.AddCert(p.Certificate)
	dir := t.TempDir()
	p.files.TrustBundle = filepath.Join(dir, "bundle.pem")
	identitytest.Write(t, p.files.TrustBundle, p.PEM())
	p.files.CertFile, p.files.KeyFile = p.Issue(t, pressID, nil).Write(t, dir, "press-07")
	return p
}

// certificate is a manager's; edit may be nil.
func (p *plant) certificate(t *testing.T, id string, edit func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	pair := p.Issue(t, id, edit)
	c, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// source is what agent.yaml makes of an endpoint, as the agent has it.
func source(t *testing.T, e config.Endpoint) (*parts, desired) {
	t.Helper()
	start := time.Now()
	clk := clock.New(time.Now, func() time.Duration { return time.Since(start) })
	st, err := store.Open(store.Options{Path: filepath.Join(t.TempDir(), "agent.db"), Device: "press-07"})
	if err != nil {
		t.Fatal(err)
	}
	p := &parts{store: st, managers: map[config.Endpoint]*manager.Client{}}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p, p.source(&config.Config{Device: "press-07", Source: config.Source{Manager: e}}, clk, slog.New(slog.DiscardHandler))
}

func ask(t *testing.T, s intake.Source, repository string) (d ocispec.Descriptor, err error) {
	t.Helper()
	err = s.EachResolve(t.Context(), repository, "press-07", func(x ocispec.Descriptor) bool {
		d = x
		return true
	})
	return d, err
}

// A manager is who its certificate says, by the device's own certificate, and nobody else is asked anything.
func TestManagerByMutualTLS(t *testing.T) {
	p, other := newPlant(t), newPlant(t)
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	short := p.IssueKey(t, weak, managerID, nil)
	rsa2048, err := tls.X509KeyPair(short.Cert, short.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		cert tls.Certificate
		want string // "": it is taken
	}{
		{"the manager", p.certificate(t, managerID, nil), ""},
		{"trust domain of another", other.certificate(t, "spiffe://other.example/margo/wfm/main", nil), "trust"},
		{"authority of another", other.certificate(t, managerID, nil), "authority"},
		{"another manager", p.certificate(t, "spiffe://plant.acme.example/margo/wfm/second", nil), "second"},
		{"a client", p.certificate(t, managerID+"/client/press-08", nil), "press-08"},
		{"expired", p.certificate(t, managerID, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "expired"},
		{"two URIs", p.certificate(t, managerID, func(c *x509.Certificate) {
			c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "plant.acme.example", Path: "/x"})
		}), "URI"},
		{"an authority", p.certificate(t, managerID, func(c *x509.Certificate) { c.IsCA = true }), "cA"},
		{"not valid yet", p.certificate(t, managerID, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		}), "is valid from"},
		{"keyCertSign", p.certificate(t, managerID, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), "may sign certificates"},
		{"cRLSign", p.certificate(t, managerID, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }), "may sign certificates"},
		{"RSA 2048", rsa2048, "RSA key of 2048 bits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := othermanager.New("press-07")
			e := p.files
			e.URL = m.ServeTLS(t, tc.cert, p.roots)
			_, s := source(t, e)
			d, err := ask(t, s, s.Repository())
			if tc.want == "" {
				if err != nil || d.MediaType != artifacts.TypeState {
					t.Fatalf("EachResolve = %+v, %v", d, err)
				}
				if d2, err := ask(t, s, s.Repository()); err != nil || d2.Digest != d.Digest {
					t.Errorf("EachResolve again = %+v, %v", d2, err)
				}
				if got := m.Requests(); len(got) != 2 || !strings.HasSuffix(got[1], " 304") {
					t.Errorf("requests %q, want the second to be answered 304", got)
				}
				return
			}
			if !errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("EachResolve = %v, want an error that may pass, with %q", err, tc.want)
			}
			if got := m.Requests(); len(got) > 0 {
				t.Errorf("it was asked %q", got)
			}
		})
	}
}

// A device presents its own SVID with all that leads to the authority, by TLS 1.3 only, and none that its manager must reject.
func TestDevicePresentsItsSVID(t *testing.T) {
	p := newPlant(t)
	below := p.Intermediate(t)
	e, m := p.files, othermanager.New("press-07")
	e.CertFile, e.KeyFile = below.Issue(t, pressID, nil).Write(t, t.TempDir(), "below")
	var seen atomic.Pointer[tls.ConnectionState]
	m.Intercept(func(_ http.ResponseWriter, r *http.Request, _ string) bool {
		seen.Store(r.TLS)
		return false
	})
	e.URL = m.ServeTLS(t, p.certificate(t, managerID, nil), p.roots)
	_, s := source(t, e)
	if _, err := ask(t, s, s.Repository()); err != nil {
		t.Fatal(err)
	}
	state := seen.Load()
	if state == nil || state.Version != tls.VersionTLS13 || len(state.PeerCertificates) != 2 || !state.PeerCertificates[1].Equal(below.Certificate) {
		t.Fatalf("the manager sees %+v", state)
	}
	leaf := state.PeerCertificates[0]
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); len(leaf.URIs) != 1 || leaf.URIs[0].String() != pressID || leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 || !ok || key.Curve != elliptic.P256() {
		t.Errorf("the device presents %v, CA %v, usage %b, key %T", leaf.URIs, leaf.IsCA, leaf.KeyUsage, leaf.PublicKey)
	}
	for want, edit := range map[string]func(*x509.Certificate){
		"has 2 URIs": func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }, "is an authority's": func(c *x509.Certificate) { c.IsCA = true },
		"may sign certificates": func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign },
	} {
		m.Requests()
		e.CertFile, e.KeyFile = p.Issue(t, pressID, edit).Write(t, t.TempDir(), "bad")
		_, s := source(t, e)
		if _, err := ask(t, s, s.Repository()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a certificate that %s: %v", want, err)
		}
		if got := m.Requests(); len(got) > 0 {
			t.Errorf("with a certificate that %s the manager was asked %q", want, got)
		}
	}
	old := httptest.NewUnstartedServer(m)
	old.Config.ErrorLog = log.New(io.Discard, "", 0)
	old.TLS = &tls.Config{Certificates: []tls.Certificate{p.certificate(t, managerID, nil)}, MaxVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert}
	old.StartTLS()
	t.Cleanup(old.Close)
	e = p.files
	e.URL = old.URL
	_, s = source(t, e)
	if _, err := ask(t, s, s.Repository()); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("a manager with TLS 1.2 only: %v", err)
	}
	if got := m.Requests(); len(got) > 0 {
		t.Errorf("a manager with TLS 1.2 only was asked %q", got)
	}
}

// A manager that does not know the device's certificate says so, and without the files nobody is asked.
func TestManagerRejectsTheDevice(t *testing.T) {
	p, other := newPlant(t), newPlant(t)
	m := othermanager.New("press-07")
	e := p.files
	e.URL = m.ServeTLS(t, p.certificate(t, managerID, nil), other.roots)
	_, s := source(t, e)
	if _, err := ask(t, s, s.Repository()); !errors.Is(err, fault.ErrTemporary) || !strings.Contains(fault.Hint(err), "rejects this device's certificate") {
		t.Errorf("EachResolve = %v, hint %q", err, fault.Hint(err))
	}
	if err := os.Remove(e.KeyFile); err != nil {
		t.Fatal(err)
	}
	_, s = source(t, e)
	if _, err := ask(t, s, s.Repository()); !errors.Is(err, fault.ErrTemporary) || !strings.Contains(err.Error(), "press-07.key") {
		t.Errorf("EachResolve without a key = %v", err)
	}
}

// With a token the manager is who an authority says by the name of its host; neither the token nor the question leaves it.
func TestManagerByToken(t *testing.T) {
	var asked []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.Header.Get("Authorization")) }))
	defer elsewhere.Close()
	m := othermanager.New("press-07")
	m.Token("s3cret", "press-07")
	server := httptest.NewTLSServer(m)
	defer server.Close()
	dir := t.TempDir()
	e := config.Endpoint{URL: server.URL, TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.pem")}
	identitytest.Write(t, e.TokenFile, []byte("s3cret\n"))
	identitytest.Write(t, e.CAFile, (&identitytest.Authority{Certificate: server.Certificate()}).PEM())
	_, s := source(t, e)
	if _, err := ask(t, s, s.Repository()); err != nil {
		t.Fatal(err)
	}
	m.Intercept(func(w http.ResponseWriter, r *http.Request, _ string) bool {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
	if _, err := ask(t, s, s.Repository()); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "is not followed") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("EachResolve of a redirect = %v", err)
	}
	if len(asked) > 0 {
		t.Errorf("another host was asked with %q", asked)
	}
	if p, broken := source(t, config.Endpoint{URL: server.URL, TokenFile: e.TokenFile, CAFile: filepath.Join(dir, "none.pem")}); p != nil {
		if _, err := ask(t, broken, broken.Repository()); !errors.Is(err, fault.ErrConfig) || broken.Repository() != s.Repository() {
			t.Errorf("EachResolve without the CA = %v, of %s", err, broken.Repository())
		}
	}
}

// Each report, also one about a deployment, says when the next one is due: by fleet.interval of agent.yaml.
func TestReportsSayWhenTheNextOneIsDue(t *testing.T) {
	var told []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		told = append(told, r.Header.Get(manager.HeaderInterval))
	}))
	defer server.Close()
	for interval, want := range map[time.Duration]string{config.DefaultReportInterval: "300", 90 * time.Second: "90", 0: ""} {
		told = nil
		p, _ := source(t, config.Endpoint{URL: server.URL})
		cfg := &config.Config{Device: "press-07", Fleet: config.Fleet{Endpoint: config.Endpoint{URL: server.URL + "/fleet"}, Interval: interval}}
		c, err := p.manager(cfg, cfg.Fleet.Endpoint, clock.New(time.Now, func() time.Duration { return 0 }), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{store.KindCapabilities, store.KindStatus} {
			if _, err := c.Deliver(t.Context(), store.Report{Sequence: 1, Kind: kind, Subject: "x", Body: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(told, []string{want, want}) {
			t.Errorf("interval %s: told %q, want %q twice", interval, told, want)
		}
	}
}

// A manager that begins an answer and sends nothing more does not hold a check up.
func TestSilentManager(t *testing.T) {
	p := newPlant(t)
	m := othermanager.New("press-07")
	m.Intercept(func(w http.ResponseWriter, r *http.Request, _ string) bool {
		w.Header().Set("Content-Type", othermanager.TypeManifest)
		_, _ = w.Write([]byte(`{"manifestVersion":`))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	e := p.files
	e.URL = m.ServeTLS(t, p.certificate(t, managerID, nil), p.roots)
	own := files.New(credentialFiles(&config.Config{}, e), time.Now, slog.New(slog.DiscardHandler))
	c, err := manager.New(manager.Options{
		URL: e.URL, Device: "press-07", Timeout: 50 * time.Millisecond, TLS: identity.ClientConfig(own, time.Now),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := manager.NewSource(c, nil, "", nil)
	err = s.EachResolve(ctx, s.Repository(), "press-07", func(ocispec.Descriptor) bool { return true })
	if !errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
		t.Errorf("EachResolve = %v, want an error that may pass, long before the end of the check", err)
	}
}

func TestInitForAManager(t *testing.T) {
	p := newPlant(t)
	with := func(more ...string) (dir string, args []string) {
		dir = t.TempDir()
		return dir, append([]string{
			"init", "--config-dir", dir, "--device", "press-07", "--margo", "https://wfm.acme.example",
			"--margo-cert-file", p.files.CertFile, "--margo-key-file", p.files.KeyFile, "--margo-trust-bundle", p.files.TrustBundle,
		}, more...)
	}
	for _, tc := range []struct {
		name, want string
		more       []string
	}{
		{"unsigned", "ok: device press-07, manager https://wfm.acme.example, 1 trust rules", []string{"--allow-unsigned"}},
		{"signed", "manager https://wfm.acme.example, signed in harbor.acme.example/plant/state, 1 trust rules", []string{"--state", "oci://harbor.acme.example/plant/state", "--key", keyFile(t)}},
		{"components signed", "2 trust rules", []string{"--allow-unsigned", "--key", keyFile(t), "--scope", "harbor.acme.example/plant/**"}},
	} {
		dir, args := with(tc.more...)
		if code, _, errs := command(t, args...); code != 0 {
			t.Errorf("%s: init = %d\n%s", tc.name, code, errs)
		}
		if code, out, errs := command(t, "check-config", "--config", filepath.Join(dir, "agent.yaml")); code != 0 || !strings.Contains(out, tc.want) {
			t.Errorf("%s: check-config = %d\n%s%s", tc.name, code, out, errs)
		}
	}
	for name, more := range map[string][]string{
		"nothing accepted":  nil,
		"signed and not":    {"--allow-unsigned", "--state", "oci://harbor.acme.example/plant/state", "--key", keyFile(t)},
		"keys of nothing":   {"--key", keyFile(t)},
		"keys without need": {"--allow-unsigned", "--key", keyFile(t)},
	} {
		if _, args := with(more...); true {
			if code, _, errs := command(t, args...); code != 2 {
				t.Errorf("%s: init = %d, want 2\n%s", name, code, errs)
			}
		}
	}
	// A policy that accepts nothing of the manager is found before the device is far away.
	dir, args := with("--policy", keyPolicy(t))
	if code, _, errs := command(t, args...); code != 0 {
		t.Fatalf("init with a policy = %d\n%s", code, errs)
	}
	if code, _, errs := command(t, "check-config", "--config", filepath.Join(dir, "agent.yaml")); code == 0 || !strings.Contains(errs, "accepts nothing of this manager") || !strings.Contains(errs, "margo+https://wfm.acme.example") {
		t.Errorf("check-config = %d\n%s", code, errs)
	}
}

// A device with SPIRE has its certificate from there, and check-config says whether it gets one.
func TestInitWithWorkloadAPI(t *testing.T) {
	p, dir, api := newPlant(t), t.TempDir(), identitytest.NewWorkloadAPI(t)
	if code, _, errs := command(t, "init", "--config-dir", dir, "--device", "press-07", "--margo", "https://wfm.acme.example", "--margo-workload-api", api.Address, "--allow-unsigned"); code != 0 {
		t.Fatalf("init = %d\n%s", code, errs)
	}
	check := []string{"check-config", "--config", filepath.Join(dir, "agent.yaml")}
	if code, _, errs := command(t, check...); code != 75 || !strings.Contains(errs, "source.workloadAPI: ") || !strings.Contains(errs, "is spire-agent running") {
		t.Errorf("check-config without the API = %d\n%s", code, errs)
	}
	api.Start(t)
	api.Give(identitytest.Entry{ID: managerID, Pair: p.Issue(t, managerID, nil), Bundle: p.PEM()})
	if code, _, errs := command(t, check...); code != 75 || !strings.Contains(errs, "no id of a manager's client") {
		t.Errorf("check-config with another id = %d\n%s", code, errs)
	}
	api.Give(identitytest.Entry{ID: pressID, Pair: p.Issue(t, pressID, nil), Bundle: p.PEM()})
	if code, out, errs := command(t, check...); code != 0 {
		t.Errorf("check-config = %d\n%s%s", code, out, errs)
	}
}

// Each trust bundle in a file is followed once, and those that come otherwise are not.
func TestFollowers(t *testing.T) {
	byFile := func(url, bundle string) config.Endpoint {
		return config.Endpoint{URL: url, CertFile: "c", KeyFile: "k", TrustBundle: bundle}
	}
	a, b := byFile("https://a.example", "a.json"), byFile("https://b.example", "b.json")
	for name, tt := range map[string]struct {
		source, fleet config.Endpoint
		enrolled      bool
		want          string
	}{
		"one":          {a, a, false, "a.json"},
		"two":          {a, b, false, "a.json b.json"},
		"enrolled":     {a, a, true, ""},
		"by token":     {config.Endpoint{URL: "https://a.example", TokenFile: "t"}, b, false, "b.json"},
		"Workload API": {config.Endpoint{URL: "https://a.example", WorkloadAPI: "unix:///a"}, config.Endpoint{}, false, ""},
	} {
		cfg := &config.Config{Source: config.Source{Manager: tt.source}, Fleet: config.Fleet{Endpoint: tt.fleet}}
		if tt.enrolled {
			cfg.Enrollment.Interval = time.Minute
		}
		var have []string
		for _, f := range followers(cfg, time.Now, slog.New(slog.DiscardHandler)) {
			have = append(have, f.File)
		}
		if got := strings.Join(have, " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// keyPolicy is a policy for a registry.
func keyPolicy(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(keyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trust.yaml")
	identitytest.Write(t, file, []byte("rules:\n  - scope: harbor.acme.example/plant/**\n    keys:\n      - name: release\n        pem: |\n          "+strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", "\n          ")+"\n"))
	return file
}
