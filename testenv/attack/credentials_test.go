package attack

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/testenv"
)

// collector is a host of the attacker's, without TLS, that asks for a password and keeps what it gets.
type collector struct {
	*httptest.Server
	host string

	mu   sync.Mutex
	told []string // the Authorization header and the form of each request
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // a body that is none has nothing to tell
		c.mu.Lock()
		c.told = append(c.told, strings.TrimSpace(r.Header.Get("Authorization")+" "+r.Form.Encode()))
		c.mu.Unlock()
		w.Header().Set("Www-Authenticate", `Basic realm="collector"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
	}))
	t.Cleanup(c.Close)
	c.host = strings.TrimPrefix(c.URL, "http://")
	return c
}

// requests are how often it was asked; secret says whether one of them had the password.
func (c *collector) requests(user, password string) (n int, secret bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, told := range c.told {
		for _, s := range []string{password, url.QueryEscape(password), base64.StdEncoding.EncodeToString([]byte(user + ":" + password))} {
			secret = secret || strings.Contains(told, s)
		}
	}
	return len(c.told), secret
}

// challenged has the registry, or a server in its place for images alone, name a token server without TLS: a device
// that went there would tell it the registry's password.
func (d *device) challenged(t *testing.T) {
	c := newCollector(t)
	challenge := func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="plant",scope="repository:plant/line:pull"`, c.URL))
		testenv.Status(http.StatusUnauthorized, 0)(w, r, nil)
	}
	for _, path := range []string{`^/v2/plant/line/`, `^/v2/plant/line/blobs/`, ""} {
		d.settled(t, uint64(d.pushed))
		d.begin(t)
		d.proxy.Play(testenv.Rule{Effect: testenv.Reset()}) // what it knows would do
		d.registry.Faults.Add(testenv.Rule{Agent: Victims, Path: path, Effect: challenge})
		d.release(t, "line", true)
		p := d.tells(t, codes.SourceUnauthenticated)
		t.Logf("%s: %s", p.Code, p.Message)
		d.untouched(t)
		d.registry.Faults.Clear()
		d.proxy.Rest()
		d.settled(t, uint64(d.pushed))
	}
	if n, secret := c.requests(d.registry.Username, d.registry.Password); n > 0 {
		t.Errorf("the token server without TLS was asked %d times, and told the password: %v", n, secret)
	}
}

// hurried has the registry ask for pauses that would have the device ask without end, or never again.
func (d *device) hurried(t *testing.T) {
	for _, pause := range []string{"0", "Thu, 01 Jan 1970 00:00:00 GMT", "1000000000"} {
		d.settled(t, uint64(d.pushed))
		d.begin(t)
		d.proxy.Play(testenv.Rule{Effect: testenv.Reset()})
		d.registry.Faults.Forget()
		d.registry.Faults.Add(testenv.Rule{Agent: Victims, Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Retry-After", pause)
			testenv.Status(http.StatusTooManyRequests, 0)(w, r, nil)
		}})
		start := time.Now()
		if pause == "1000000000" {
			p := d.tells(t, codes.SourceUnreachable)
			if !strings.Contains(p.Doing, "it asks to wait 24h0m0s, and gets at most 1h0m0s") {
				t.Errorf("Retry-After %s: status says %q", pause, p.Doing)
			}
		} else {
			const many = 6
			testenv.Eventually(t, tellLimit, "requests", func() error {
				if n := len(d.registry.Faults.Requests("", "")); n < many {
					return fmt.Errorf("%d requests", n)
				}
				return nil
			})
			if took := time.Since(start); took < time.Second {
				t.Errorf("Retry-After %s: %d requests within %v", pause, many, took)
			}
			d.tells(t, codes.SourceUnreachable)
		}
		d.untouched(t)
		d.registry.Faults.Clear()
		d.proxy.Rest()
	}
	d.settled(t, uint64(d.pushed))
}

// helperHangs gives the device a credential helper that never answers, and then its password again.
func (d *device) helperHangs(t *testing.T) {
	config := d.path("home/.docker/config.json")
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	pids := d.path("helpers")
	program := d.path("bin/docker-credential-hang")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\nsleep 600 &\necho $! >>"+pids+"\nwait\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.settled(t, uint64(d.pushed))
	d.begin(t)
	if err := os.WriteFile(config, []byte(`{"credsStore": "hang"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	d.proxy.Play(testenv.Rule{Effect: testenv.Reset()})
	d.registry.Faults.Add(testenv.Rule{Agent: Victims, Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Www-Authenticate", `Basic realm="again"`) // the earlier credentials no longer suffice
		testenv.Status(http.StatusUnauthorized, 0)(w, r, nil)
	}})
	p := d.tells(t, codes.SourceUnauthenticated)
	if !strings.Contains(p.Message, "docker-credential-hang") || !strings.Contains(p.Message, "did not answer within") {
		t.Errorf("the problem does not name the helper: %+v", p)
	}
	d.untouched(t)
	if err := os.WriteFile(config, good, 0o600); err != nil {
		t.Fatal(err)
	}
	d.registry.Faults.Clear()
	d.proxy.Rest()
	d.release(t, "line", false)
	d.settled(t, uint64(d.pushed))
	data, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for pid := range strings.Lines(string(data)) {
		if state, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat"); err == nil && !strings.Contains(string(state), ") Z ") {
			t.Errorf("process %s of a helper that was given up runs on", strings.TrimSpace(pid))
		}
	}
}

// TestPublishersKeepTheirPassword plays attacks on the credentials of a publisher for one registry.
func TestPublishersKeepTheirPassword(t *testing.T) {
	d := newPublisher(t, newOffice(t), 11, testenv.Registry(t, testenv.DistributionHtpasswd, testenv.WithPlainToo()), setup{mirror: true})
	if err := os.WriteFile(d.path("home/.docker/config.json"), []byte("{}"), 0o600); err != nil { // the environment alone has it
		t.Fatal(err)
	}
	environment := []string{"LONGSHORE_USERNAME=" + d.registry.Username, "LONGSHORE_PASSWORD=" + d.registry.Password}
	t.Run("upload sent on without TLS", func(t *testing.T) { d.uploadDowngraded(t, environment) })
	t.Run("fleet files that name other hosts", func(t *testing.T) { d.fleetElsewhere(t, environment) })
}

// uploadDowngraded has the registry, or its network, continue each upload at its own port without TLS.
func (d *device) uploadDowngraded(t *testing.T, environment []string) {
	d.registry.Faults.Add(testenv.Rule{Method: http.MethodPost, Path: "/blobs/uploads/", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		seen := httptest.NewRecorder()
		next.ServeHTTP(seen, r)
		if at := seen.Header().Get("Location"); seen.Code == http.StatusAccepted {
			path := at[strings.Index(at, "/v2/"):]
			seen.Header().Set("Location", "http://"+d.registry.Host+path)
		}
		maps.Copy(w.Header(), seen.Header())
		w.WriteHeader(seen.Code)
		_, _ = w.Write(seen.Body.Bytes())
	}})
	defer d.registry.Faults.Clear()
	push := []string{"state", "push", "--device", string(d.id), "--key", d.path("release.key"), "--empty", d.host + "/plant/state"}
	if out := d.try(t, environment, "longshore", push...); out.code == 0 || !strings.Contains(out.text, "without TLS") {
		t.Errorf("push ends with %d, want a refusal that says why:\n%s", out.code, out.text)
	}
	for _, r := range d.registry.Faults.Requests("", "") {
		if r.Plain {
			t.Errorf("%s %s came without TLS, with Authorization %q", r.Method, r.Path, r.Header.Get("Authorization"))
		}
	}
	d.registry.Faults.Clear()
	if out := d.try(t, environment, "longshore", push...); out.code != 0 {
		t.Errorf("what is right does not pass: %d:\n%s", out.code, out.text)
	}
}

// fleetElsewhere has an attacker who may change the fleet's files name other hosts as registry and as endpoint.
func (d *device) fleetElsewhere(t *testing.T, environment []string) {
	c := newCollector(t)
	viewers := d.path("viewers")
	files := map[string]string{
		viewers: "viewers' secret\n",
		d.path("fleet/registry/fleet.yaml"): "fleet: plant\nregistry: " + c.host + "/plant\ninclude: [devices.yaml]\n" +
			"applications:\n  line: {component: components/line, version: 1.0.0}\ndeployments:\n  line: {application: line, select: line}\n",
		d.path("fleet/endpoint/fleet.yaml"): "fleet: plant\nregistry: " + d.host + "/plant\nendpoint: " + c.URL + "\ninclude: [devices.yaml]\n" +
			"applications:\n  line: {component: components/line, version: 1.0.0}\ndeployments:\n  line: {application: line, select: line}\n",
	}
	for name, more := range map[string]string{"registry": "", "endpoint": ", capabilities: reported"} {
		files[d.path("fleet/"+name+"/devices.yaml")] = "devices:\n  - {id: " + string(d.id) + ", labels: {line: a}" + more + "}\n"
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	environment = append(environment, "LONGSHORE_ENDPOINT_PASSWORD_FILE="+viewers)
	for _, command := range [][]string{
		{"fleet", "check"}, {"fleet", "plan"}, {"fleet", "status"}, {"fleet", "publish", "--key", d.path("release.key")}, {"fleet", "prune", "--keep", "3"},
	} {
		for name, hint := range map[string]string{"registry": "--registry-host", "endpoint": "--endpoint"} {
			env := slices.Clone(environment)
			if name == "registry" {
				env = append(env, "LONGSHORE_CA_FILE=") // the attacker's host has a certificate that passes: here it needs none
			} else {
				env = append(env, "LONGSHORE_REGISTRY_HOST="+d.host)
			}
			out := d.try(t, env, "longshore", append(command, d.path("fleet/"+name))...)
			if !strings.Contains(out.text, "not sent to") || !strings.Contains(out.text, hint) {
				t.Errorf("%v with the attacker's %s does not say what to do:\n%s", command, name, out.text)
			}
			t.Logf("%v with the attacker's %s: %d: %s", command, name, out.code, out.text)
		}
	}
	n, secret := c.requests(d.registry.Username, d.registry.Password)
	_, viewer := c.requests("", "viewers' secret")
	if secret || viewer {
		t.Errorf("the attacker's host was told a password: the registry's %v, the viewers' %v", secret, viewer)
	}
	if n == 0 {
		t.Error("the attacker's host was not asked: the attack does not play")
	}
}
