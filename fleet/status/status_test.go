package status_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	press  = "press-07"
	dep    = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	epoch  = "0195f6a0-0000-7000-8000-000000000001"
	epoch2 = "0195f6a0-0000-7000-8000-000000000002"
)

type server struct {
	*httptest.Server
	t       *testing.T
	store   *store.SQLite
	place   string
	changes atomic.Int64
	clock   atomic.Int64 // seconds after noon
	tokens  map[string]string
}

func start(t *testing.T, change func(*status.Options)) *server {
	t.Helper()
	s := &server{t: t, place: t.TempDir(), tokens: map[string]string{}}
	s.open()
	o := status.Options{
		Store: s.store, Logger: slog.New(slog.DiscardHandler), Changed: func() { s.changes.Add(1) },
		Now: func() time.Time { return time.Date(2026, 11, 20, 12, 0, int(s.clock.Load()), 0, time.UTC) },
	}
	if change != nil {
		change(&o)
	}
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", status.API(o))
	mux.Handle("/fleet/v1/", status.Views(s.viewer(o)))
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.Close()
		if err := s.store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func (s *server) viewer(o status.Options) *status.Viewer {
	return &status.Viewer{View: s.store, Now: o.Now, Logger: o.Logger}
}

func (s *server) open() {
	s.t.Helper()
	st, err := store.Open(s.t.Context(), filepath.Join(s.place, "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	s.store = st
}

func (s *server) token(device string) string {
	s.t.Helper()
	if text, ok := s.tokens[device]; ok {
		return text
	}
	text, tok, err := status.Mint(time.Unix(1, 0), artifacts.DeviceID(device))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.store.AddTokens(s.t.Context(), tok); err != nil {
		s.t.Fatal(err)
	}
	s.tokens[device] = text
	return text
}

// request is one call; zero fields are what a good client would send.
type request struct {
	method, path, as, body string
	header                 http.Header
	noToken                bool
}

func (s *server) do(q request) (*http.Response, []byte) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), q.method, s.URL+q.path, strings.NewReader(q.body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if q.as == "" {
		q.as = press
	}
	if !q.noToken {
		req.Header.Set("Authorization", "Bearer "+s.token(q.as))
	}
	for k, v := range q.header {
		req.Header[k] = v
	}
	res, err := s.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res, b
}

func (s *server) want(q request, code int) []byte {
	s.t.Helper()
	res, b := s.do(q)
	if res.StatusCode != code {
		s.t.Fatalf("%s %s = %d %s, want %d", q.method, q.path, res.StatusCode, b, code)
	}
	return b
}

func (s *server) wantProblem(q request, code int, kind string) *margo.Problem {
	s.t.Helper()
	res, b := s.do(q)
	if res.StatusCode != code || res.Header.Get("Content-Type") != margo.ProblemMediaType {
		s.t.Fatalf("%s %s = %d %s %s, want %d and a problem", q.method, q.path, res.StatusCode, res.Header.Get("Content-Type"), b, code)
	}
	p, err := margo.ParseProblem("answer", b)
	if err != nil {
		s.t.Fatalf("problem %s: %v", b, err)
	}
	if kind != "about:blank" {
		kind = margo.ProblemBase + kind
	}
	if p.Type != kind || p.Status != code || p.Title == "" || p.Retryable == nil {
		s.t.Errorf("problem %s, want type %s", b, kind)
	}
	return p
}

func caps(id string, more ...string) string {
	return `{"properties":{"id":"` + id + `","vendor":"Acme","modelNumber":"P7","serialNumber":"1","cpus":[{"cores":4,"architecture":"arm64"}],` +
		`"memory":"16Gi","storage":"64Gi","peripherals":[],"interfaces":[{"type":"ethernet"}],"otelCollector":true,` +
		`"supportedRuntimes":["oci"],"supportedDeploymentTypes":["compose"]}` + strings.Join(more, "") + `}`
}

func relay(id string) string {
	return `{"properties":{"id":"` + id + `","vendor":"Acme","modelNumber":"GW","serialNumber":"2"}}`
}

func report(device string, state margo.State, components ...margo.ComponentStatus) string {
	d := margo.DeploymentStatus{DeploymentID: dep, DeviceID: device, AdoptedManifestVersion: 18446744073709551615, Components: components}
	d.Status.State = state
	b, err := d.Encode()
	if err != nil {
		panic(err)
	}
	return string(b)
}

func component(name string, state margo.State) margo.ComponentStatus {
	return margo.ComponentStatus{Name: name, State: state}
}

func put(id, body string) request {
	return request{method: "PUT", path: "/api/v1/capabilities/" + id, body: body}
}

func post(body string) request {
	return request{method: "POST", path: "/api/v1/deployments/" + dep + "/status", body: body}
}

func (q request) by(device string) request { q.as = device; return q }

func (q request) with(kv ...string) request {
	q.header = http.Header{}
	for i := 0; i < len(kv); i += 2 {
		q.header[kv[i]] = []string{kv[i+1]}
	}
	return q
}

func (q request) number(epoch string, n uint64) request {
	return q.with(status.HeaderEpoch, epoch, status.HeaderSequence, fmt.Sprint(n))
}

// A device whose first report is about a deployment says by a header when it is to be heard again. What is no promise counts for nothing.
func TestIntervalOfAStatus(t *testing.T) {
	for value, want := range map[string]int64{"300": 300, "": 0, "soon": 0, "-5": 0, "9223372036854775807": 0, "604801": 0} {
		s := start(t, nil)
		s.want(post(report(press, margo.StateInstalled)).with(status.HeaderInterval, value), 201)
		d, err := s.store.Device(t.Context(), press)
		if err != nil || int64(d.Interval.Seconds()) != want {
			t.Errorf("%q: interval %s, %v, want %d s", value, d.Interval, err, want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	s := start(t, nil)
	if b := s.want(put(press, caps(press)), 201); len(b) > 0 {
		t.Errorf("body %q, want none", b)
	}
	s.want(put(press, caps(press)), 200)
	s.want(put(press, caps(press)).with("Content-Type", "application/json; charset=utf-8"), 200)
	s.want(request{method: "DELETE", path: "/api/v1/capabilities/" + press}, 204)
	s.wantProblem(request{method: "DELETE", path: "/api/v1/capabilities/" + press}, 404, "device-not-found")
	s.want(put(press, caps(press)), 201)
	if n := s.changes.Load(); n != 5 {
		t.Errorf("%d changes told, want 5", n)
	}
}

func TestGateways(t *testing.T) {
	s := start(t, nil)
	p := s.wantProblem(put("gw/a", caps("gw/a")).by("gw"), 404, "gateway-not-found")
	if p.Instance != "/api/v1/capabilities/gw/a" {
		t.Errorf("instance = %q", p.Instance)
	}
	s.want(put("gw", relay("gw")).by("gw"), 201)
	s.want(put("gw/a", caps("gw/a")).by("gw"), 201)
	s.want(put("gw%2Fa", caps("gw/a")).by("gw"), 200)
	s.want(put("gw/a", caps("gw/a")).by("gw/a"), 200) // a token of its own is as good
	s.wantProblem(put("gw", relay("gw")).by("gw/a"), 403, "not-authorized")
	s.wantProblem(put("gw2", relay("gw2")).by("gw"), 403, "not-authorized")
	s.wantProblem(put("gw-2", relay("gw-2")).by("gw"), 403, "not-authorized")
	s.want(post(report("gw/a", margo.StateInstalled)).by("gw"), 201)
	p = s.wantProblem(post(report("gw/b", margo.StateInstalled)).by("gw"), 422, "semantic-error")
	if len(p.Errors) != 1 || p.Errors[0].Field != "deviceId" {
		t.Errorf("errors = %v, want deviceId", p.Errors)
	}
	s.want(request{method: "DELETE", path: "/api/v1/capabilities/gw", as: "gw"}, 204)
	s.wantProblem(request{method: "DELETE", path: "/api/v1/capabilities/gw/a", as: "gw"}, 404, "device-not-found")
}

func TestStatus(t *testing.T) {
	s := start(t, nil)
	s.want(post(report("", margo.StatePending)), 201) // before its capabilities: taken all the same
	s.want(put(press, caps(press)), 201)
	web, db := component("web", margo.StateInstalled), component("db", margo.StateInstalling)
	s.want(post(report(press, margo.StateInstalling, web, db)), 200)
	s.wantProblem(post(report("press-08", margo.StateInstalled)), 403, "not-authorized")
	p := s.wantProblem(post(report(press, margo.StateInstalled, web, db)), 422, "semantic-error")
	want := []margo.ProblemField{{Field: "status.state", Message: `must be "installing", which the states of the components come to`}}
	if diff := cmp.Diff(want, p.Errors); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	other := post(report(press, margo.StateInstalled))
	other.path = "/api/v1/deployments/b3e2f5dc-912e-494f-8395-52cf3769bc06/status"
	p = s.wantProblem(other, 422, "semantic-error")
	if len(p.Errors) != 1 || p.Errors[0].Field != "deploymentId" {
		t.Errorf("errors = %v, want deploymentId", p.Errors)
	}
	// A gateway that cannot reach the device: failed for a reason of its own.
	unreachable := strings.Replace(report(press, margo.StateFailed, web), `"state":"failed"`, `"error":{"code":"102","source":"gw","message":"no answer"},"state":"failed"`, 1)
	s.want(post(unreachable), 200)
}

func TestPrecedence(t *testing.T) {
	s := start(t, nil)
	order := []margo.State{margo.StateFailed, margo.StateRemoving, margo.StateInstalling, margo.StatePending, margo.StateRemoved, margo.StateInstalled}
	first := true
	for i, high := range order {
		for _, low := range order[i:] {
			code := 200
			if first {
				code, first = 201, false
			}
			s.want(post(report(press, high, component("a", low), component("b", high))), code)
			switch other := post(report(press, low, component("a", low), component("b", high))); {
			case high == margo.StateRemoved && low == margo.StateInstalled: // the specification leaves their order open
				s.want(other, 200)
			case high != low:
				s.wantProblem(other, 422, "semantic-error")
			}
		}
	}
}

func TestSequence(t *testing.T) {
	s := start(t, nil)
	installing, installed := post(report(press, margo.StateInstalling)), post(report(press, margo.StateInstalled))
	s.want(installing.number(epoch, 5), 201)
	s.want(installed.number(epoch, 6), 200)
	before := s.changes.Load()
	s.want(installing.number(epoch, 5), 200)
	s.want(installed.number(epoch, 6), 200)
	if s.changes.Load() != before {
		t.Error("a repeated report counted as a change")
	}
	if got := s.state(); got != margo.StateInstalled {
		t.Errorf("state = %s: an old report won", got)
	}
	s.want(installing.number(epoch2, 1), 200)
	if got := s.state(); got != margo.StateInstalling {
		t.Errorf("state = %s: a new database of the agent was not heard", got)
	}
	s.want(installed.number(epoch, 7), 200)
	if got := s.state(); got != margo.StateInstalling {
		t.Errorf("state = %s: a report of an older database won", got)
	}
	s.want(put(press, caps(press)).number(epoch2, 2), 201)
	s.want(put(press, caps(press)).number(epoch2, 2), 200)
	for _, h := range [][]string{
		{status.HeaderEpoch, epoch},
		{status.HeaderSequence, "1"},
		{status.HeaderEpoch, "x", status.HeaderSequence, "1"},
		{status.HeaderEpoch, epoch, status.HeaderSequence, "-1"},
		{status.HeaderEpoch, epoch, status.HeaderSequence, "18446744073709551616"},
		{status.HeaderEpoch, "{" + epoch + "}", status.HeaderSequence, "1"},
	} {
		s.wantProblem(installed.with(h...), 400, "invalid-request")
	}
}

func (s *server) state() margo.State {
	s.t.Helper()
	var out struct{ Deployments []status.Deployment }
	if err := json.Unmarshal(s.want(request{method: "GET", path: "/fleet/v1/deployments"}, 200), &out); err != nil || len(out.Deployments) != 1 {
		s.t.Fatalf("deployments: %v, %v", out, err)
	}
	return out.Deployments[0].State
}

func TestBadBodies(t *testing.T) {
	s := start(t, nil)
	s.want(put(press, caps(press)), 201)
	big := strings.Repeat(" ", status.MaxCapabilities+1)
	for _, c := range []struct {
		name, body string
		code       int
		field      string
	}{
		{"empty", "", 400, ""},
		{"text", "hello", 400, ""},
		{"cut", caps(press)[:100], 400, ""},
		{"trailing", caps(press) + "{}", 400, ""},
		{"list", "[]", 400, ""},
		{"null", "null", 400, ""},
		{"not UTF-8", "{\"properties\":\"\xff\"}", 400, ""},
		{"duplicate key", `{"properties":{},"properties":{}}`, 400, ""},
		{"deep", strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), 400, ""},
		{"too large", big + caps(press), 400, ""},
		{"nothing in it", "{}", 422, ""},
		{"unknown member", caps(press, `,"roles":["x"]`), 422, "roles"},
		{"wrong type", strings.Replace(caps(press), `"vendor":"Acme"`, `"vendor":7`, 1), 422, "properties.vendor"},
		{"runtime", strings.Replace(caps(press), `["oci"]`, `["containerd-direct"]`, 1), 422, "properties.supportedRuntimes[0]"},
		{"other device", caps("press-08"), 422, "properties.id"},
		{"not all of hosting", strings.Replace(caps(press), `"memory":"16Gi",`, "", 1), 422, "properties"},
	} {
		t.Run("capabilities "+c.name, func(t *testing.T) {
			kind := map[int]string{400: "invalid-request", 422: "semantic-error"}[c.code]
			p := s.wantProblem(put(press, c.body), c.code, kind)
			if c.code == 422 && len(p.Errors) == 0 || c.field != "" && p.Errors[0].Field != c.field {
				t.Errorf("errors = %v, want one at %q", p.Errors, c.field)
			}
		})
	}
	good := report(press, margo.StateInstalled, component("web", margo.StateInstalled))
	for _, c := range []struct {
		name, body string
		code       int
	}{
		{"empty", "", 400},
		{"cut", good[:20], 400},
		{"too large", strings.Repeat(" ", status.MaxStatus) + good, 400},
		{"no components", strings.Replace(good, `"components"`, `"compnents"`, 1), 422},
		{"no version", strings.Replace(good, `"adoptedManifestVersion":18446744073709551615,`, "", 1), 422},
		{"version too large", strings.Replace(good, "18446744073709551615", "18446744073709551616", 1), 422},
		{"state unknown", strings.ReplaceAll(good, "installed", "Installed"), 422},
		{"component twice", report(press, margo.StateInstalled), 0},
	} {
		if c.code == 0 {
			continue
		}
		t.Run("status "+c.name, func(t *testing.T) {
			s.wantProblem(post(c.body), c.code, map[int]string{400: "invalid-request", 422: "semantic-error"}[c.code])
		})
	}
	for _, h := range [][]string{{"Content-Type", "text/plain"}, {"Content-Type", "application/jsonx"}, {"Content-Type", ""}, {"Content-Type", "application/json; charset=latin1"}, {"Content-Encoding", "gzip"}} {
		s.wantProblem(put(press, caps(press)).with(h...), 400, "invalid-request")
	}
	for _, path := range []string{"a b", "a*", "a/%2Fb", "", "a/"} {
		s.wantProblem(put(strings.ReplaceAll(path, " ", "%20"), caps(press)), 400, "invalid-request")
	}
	if got, _, err := s.store.Deployments(t.Context(), store.DeploymentQuery{Limit: 9}); err != nil || len(got) > 0 {
		t.Errorf("a refused report left %v, %v", got, err)
	}
}

func TestTokens(t *testing.T) {
	s := start(t, nil)
	good := s.token(press)
	s.want(put(press, caps(press)), 201)
	other := good[:len(good)-2] + "aa"
	if other == good {
		other = good[:len(good)-2] + "bb"
	}
	for name, value := range map[string]string{
		"none": "", "basic": "Basic " + good, "other secret": "Bearer " + other, "no id": "Bearer lsf_x",
		"unknown": "Bearer lsf_aaaa_bbbb", "long": "Bearer lsf_" + strings.Repeat("a", 5000) + "_b", "id alone": "Bearer " + good[:20] + "_",
	} {
		t.Run(name, func(t *testing.T) {
			s.wantProblem(put(press, caps(press)).with("Authorization", value), 403, "not-authorized")
		})
	}
	q := put(press, caps(press))
	q.noToken = true
	s.wantProblem(q, 403, "not-authorized")
	s.want(put(press, caps(press)).with("Authorization", "bearer "+good), 200)
	all, err := s.store.ListTokens(t.Context(), press)
	if err != nil || len(all) != 1 {
		t.Fatalf("tokens: %v, %v", all, err)
	}
	secret := good[strings.LastIndexByte(good, '_')+1:]
	if db, err := os.ReadFile(filepath.Join(s.place, "fleet.db-wal")); err != nil || bytes.Contains(db, []byte(secret)) {
		t.Errorf("the database holds the secret itself (%v)", err)
	}
	if err := s.store.RevokeToken(t.Context(), all[0].ID, time.Unix(9, 0)); err != nil {
		t.Fatal(err)
	}
	s.wantProblem(put(press, caps(press)), 403, "not-authorized")
}

func TestOtherPaths(t *testing.T) {
	s := start(t, nil)
	for _, c := range []struct {
		method, path string
		code         int
		allow        string
	}{
		{"GET", "/api/v1/capabilities/a", 405, "PUT, DELETE"},
		{"POST", "/api/v1/capabilities/a/b", 405, "PUT, DELETE"},
		{"PUT", "/api/v1/deployments/x/status", 405, "POST"},
		{"GET", "/api/v1/deployments", 501, ""},
		{"GET", "/api/v1/bundles/sha256:00", 501, ""},
		{"GET", "/api/v1/deployments/x/sha256:00", 501, ""},
		{"GET", "/api/v1/else", 404, ""},
		{"POST", "/fleet/v1/devices", 405, "GET"},
		{"GET", "/fleet/v1/else", 404, ""},
	} {
		s.wantProblem(request{method: c.method, path: c.path}, c.code, "about:blank")
		res, _ := s.do(request{method: c.method, path: c.path})
		if got := res.Header.Get("Allow"); got != c.allow {
			t.Errorf("%s %s: Allow %q, want %q", c.method, c.path, got, c.allow)
		}
	}
}

func TestTooFast(t *testing.T) {
	s := start(t, func(o *status.Options) { o.Rate, o.Burst = 1, 3 })
	for range 3 {
		s.do(put(press, caps(press)))
	}
	p := s.wantProblem(put(press, caps(press)), 429, "about:blank")
	res, _ := s.do(put(press, caps(press)))
	if res.Header.Get("Retry-After") != "1" || !*p.Retryable || p.BackoffStrategy != "exponential" || p.RetryAfterSeconds != 1 {
		t.Errorf("problem %+v, Retry-After %q", p, res.Header.Get("Retry-After"))
	}
	s.want(put("press-08", caps("press-08")).by("press-08"), 201) // others are not held up
	s.clock.Add(1)
	s.want(put(press, caps(press)), 200)
}

// stuck is a store that does not answer, or is closed.
type stuck struct {
	store.Store
	entered chan struct{}
	leave   chan struct{}
}

func (s stuck) Token(context.Context, string) (store.Token, error) {
	s.entered <- struct{}{}
	<-s.leave
	return store.Token{}, fmt.Errorf("read token: disk on fire: %w", fault.ErrTemporary)
}

func TestUnavailable(t *testing.T) {
	st := stuck{entered: make(chan struct{}), leave: make(chan struct{})}
	var log bytes.Buffer
	s := start(t, func(o *status.Options) {
		st.Store, o.Store, o.InFlight = o.Store, st, 1
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	token := s.token(press)
	first := make(chan *http.Response)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), "PUT", s.URL+"/api/v1/capabilities/"+press, strings.NewReader("{}"))
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := s.Client().Do(req)
		if err != nil {
			t.Error(err)
		}
		first <- res
	}()
	<-st.entered
	p := s.wantProblem(put(press, caps(press)), 503, "about:blank") // one at a time
	if !*p.Retryable || p.RetryAfterSeconds == 0 {
		t.Errorf("problem %+v", p)
	}
	close(st.leave)
	res := <-first
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s, Retry-After %q", res.StatusCode, b, res.Header.Get("Retry-After"))
	}
	if bytes.Contains(b, []byte("fire")) || !strings.Contains(log.String(), "disk on fire") {
		t.Errorf("the cause belongs in the log and not in the answer:\n%s\n%s", b, log.String())
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := start(t, func(o *status.Options) { o.Metrics = reg })
	s.want(put(press, caps(press, `,"x-longshore-extensions":{"refused":{"code":"signature-invalid"}}`)), 201)
	s.want(post(report(press, margo.StateFailed)), 201)
	s.do(put(press, "x"))
	now := time.Date(2026, 11, 20, 12, 59, 0, 0, time.UTC) // the reports came at noon
	metrics := status.Metrics(&status.Viewer{View: s.store, Now: func() time.Time { return now }, OfflineAfter: time.Hour, Logger: slog.New(slog.DiscardHandler)}, reg)
	scrape := func() string {
		rec := httptest.NewRecorder()
		metrics.ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		return rec.Body.String()
	}
	out := scrape()
	for _, line := range []string{
		`longshore_fleet_reports_total{kind="capabilities",outcome="created"} 1`, `longshore_fleet_reports_total{kind="status",outcome="repeated"} 0`,
		`longshore_fleet_problems_total{code="400"} 1`, "longshore_fleet_devices 1", "longshore_fleet_devices_refusing 1", "longshore_fleet_devices_offline 0",
		`longshore_fleet_deployments{state="failed"} 1`, `longshore_fleet_deployments{state="installed"} 0`, "longshore_fleet_report_seconds_count 3",
	} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("metrics lack %q:\n%s", line, out)
		}
	}
	now = now.Add(2 * time.Minute) // silent for longer than an hour
	if out := scrape(); !strings.Contains(out, "\nlongshore_fleet_devices_offline 1\n") {
		t.Errorf("metrics lack the device that is offline:\n%s", out)
	}
}

func TestViewsGolden(t *testing.T) {
	s := start(t, nil)
	s.want(put(press, caps(press, `,"labels":{"line":"a"},"x-acme-extensions":{"y":1},"x-longshore-extensions":{"agentVersion":"0.1.0",`+
		`"acceptedGeneration":42,"digest":"sha256:c0de","runningGeneration":41,"committedGeneration":41,"progress":{"phase":"downloading","since":"2026-11-20T11:58:00Z","generation":42,"digest":"sha256:`+
		strings.Repeat("a", 64)+`","done":12000000,"total":40000000,"history":[{"generation":41,"digest":"sha256:dead","outcome":"committed","at":"2026-11-19T11:58:00Z"}]},"insecure":["state r.example/plant/state"],`+
		`"refused":{"digest":"sha256:dead","generation":43,"code":"signature-invalid","message":"signature of sha256:dead matches no key","since":"2026-11-20T11:00:00Z"}}`)), 201)
	s.clock.Store(7)
	failed := component("web", margo.StateFailed)
	failed.Error = &margo.StatusError{Code: "image-pull", Source: "web", Message: "no such image"}
	s.want(post(report(press, margo.StateFailed, failed, component("db", margo.StateInstalled))), 201)
	s.want(post(report("", margo.StatePending)).by("press-08"), 201)
	for name, path := range map[string]string{
		"devices": "/fleet/v1/devices", "device": "/fleet/v1/devices/" + press, "deployments": "/fleet/v1/deployments",
		"page": "/fleet/v1/devices?limit=1", "deployments-page": "/fleet/v1/deployments?limit=1", "failed": "/fleet/v1/deployments?state=failed&device=" + press,
		"refusing": "/fleet/v1/devices?refusing=true", "none": "/fleet/v1/deployments?device=nobody",
	} {
		t.Run(name, func(t *testing.T) {
			got := s.want(request{method: "GET", path: path}, 200)
			golden := filepath.Join("testdata", name+".golden.json")
			if os.Getenv("UPDATE_GOLDEN") == "1" {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
	s.wantProblem(request{method: "GET", path: "/fleet/v1/devices/nobody"}, 404, "device-not-found")
	s.wantProblem(request{method: "GET", path: "/fleet/v1/devices?limit=0"}, 400, "invalid-request")
	s.wantProblem(request{method: "GET", path: "/fleet/v1/deployments?state=odd"}, 400, "invalid-request")
}

// What was answered is there after the process is gone without a good-bye.
func TestReopen(t *testing.T) {
	s := start(t, nil)
	s.want(put(press, caps(press)), 201)
	s.want(post(report(press, margo.StateInstalled)).number(epoch, 3), 201)
	again, err := store.Open(t.Context(), filepath.Join(s.place, "fleet.db"), slog.New(slog.DiscardHandler)) // the first is still open, as a killed one's files are
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	got, _, err := again.Deployments(t.Context(), store.DeploymentQuery{Device: press, Limit: 9})
	if err != nil || len(got) != 1 || got[0].State != margo.StateInstalled {
		t.Errorf("after reopening: %v, %v", got, err)
	}
}

func TestMint(t *testing.T) {
	a, one, err := status.Mint(time.Unix(1, 0), "a")
	b, two, err2 := status.Mint(time.Unix(1, 0), "a")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if a == b || one.ID == two.ID || bytes.Equal(one.Hash, two.Hash) || strings.Contains(a, string(one.Hash)) || len(one.Hash) != 32 {
		t.Errorf("tokens %q and %q", a, b)
	}
}

// A client that is no token: several devices, one identity.
func TestClientOfSeveralDevices(t *testing.T) {
	s := start(t, func(o *status.Options) {
		o.Identify = func(r *http.Request) (status.Client, error) {
			switch r.Header.Get("X-Client") {
			case "line":
				return status.Client{ID: "client:line", Devices: []string{"press-07", "gw"}}, nil
			case "away":
				return status.Client{}, fault.ErrTemporary
			}
			return status.Client{}, status.Denied("there is no such client")
		}
	})
	s.want(put("press-07", caps("press-07")).with("X-Client", "line"), 201)
	s.want(put("gw", relay("gw")).with("X-Client", "line"), 201)
	s.want(put("gw/a", caps("gw/a")).with("X-Client", "line"), 201)
	s.wantProblem(put("press-08", caps("press-08")).with("X-Client", "line"), 403, "not-authorized")
	s.want(post(report("gw/a", margo.StateInstalled)).with("X-Client", "line"), 201)
	p := s.wantProblem(post(report("", margo.StateInstalled)).with("X-Client", "line"), 422, "semantic-error")
	if len(p.Errors) != 1 || p.Errors[0].Field != "deviceId" {
		t.Errorf("errors = %v, want deviceId", p.Errors)
	}
	if p := s.wantProblem(put("press-07", caps("press-07")), 403, "not-authorized"); p.Detail != "there is no such client" {
		t.Errorf("detail = %q", p.Detail)
	}
	s.wantProblem(put("press-07", caps("press-07")).with("X-Client", "away"), 503, "about:blank")
}

// A token of several devices lets each of them in, and no other. Our agent says which of them it is; others say so in their reports.
func TestTokenOfSeveralDevices(t *testing.T) {
	s := start(t, nil)
	text, tok, err := status.Mint(time.Unix(1, 0), press, "gw")
	if err == nil {
		err = s.store.AddTokens(t.Context(), tok)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := status.Mint(time.Unix(1, 0)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a token for no device: %v", err)
	}
	by := func(q request, device string) request {
		if device == "" {
			return q.with("Authorization", "Bearer "+text)
		}
		return q.with("Authorization", "Bearer "+text, status.HeaderDevice, device)
	}
	s.want(by(put(press, caps(press)), press), 201)
	s.want(by(put("gw", relay("gw")), "gw"), 201)
	s.want(by(put("gw/a", caps("gw/a")), "gw"), 201)
	s.want(by(post(report("", margo.StateInstalled)), press), 201)
	s.want(by(post(report("", margo.StateInstalled)), "gw"), 201)
	s.want(by(post(report("", margo.StateInstalled)), "gw/a"), 201)
	s.want(by(post(report("gw/a", margo.StateFailed)), ""), 200)
	s.wantProblem(by(post(report("", margo.StateInstalled)), ""), 422, "semantic-error")
	s.wantProblem(by(put("gw", relay("gw")), press), 403, "not-authorized") // as press-07 it is not the gateway
	for _, outside := range []string{"press-08", press + "1", "gw2"} {
		s.wantProblem(by(put(outside, caps(outside)), ""), 403, "not-authorized")
		s.wantProblem(by(put(outside, caps(outside)), outside), 403, "not-authorized")
		s.wantProblem(by(post(report("", margo.StateInstalled)), outside), 403, "not-authorized")
		s.wantProblem(by(post(report(outside, margo.StateInstalled)), press), 403, "not-authorized")
		s.wantProblem(by(request{method: "DELETE", path: "/api/v1/capabilities/" + outside}, ""), 403, "not-authorized")
		s.wantProblem(by(request{method: "GET", path: "/api/v1/deployments"}, outside), 501, "about:blank")
	}
	found, _, err := s.store.Deployments(t.Context(), store.DeploymentQuery{Limit: 9})
	if err != nil || len(found) != 3 {
		t.Errorf("deployments: %+v, %v", found, err)
	}
	// With the token of another device our agent is told so; before, its reports would have been that device's.
	s.wantProblem(post(report("", margo.StateInstalled)).by("press-08").with(status.HeaderDevice, press), 403, "not-authorized")
	if err := s.store.RevokeToken(t.Context(), tok.ID, time.Unix(2, 0)); err != nil {
		t.Fatal(err)
	}
	s.wantProblem(by(put(press, caps(press)), press), 403, "not-authorized")
	s.wantProblem(by(put("gw", relay("gw")), "gw"), 403, "not-authorized")
}

// What a gateway says of a child that it does not know, cannot reach, or may not choose: codes that the specification reserves.
func TestGatewayErrors(t *testing.T) {
	s := start(t, nil)
	s.want(put("gw", relay("gw")).by("gw"), 201)
	s.want(put("gw/a", caps("gw/a")).by("gw"), 201)
	for i, code := range []string{"101", "102", "103"} {
		body := strings.Replace(report("gw/a", margo.StateFailed), `"state":"failed"`, `"error":{"code":"`+code+`","source":"gw","message":"no"},"state":"failed"`, 1)
		s.want(post(body).by("gw"), []int{201, 200, 200}[i])
		if b := s.want(request{method: "GET", path: "/fleet/v1/deployments"}, 200); !strings.Contains(string(b), `"code": "`+code+`"`) {
			t.Errorf("code %s is not shown: %s", code, b)
		}
	}
}
