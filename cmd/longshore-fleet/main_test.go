package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	margoclient "github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"longshore-fleet"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// log collects what a server writes while it runs.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var listening = regexp.MustCompile(`listening url=(\S+)`)

// serve runs a server until the test ends, and returns its address and its log.
func serve(t *testing.T, args ...string) (url string, out *log, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out = &log{}
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"longshore-fleet", "serve", "--listen", "127.0.0.1:0"}, args...), nil, io.Discard, out)
	}()
	var once sync.Once
	got := -1
	stop = func() int {
		once.Do(func() { cancel(); got = <-code })
		return got
	}
	t.Cleanup(func() { stop() })
	testenv.Eventually(t, time.Minute, "the server listens", func() error {
		if m := listening.FindStringSubmatch(out.String()); m != nil {
			url = m[1]
			return nil
		}
		select {
		case c := <-code:
			once.Do(func() { cancel(); got = c })
			t.Fatalf("serve = %d\n%s", c, out)
		default:
		}
		return errors.New(out.String())
	})
	return url, out, stop
}

// says waits until the log has something, and returns the first part in parentheses.
func (l *log) says(t *testing.T, what *regexp.Regexp) string {
	t.Helper()
	var found []string
	testenv.Eventually(t, time.Minute, what.String(), func() error {
		if found = what.FindStringSubmatch(l.String()); found == nil {
			return errors.New(l.String())
		}
		return nil
	})
	return found[len(found)-1]
}

func do(t *testing.T, client *http.Client, method, url, token, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func client(t *testing.T) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

const gateway = `{"properties":{"id":"press-07","vendor":"Acme","modelNumber":"P7","serialNumber":"1"}}`

func TestServe(t *testing.T) {
	db := filepath.Join(t.TempDir(), "fleet.db")
	c := client(t)
	url, out, stop := serve(t, "--database", db)
	code, token, errs := command(t, "token", "create", "--device", "press-07", "--database", db) // beside the running server
	if code != 0 || strings.Count(token, "\n") != 1 || strings.Contains(errs, strings.TrimSpace(token)) {
		t.Fatalf("token create = %d %q\n%s", code, token, errs)
	}
	token = strings.TrimSpace(token)
	if code, body := do(t, c, "PUT", url+"/api/v1/capabilities/press-07", token, gateway); code != 201 {
		t.Errorf("PUT = %d %s", code, body)
	}
	for path, want := range map[string]string{
		"/fleet/v1/devices": `"id": "press-07"`, "/": "press-07", "/healthz": "ok\n", "/metrics": "longshore_fleet_devices 1\n", "/static/page.js": "EventSource",
	} {
		if code, body := do(t, c, "GET", url+path, "", ""); code != 200 || !strings.Contains(body, want) {
			t.Errorf("GET %s = %d, lacks %q:\n%s", path, code, want, body)
		}
	}
	code, list, _ := command(t, "token", "list", "-o", "json", "--database", db)
	var tokens []tokenInfo
	if err := json.Unmarshal([]byte(list), &tokens); err != nil || code != 0 || len(tokens) != 1 || tokens[0].Device != "press-07" {
		t.Fatalf("token list = %d %s", code, list)
	}
	if code, _, errs := command(t, "token", "revoke", "--database", db, tokens[0].ID); code != 0 {
		t.Errorf("token revoke = %d\n%s", code, errs)
	}
	if code, _ := do(t, c, "PUT", url+"/api/v1/capabilities/press-07", token, gateway); code != 403 {
		t.Errorf("PUT with a revoked token = %d", code)
	}
	stream, err := c.Get(url + "/events") // an open page does not hold the end up
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	began := time.Now()
	if code := stop(); code != 0 || time.Since(began) > time.Minute {
		t.Errorf("serve = %d after %v\n%s", code, time.Since(began), out)
	}
	if strings.Contains(out.String(), token) {
		t.Error("the log tells the token")
	}
	if code, list, _ := command(t, "token", "list", "--database", db); code != 0 || !strings.Contains(list, "press-07") {
		t.Errorf("token list = %d %s", code, list)
	}
}

// The agent's own client against the endpoint, as on a device.
func TestAgentReports(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "fleet.db")
	url, _, stop := serve(t, "--database", db)
	tokenFile := filepath.Join(dir, "token")
	_, token, _ := command(t, "token", "create", "--device", "gw/press-07", "--database", db)
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	const id = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	agents, err := margoclient.New(margoclient.Options{URL: url, Device: "gw/press-07", Epoch: "0195f6a0-0000-7000-8000-000000000001", TokenFile: tokenFile})
	if err != nil {
		t.Fatal(err)
	}
	defer agents.Close()
	capabilities := store.Report{Sequence: 1, Kind: "capabilities", Subject: "gw/press-07", Body: []byte(strings.ReplaceAll(gateway, "press-07", "gw/press-07"))}
	if _, err := agents.Deliver(t.Context(), capabilities); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Deliver before the gateway: %v, want ErrTemporary", err)
	}
	for i, state := range []string{"installing", "installed", "installing"} {
		r := store.Report{Sequence: []uint64{2, 3, 2}[i], Kind: "status", Subject: id, Body: []byte(`{"deploymentId":"` + id +
			`","deviceId":"gw/press-07","adoptedManifestVersion":1,"status":{"state":"` + state + `"},"components":[]}`)}
		if _, err := agents.Deliver(t.Context(), r); err != nil {
			t.Errorf("Deliver %s: %v", state, err)
		}
	}
	_, body := do(t, client(t), "GET", url+"/fleet/v1/deployments?device=gw/press-07", "", "")
	if !strings.Contains(body, `"state": "installed"`) {
		t.Errorf("after a report came again: %s", body)
	}
	if code, _, errs := command(t, "token", "revoke", "--device", "gw/press-07", "--database", db); code != 0 {
		t.Errorf("token revoke = %d %s", code, errs)
	}
	if _, err := agents.Deliver(t.Context(), capabilities); !errors.Is(err, fault.ErrTemporary) || !errors.Is(err, fault.ErrUnauthenticated) {
		t.Errorf("Deliver with a revoked token: %v: it must wait for a new one", err)
	}
	stop()
	if _, err := agents.Deliver(t.Context(), capabilities); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Deliver to nobody: %v", err)
	}
}

func TestViewerPassword(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte("see-it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _, _ := serve(t, "--database", filepath.Join(dir, "fleet.db"), "--viewer-password-file", file)
	c := client(t)
	for path, want := range map[string]int{"/": 401, "/fleet/v1/devices": 401, "/metrics": 401, "/events": 401, "/healthz": 200, "/api/v1/capabilities/x": 405} {
		if code, _ := do(t, c, "GET", url+path, "", ""); code != want {
			t.Errorf("GET %s = %d, want %d", path, code, want)
		}
	}
	with := strings.Replace(url, "http://", "http://anybody:see-it@", 1)
	if code, _ := do(t, c, "GET", with+"/fleet/v1/devices", "", ""); code != 200 {
		t.Errorf("GET with the password = %d", code)
	}
	if code, _ := do(t, c, "GET", strings.Replace(with, "see-it", "see", 1)+"/", "", ""); code != 401 {
		t.Errorf("GET with another password = %d", code)
	}
}

// Without a password only this machine may look: not a page of another site that a browser here has open, nor what a
// proxy on this machine passes on.
func TestViewersFromElsewhere(t *testing.T) {
	url, _, _ := serve(t, "--database", filepath.Join(t.TempDir(), "fleet.db"))
	open, _, _ := serve(t, "--database", filepath.Join(t.TempDir(), "fleet.db"), "--listen", "0.0.0.0:0", "--plain-http", "--anonymous-viewers")
	open = strings.Replace(open, "[::]", "127.0.0.1", 1)
	c := client(t)
	for _, path := range []string{"/", "/fragment", "/events", "/fleet/v1/devices", "/fleet/v1/deployments", "/metrics"} {
		for name, from := range map[string]func(*http.Request){
			"another name": func(r *http.Request) { r.Host = "fleet.acme.example" },
			"a proxy":      func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.7") },
			"RFC 9110":     func(r *http.Request) { r.Header.Set("Via", "1.1 proxy") },
			"RFC 7239":     func(r *http.Request) { r.Header.Set("Forwarded", "for=192.0.2.7") },
		} {
			for at, want := range map[string]int{url: 403, open: 200} {
				ctx, cancel := context.WithCancel(t.Context())
				req, err := http.NewRequestWithContext(ctx, "GET", at+path, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				from(req)
				res, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if res.StatusCode != want || want == 403 && res.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("GET %s%s by %s = %d %s, want %d", at, path, name, res.StatusCode, res.Header.Get("Content-Type"), want)
				}
				cancel()
				_ = res.Body.Close()
			}
		}
	}
}

// With its database gone the server is not healthy, acknowledges no report and shows nothing.
func TestDatabaseDeleted(t *testing.T) {
	db := filepath.Join(t.TempDir(), "fleet.db")
	_, token, _ := command(t, "token", "create", "--device", "press-07", "--database", db)
	url, out, _ := serve(t, "--database", db)
	c := client(t)
	token = strings.TrimSpace(token)
	if code, body := do(t, c, "PUT", url+"/api/v1/capabilities/press-07", token, gateway); code != 201 {
		t.Fatalf("PUT = %d %s", code, body)
	}
	if err := os.Remove(db); err != nil {
		t.Fatal(err)
	}
	if code, body := do(t, c, "PUT", url+"/api/v1/capabilities/press-07", token, gateway); code != 503 {
		t.Errorf("PUT = %d %s", code, body)
	}
	for _, path := range []string{"/healthz", "/", "/fleet/v1/devices", "/metrics"} {
		if code, body := do(t, c, "GET", url+path, "", ""); code != 503 {
			t.Errorf("GET %s = %d %s", path, code, body)
		}
	}
	if !strings.Contains(out.String(), "was deleted while it was open") {
		t.Errorf("the log does not say why:\n%s", out)
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	pem := httptest.NewUnstartedServer(nil)
	pem.StartTLS()
	pair := pem.TLS.Certificates[0]
	pem.Close()
	cert, key := writePair(t, dir, pair)
	url, out, _ := serve(t, "--database", filepath.Join(dir, "fleet.db"), "--tls-cert", cert, "--tls-key", key)
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("url = %s", url)
	}
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer tr.CloseIdleConnections()
	healthy := func() {
		t.Helper()
		tr.CloseIdleConnections()
		if code, body := do(t, &http.Client{Transport: tr}, "GET", url+"/healthz", "", ""); code != 200 {
			t.Errorf("GET /healthz = %d %s", code, body)
		}
	}
	healthy()
	if err := os.WriteFile(key, []byte("half of a k"), 0o600); err != nil {
		t.Fatal(err)
	}
	healthy()
	out.says(t, regexp.MustCompile(`new files cannot be used.*load certificate `+regexp.QuoteMeta(cert)))
}

func TestWrongUse(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "fleet.db")
	empty := filepath.Join(dir, "empty")
	filled := filepath.Join(dir, "filled")
	other := filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(empty, nil, 0o600), os.WriteFile(filled, []byte("see-it"), 0o600), os.WriteFile(other, []byte("see-it"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		tell string
	}{
		{"unknown command", []string{"server"}, 2, "is no command"},
		{"flags behind arguments", []string{"token", "revoke", "x", "--database", filepath.Join(dir, "behind", "fleet.db")}, 4, "behind"},
		{"unknown flag", []string{"serve", "--port", "1"}, 2, "port"},
		{"argument", []string{"serve", "x"}, 2, "takes no argument"},
		{"version argument", []string{"version", "x"}, 2, "takes no argument"},
		{"half of TLS", []string{"serve", "--tls-cert", "x"}, 2, "belong together"},
		{"no certificate", []string{"serve", "--database", db, "--tls-cert", empty, "--tls-key", empty}, 2, "load certificate"},
		{"plain to others", []string{"serve", "--database", db, "--listen", ":0"}, 2, "without TLS"},
		{"views without a password", []string{"serve", "--database", db, "--listen", ":0", "--plain-http"}, 2, "--viewer-password-file"},
		{"password and none", []string{"serve", "--database", db, "--viewer-password-file", filled, "--anonymous-viewers"}, 2, "exclude each other"},
		{"password empty", []string{"serve", "--database", db, "--viewer-password-file", empty}, 2, "is empty"},
		{"password missing", []string{"serve", "--database", db, "--viewer-password-file", empty + "x"}, 2, "viewer password"},
		{"address", []string{"serve", "--database", db, "--listen", "127.0.0.1:99999"}, 70, "listen on"},
		{"state cache without states", []string{"serve", "--database", db, "--state-cache", dir}, 2, "give --state"},
		{"state cache of somebody else", []string{"serve", "--database", db, "--state", "r.example/plant/state", "--state-cache", dir}, 2, "other content"},
		{"state with a tag", []string{"serve", "--database", db, "--state", "r.example/plant/state:press-07"}, 2, "without a tag"},
		{"state without a host", []string{"serve", "--database", db, "--state", "state"}, 2, "--state state"},
		{"interval too short", []string{"serve", "--database", db, "--state", "r.example/plant/state", "--state-interval", "1ms"}, 2, "at least 1s"},
		{"no folder", []string{"serve", "--database", filepath.Join(dir, "no", "fleet.db")}, 4, "make its folder"},
		{"no database", []string{"token", "list", "--database", other}, 2, "other: it is not an SQLite database: "},
		{"token without device", []string{"token", "create", "--database", db}, 2, "device"},
		{"device id", []string{"token", "create", "--device", "a b", "--database", db}, 2, "not a device id"},
		{"output", []string{"token", "list", "-o", "xml", "--database", db}, 2, "text, json or yaml"},
		{"output of a new database", []string{"token", "create", "-o", "xml", "--device", "a", "--database", filepath.Join(dir, "none.db")}, 2, "text, json or yaml"},
		{"revoke nothing", []string{"token", "revoke", "--database", db}, 2, "--device"},
		{"revoke unknown", []string{"token", "revoke", "--database", db, "abc"}, 4, "not found"},
		{"revoke nobody's", []string{"token", "revoke", "--database", db, "--device", "a"}, 4, "not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := command(t, c.args...)
			if code != c.code || !strings.Contains(errs, c.tell) || out != "" {
				t.Errorf("%v = %d, want %d and %q\nstdout %q\n%s", c.args, code, c.code, c.tell, out, errs)
			}
		})
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, arg := range []string{"version", "--version"} { // TestRelease of testenv/packaging shows it of a release
		if code, out, _ := command(t, arg); code != 0 || out != "longshore-fleet "+build.Read().Text()+"\n" {
			t.Errorf("%s = %d %q", arg, code, out)
		}
	}
	for _, args := range [][]string{{}, {"--help"}, {"serve", "--help"}, {"token", "create", "--help"}} {
		if code, out, _ := command(t, args...); code != 0 || !strings.Contains(out, "longshore-fleet") {
			t.Errorf("%v = %d %q", args, code, out)
		}
	}
}

func TestEnvironment(t *testing.T) {
	db := filepath.Join(t.TempDir(), "fleet.db")
	t.Setenv("LONGSHORE_FLEET_DATABASE", db)
	t.Setenv("LONGSHORE_FLEET_DEVICE", "press-09")
	if code, _, errs := command(t, "token", "create"); code != 0 || !strings.Contains(errs, "press-09") {
		t.Errorf("token create = %d\n%s", code, errs)
	}
	if _, err := os.Stat(db); err != nil {
		t.Error(err)
	}
}

// A command that needs a database does not create the one of a misspelled name.
func TestMissingDatabase(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "typo.db")
	fingerprint := "sha256:" + strings.Repeat("0", 64)
	for _, line := range []string{
		"token list", "token revoke abc", "join-token list", "join-token revoke abc", "devices pending", "devices list", "devices approve a --expect " + fingerprint,
		"devices deny --fingerprint " + fingerprint, "devices remove a", "backup " + filepath.Join(dir, "copy.db"),
	} {
		code, out, errs := command(t, append(strings.Fields(line), "--database", file)...)
		if code != 4 || out != "" || !strings.Contains(errs, "typo.db") || !strings.Contains(errs, "  hint: name the server's file with --database") {
			t.Errorf("%s = %d\n%s%s", line, code, out, errs)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
