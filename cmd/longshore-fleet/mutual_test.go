package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	margoclient "github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/identity/workloadapi"
	"github.com/longshore-dev/longshore/testenv"
)

const managerID = "spiffe://plant.acme.example/margo/wfm/main"

// manager is a running server with mutual TLS, whose authority the test has.
type manager struct {
	*identitytest.Authority
	dir  string
	url  string // by mutual TLS
	open string // the other address
	log  *log
}

var mutualAt = regexp.MustCompile(`mtls=(\S+)`)

func startManager(t *testing.T, args ...string) *manager {
	t.Helper()
	m := &manager{Authority: identitytest.New(t), dir: t.TempDir()}
	cert, key := m.Issue(t, managerID, nil).Write(t, m.dir, "main")
	bundle, clients := filepath.Join(m.dir, "bundle.pem"), filepath.Join(m.dir, "clients.yaml")
	identitytest.Write(t, bundle, m.PEM())
	identitytest.Write(t, clients, []byte("accept: [press-07, press-08, {client: line-a, devices: [press-10, press-11]}]\n"))
	m.open, m.log, _ = serve(t, append([]string{
		"--database", filepath.Join(m.dir, "fleet.db"), "--mtls-listen", "127.0.0.1:0",
		"--svid-cert", cert, "--svid-key", key, "--trust-bundle", bundle, "--clients", clients,
	}, args...)...)
	m.url = m.log.says(t, mutualAt)
	return m
}

// client presents a pair, of which every authority is right.
func (m *manager) client(t *testing.T, p identitytest.Pair) *http.Client {
	t.Helper()
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

func (m *manager) of(t *testing.T, client string) *http.Client {
	t.Helper()
	return m.client(t, m.Issue(t, managerID+"/client/"+client, nil))
}

func about(device string) string { return strings.ReplaceAll(gateway, "press-07", device) }

// Whoever has no certificate of an own client does not get through the handshake, and the log says why.
func TestMutualTLSAttacks(t *testing.T) {
	m := startManager(t)
	stranger := identitytest.New(t)
	press := managerID + "/client/press-07"
	with := func(edit func(*x509.Certificate)) identitytest.Pair { return m.Issue(t, press, edit) }
	for name, tt := range map[string]struct {
		pair identitytest.Pair
		want string
	}{
		"another authority":    {stranger.Issue(t, press, nil), "leads to no authority"},
		"another trust domain": {stranger.Issue(t, "spiffe://evil.example/margo/wfm/main/client/press-07", nil), "another trust domain"},
		"expired":              {with(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), "expired at"},
		"not yet valid":        {with(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Minute) }), "is valid from"},
		"two URIs": {with(func(c *x509.Certificate) {
			c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "plant.acme.example", Path: "/margo/wfm/main/client/press-08"})
		}), "has 2 URIs"},
		"cA":              {with(func(c *x509.Certificate) { c.IsCA = true }), "is an authority's"},
		"host names only": {with(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"press-07"} }), "names hosts"},
		"key usage":       {with(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }), "digitalSignature is missing"},
		"servers only":    {with(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "clientAuth is missing"},
		"another manager": {m.Issue(t, "spiffe://plant.acme.example/margo/wfm/other/client/press-07", nil), "client of another manager"},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := m.client(t, tt.pair).Get(m.url + "/.well-known/spiffe/bundle.json")
			if err == nil {
				_ = res.Body.Close()
				t.Fatalf("GET = %s", res.Status)
			}
			m.log.says(t, regexp.MustCompile(regexp.QuoteMeta(tt.want)))
		})
	}
	for name, config := range map[string]*tls.Config{
		"no certificate": {InsecureSkipVerify: true},
		"TLS 1.2":        {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12},
	} {
		tr := &http.Transport{TLSClientConfig: config}
		if res, err := (&http.Client{Transport: tr}).Get(m.url + "/api/v1/deployments"); err == nil {
			_ = res.Body.Close()
			t.Errorf("%s: GET = %s", name, res.Status)
		}
		tr.CloseIdleConnections()
	}
	if code, body := do(t, m.of(t, "press-07"), "PUT", m.url+"/api/v1/capabilities/press-07", "", gateway); code != 201 {
		t.Errorf("PUT of a good client = %d %s", code, body)
	}
}

// What a known client may not do is a problem document.
func TestMutualTLSProblems(t *testing.T) {
	m := startManager(t)
	var b bytes.Buffer
	for _, tt := range []struct{ who, client, method, path, body string }{
		{"itself", "press-07", "PUT", "/api/v1/capabilities/press-07", gateway},
		{"a child", "press-07", "PUT", "/api/v1/capabilities/press-07/a", about("press-07/a")},
		{"another device", "press-07", "PUT", "/api/v1/capabilities/press-08", about("press-08")},
		{"another device", "press-07", "DELETE", "/api/v1/capabilities/press-08", ""},
		{"a name that begins like it", "press-07", "PUT", "/api/v1/capabilities/press-071", about("press-071")},
		{"not accepted", "press-09", "PUT", "/api/v1/capabilities/press-09", about("press-09")},
		{"one of several", "line-a", "PUT", "/api/v1/capabilities/press-11", about("press-11")},
		{"none of several", "line-a", "PUT", "/api/v1/capabilities/line-a", about("line-a")},
		{"the page", "press-07", "GET", "/", ""},
		{"views", "press-07", "GET", "/fleet/v1/devices", ""},
		{"no discovery", "press-07", "GET", "/.well-known/margo", ""},
	} {
		code, body := do(t, m.of(t, tt.client), tt.method, m.url+tt.path, "", tt.body)
		fmt.Fprintf(&b, "# %s\n%s: %s %s\n%d\n%s\n", tt.who, tt.client, tt.method, tt.path, code, body)
	}
	golden(t, "mutual.golden", b.Bytes())
	code, token, _ := command(t, "token", "create", "--device", "press-12", "--database", filepath.Join(m.dir, "fleet.db"))
	if code != 0 {
		t.Fatal("no token")
	}
	token = strings.TrimSpace(token)
	if code, body := do(t, m.of(t, "press-07"), "PUT", m.url+"/api/v1/capabilities/press-12", token, about("press-12")); code != 403 {
		t.Errorf("a token beside a certificate: %d %s", code, body)
	}
	if code, body := do(t, client(t), "PUT", m.open+"/api/v1/capabilities/press-12", token, about("press-12")); code != 201 {
		t.Errorf("a token at its own address: %d %s", code, body)
	}
}

// Certificates, bundle and policy are replaced while connections are open.
func TestMutualTLSReload(t *testing.T) {
	m := startManager(t, "--trust-bundle-uri", "https://fleet.acme.example/.well-known/spiffe/bundle.json")
	c := m.of(t, "press-07")
	put := func() int {
		code, _ := do(t, c, "PUT", m.url+"/api/v1/capabilities/press-07", "", gateway)
		return code
	}
	if code := put(); code != 201 {
		t.Fatalf("PUT = %d", code)
	}
	clients := filepath.Join(m.dir, "clients.yaml")
	identitytest.Write(t, clients, []byte("accept: [\n"))
	if code := put(); code != 200 || strings.Count(m.log.String(), "new files cannot be used") != 1 {
		t.Errorf("with a damaged policy: %d\n%s", code, m.log)
	}
	identitytest.Write(t, clients, []byte("accept: ['*']\ndeny: [press-07]\n"))
	if code := put(); code != 403 {
		t.Errorf("PUT of a client that is denied now = %d", code)
	}
	identitytest.Write(t, clients, []byte("accept: ['*']\n"))
	if code := put(); code != 200 {
		t.Errorf("PUT of a client that is accepted again = %d", code)
	}
	if code, body := do(t, client(t), "GET", m.open+"/.well-known/margo", "", ""); code != 200 || !strings.Contains(body, `"trustDomain":"plant.acme.example"`) {
		t.Errorf("GET /.well-known/margo = %d %s", code, body)
	}
	next := identitytest.New(t)
	identitytest.Write(t, filepath.Join(m.dir, "bundle.pem"), append(m.PEM(), next.PEM()...))
	next.Issue(t, managerID, nil).Write(t, m.dir, "main")
	if code, body := do(t, client(t), "GET", m.open+"/.well-known/spiffe/bundle.json", "", ""); code != 200 || strings.Count(body, "x5c") != 2 {
		t.Errorf("GET of the bundle = %d %s", code, body)
	}
	identitytest.Write(t, filepath.Join(m.dir, "bundle.pem"), next.PEM())
	if code := put(); code != 403 { // the connection is open, and its authority is gone
		t.Errorf("PUT by an authority that left = %d", code)
	}
	if code, body := do(t, m.client(t, next.Issue(t, managerID+"/client/press-07", nil)), "PUT", m.url+"/api/v1/capabilities/press-07", "", gateway); code != 200 {
		t.Errorf("PUT by the next authority = %d %s", code, body)
	}
}

// Connections that say nothing, and slow handshakes, keep no client out.
func TestMutualTLSIdleConnections(t *testing.T) {
	m := startManager(t, "--max-connections", "50")
	at := strings.TrimPrefix(m.url, "https://")
	for i := range 1000 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if i%2 == 0 {
			_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01") // the first bytes of a handshake
		}
	}
	for i := range 5 {
		if code, body := do(t, m.of(t, "press-07"), "PUT", m.url+"/api/v1/capabilities/press-07", "", gateway); code != 201 && code != 200 {
			t.Errorf("PUT %d beside 1000 connections = %d %s", i, code, body)
		}
	}
}

// A proxy that ends TLS takes the client's certificate away. Manager and device say so, whichever address it passes requests on to.
func TestProxyEndsTLS(t *testing.T) {
	m := startManager(t)
	for name, to := range map[string]string{"mutual TLS": m.url, "the other address": m.open} {
		t.Run(name, func(t *testing.T) {
			backend, err := url.Parse(to)
			if err != nil {
				t.Fatal(err)
			}
			proxy := httputil.NewSingleHostReverseProxy(backend)
			tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			proxy.Transport, proxy.ErrorLog = tr, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			srv := httptest.NewTLSServer(proxy)
			t.Cleanup(func() { srv.Close(); tr.CloseIdleConnections() })
			code, body := do(t, m.of(t, "press-07"), "PUT", srv.URL+"/api/v1/capabilities/press-07", "", gateway)
			if code != 403 && code != 502 {
				t.Errorf("PUT = %d %s", code, body)
			}
			seen := func() string { return body }
			if name == "mutual TLS" {
				seen = m.log.String // its line may come after the proxy's answer
			}
			await(t, "the advice to pass TLS through", func() bool { return strings.Contains(seen(), "must pass TLS through") })
			f := files.Files{Bundle: filepath.Join(m.dir, "bundle.pem")}
			f.Cert, f.Key = m.Issue(t, managerID+"/client/press-07", nil).Write(t, t.TempDir(), "press")
			c, err := margoclient.New(margoclient.Options{URL: srv.URL, Device: "press-07", TLS: identity.ClientConfig(files.New(f, time.Now, slog.New(slog.DiscardHandler)), time.Now)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Deliver(t.Context(), store.Report{Kind: "capabilities", Subject: "press-07", Body: []byte(gateway)}); !errors.Is(err, fault.ErrTemporary) || !strings.Contains(fault.Hint(err), "must pass TLS through") {
				t.Errorf("the device: %v (%s)", err, fault.Hint(err))
			}
		})
	}
}

// With SPIRE on both sides: manager and device have their certificates from its Workload API, and both rotate without a restart.
func TestWorkloadAPI(t *testing.T) {
	ours, next := identitytest.New(t), identitytest.New(t)
	dir := t.TempDir()
	clients := filepath.Join(dir, "clients.yaml")
	identitytest.Write(t, clients, []byte("accept: [press-07]\n"))
	server, device := identitytest.NewWorkloadAPI(t), identitytest.NewWorkloadAPI(t)
	args := []string{"--database", filepath.Join(dir, "fleet.db"), "--mtls-listen", "127.0.0.1:0", "--clients", clients}
	line := append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)
	if code, _, errs := command(t, append(line, "--workload-api", server.Address)...); code != 75 || !strings.Contains(errs, server.Address) || !strings.Contains(errs, "is spire-agent running") {
		t.Errorf("serve without the API = %d\n%s", code, errs)
	}
	server.Start(t)
	device.Start(t)
	press := managerID + "/client/press-07"
	give := func(a *identitytest.Authority, bundle []byte) {
		server.Give(identitytest.Entry{ID: managerID, Pair: a.Issue(t, managerID, nil), Bundle: bundle})
		device.Give(identitytest.Entry{ID: press, Pair: a.Issue(t, press, nil), Bundle: bundle})
	}
	server.Give(identitytest.Entry{ID: press, Pair: ours.Issue(t, press, nil), Bundle: ours.PEM()})
	if code, _, errs := command(t, append(line, "--workload-api", server.Address)...); code != 75 || !strings.Contains(errs, "no id of a manager, only "+press) {
		t.Errorf("serve as a client = %d\n%s", code, errs)
	}
	give(ours, ours.PEM())
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", server.Address) // nothing else says who this manager is
	_, log, _ := serve(t, args...)
	at := log.says(t, mutualAt)
	own, err := workloadapi.New(workloadapi.Options{Address: device.Address, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var following sync.WaitGroup
	following.Go(func() { _ = own.Run(t.Context()) })
	t.Cleanup(following.Wait)
	c, err := margoclient.New(margoclient.Options{URL: at, Device: "press-07", Epoch: "4f6c3d9e-8b1a-4d2f-9a77-2f6d7a1c0e55", TLS: identity.ClientConfig(own, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	reported := func(what string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, what, func() error {
			_, err := c.Deliver(t.Context(), store.Report{Sequence: 1, Kind: "capabilities", Subject: "press-07", Body: []byte(gateway)})
			return err
		})
	}
	reported("at first")
	give(ours, append(ours.PEM(), next.PEM()...)) // both know the next authority before it signs
	log.says(t, regexp.MustCompile("anchors=2"))
	give(next, next.PEM())
	log.says(t, regexp.MustCompile("(?s)(certificate received.*){3}"))
	reported("by the next authority") // over a new connection: the certificate of the first leads to nothing now
	server.Stop()
	reported("without the API of the manager")
}

func TestMutualTLSMisuse(t *testing.T) {
	dir := t.TempDir()
	a := identitytest.New(t)
	cert, key := a.Issue(t, managerID, nil).Write(t, dir, "main")
	press, pressKey := a.Issue(t, managerID+"/client/press-07", nil).Write(t, dir, "press")
	old, oldKey := a.Issue(t, managerID, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }).Write(t, dir, "old")
	bundle, clients := filepath.Join(dir, "bundle.pem"), filepath.Join(dir, "clients.yaml")
	identitytest.Write(t, bundle, a.PEM())
	identitytest.Write(t, clients, []byte("accept: []\n"))
	line := func(cert, key, bundle, clients string, more ...string) []string {
		return append([]string{
			"serve", "--listen", "127.0.0.1:0", "--database", filepath.Join(dir, "fleet.db"), "--mtls-listen", "127.0.0.1:0",
			"--svid-cert", cert, "--svid-key", key, "--trust-bundle", bundle, "--clients", clients,
		}, more...)
	}
	for want, args := range map[string][]string{
		"needs --mtls-listen":         {"serve", "--svid-cert", cert},
		"of the client":               line(press, pressKey, bundle, clients),
		"does not match":              line(cert, pressKey, bundle, clients),
		"own certificate: the cert":   line(old, oldKey, bundle, clients),
		"no certificate in PEM":       line(cert, key, clients, clients),
		"clients.yaml.gone":           line(cert, key, bundle, clients+".gone"),
		"bundle.pem":                  line(cert, key, bundle, bundle),
		"is no absolute https URL":    line(cert, key, bundle, clients, "--trust-bundle-uri", "http://x/bundle.json"),
		"--max-connections must":      line(cert, key, bundle, clients, "--max-connections", "0"),
		"takes the place of":          line(cert, key, bundle, clients, "--workload-api", "unix:///run/spire/agent.sock"),
		"address of a Unix socket":    {"serve", "--mtls-listen", "127.0.0.1:0", "--clients", clients, "--workload-api", "tcp://127.0.0.1:1"},
		"choose another address with": line(cert, key, bundle, clients, "--mtls-listen", "127.0.0.1:99999"),
	} {
		if code, _, errs := command(t, args...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%v = %d\n%s, want %q", args, code, errs, want)
		}
	}
}

// The agent's own client by mutual TLS, as on a device: what stops it is told in a sentence, and the report waits.
func TestAgentReportsByMutualTLS(t *testing.T) {
	m := startManager(t)
	other := startManager(t)
	f := files.Files{Bundle: filepath.Join(m.dir, "bundle.pem")}
	press := func(a *identitytest.Authority, id string) {
		f.Cert, f.Key = a.Issue(t, id, nil).Write(t, m.dir, "press")
	}
	press(m.Authority, managerID+"/client/press-07")
	var sequence uint64
	deliver := func(url string, source *files.Source) error {
		t.Helper()
		c, err := margoclient.New(margoclient.Options{URL: url, Device: "press-07", Epoch: "0195f6a0-0000-7000-8000-000000000001", TLS: identity.ClientConfig(source, time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		sequence++
		_, err = c.Deliver(t.Context(), store.Report{Sequence: sequence, Kind: "capabilities", Subject: "press-07", Body: []byte(gateway)})
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	source := files.New(f, time.Now, quiet)
	if err := deliver(m.url, source); err != nil {
		t.Errorf("Deliver: %v", err)
	}
	refused := func(name string, err error, want string) {
		t.Helper()
		if !errors.Is(err, fault.ErrTemporary) || !strings.Contains(err.Error()+" "+fault.Hint(err), want) {
			t.Errorf("%s: %v (%s), want %q", name, err, fault.Hint(err), want)
		}
	}
	refused("another authority's manager", deliver(other.url, source), "leads to no authority of the trust bundle")
	refused("the other address", deliver(strings.Replace(m.open, "http:", "https:", 1), source), "HTTP response to HTTPS client")
	refused("no files", deliver(m.url, files.New(files.Files{Cert: "a", Key: "b", Bundle: "c"}, time.Now, quiet)), "private key: stat b")
	press(m.Authority, managerID+"/client/press-09")
	refused("not accepted", deliver(m.url, source), "see the clients file of longshore-fleet serve")
	press(m.Authority, "spiffe://plant.acme.example/margo/wfm/next/client/press-07")
	refused("client of another manager", deliver(m.url, source), "this client belongs to spiffe://plant.acme.example/margo/wfm/next")
	press(m.Authority, managerID+"/client/press-07")
	if err := deliver(m.url, source); err != nil {
		t.Errorf("Deliver with a certificate that was renewed: %v", err)
	}
	identitytest.Write(t, filepath.Join(m.dir, "bundle.pem"), append(other.PEM(), m.PEM()...)) // the device trusts both, the other manager does not
	refused("a manager that does not know the authority", deliver(other.url, source), "rejects this device's certificate")
}
