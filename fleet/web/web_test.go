package web_test

import (
	"bufio"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/fleet/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func noon() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

func start(t *testing.T) (*store.SQLite, *web.Hub, *httptest.Server) {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	hub := web.NewHub(time.Now)
	h, err := web.New(web.Options{
		Viewer: &status.Viewer{View: s, Now: noon, Logger: slog.New(slog.DiscardHandler)}, Hub: hub, Gate: status.NewGate(), Version: "0.1.0",
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		hub.Close()
		srv.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, hub, srv
}

func get(t *testing.T, srv *httptest.Server, path string) (*http.Response, string) {
	t.Helper()
	res, err := srv.Client().Get(srv.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func fill(t *testing.T, s store.Store, id, extra string, alarm bool) {
	t.Helper()
	body := fmt.Sprintf(`{"properties":{"id":%q,"vendor":"<script>alert(1)</script>","modelNumber":"P7","serialNumber":"1"}%s}`, id, extra)
	r := store.Capabilities{Device: id, Body: []byte(body), At: noon().Add(-3 * time.Minute)}
	status.Summarize(&r)
	if r.Alarm != alarm {
		t.Errorf("%s: alarm %v", id, r.Alarm)
	}
	if _, err := s.PutCapabilities(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func deploy(t *testing.T, s store.Store, device string, state margo.State, message string) {
	t.Helper()
	d := margo.DeploymentStatus{DeploymentID: "a3e2f5dc-912e-494f-8395-52cf3769bc06", DeviceID: device, AdoptedManifestVersion: 1}
	d.Status.State = state
	c := margo.ComponentStatus{Name: "line-monitor", State: state}
	if message != "" {
		c.Error = &margo.StatusError{Code: "image-pull", Source: "line-monitor", Message: message}
		d.Status.Error = c.Error
	}
	d.Components = []margo.ComponentStatus{c}
	b, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutStatus(t.Context(), store.Status{Device: device, Deployment: d.DeploymentID, State: state, Body: b, At: noon().Add(-2 * time.Hour), Now: noon()}); err != nil {
		t.Fatal(err)
	}
}

func TestEmptyPage(t *testing.T) {
	_, _, srv := start(t)
	res, body := get(t, srv, "/")
	if res.StatusCode != 200 || !strings.Contains(body, "No device has reported yet") || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
		t.Errorf("GET / = %d %s\n%s", res.StatusCode, res.Header.Get("Content-Type"), body)
	}
	if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("policy %q", csp)
	}
}

func TestPage(t *testing.T) {
	s, _, srv := start(t)
	fill(t, s, "press-07", `,"x-longshore-extensions":{"agentVersion":"0.1.0","acceptedGeneration":42,"runningGeneration":41,"digest":"sha256:c0dec0dec0dec0dec0de",`+
		`"insecure":["state r.example/x"],"stale":true,"refused":{"digest":"sha256:deaddeaddeaddead","generation":43,"code":"signature-invalid","message":"no key matches <b>"}}`, true)
	deploy(t, s, "press-07", margo.StateInstalled, "")
	fill(t, s, "press-08", "", false)
	deploy(t, s, "press-08", margo.StateFailed, "image not found & gone")
	_, body := get(t, srv, "/")
	for _, want := range []string{
		"refuses generation 43", "no key matches &lt;b&gt;", "signature-invalid", "generation 41 runs on", `<span class="badge installed">installed</span>`,
		`<span class="badge failed">failed</span>`, "image not found &amp; gone", "line-monitor", "&lt;script&gt;alert(1)&lt;/script&gt;", "insecure", "expired",
		"heard <b>3 min</b> ago", "2 h", "sha256:deaddeaddead…", `<b class="installed">1</b>`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(body, "<script>alert") {
		t.Error("a device put a script on the page")
	}
	if t.Failed() {
		t.Log(body)
	}
	_, part := get(t, srv, "/fragment")
	if strings.Contains(part, "<html") || !strings.Contains(body, part) {
		t.Error("the fragment is not the part of the page that changes")
	}
	wellFormed(t, part)
}

// The phase of a change is shown until it is complete, where a device says it.
func TestPhases(t *testing.T) {
	s, _, srv := start(t)
	fill(t, s, "press-07", `,"x-longshore-extensions":{"agentVersion":"0.1.0","acceptedGeneration":42,"progress":{"phase":"downloading","since":"2026-11-20T11:57:00Z",`+
		`"generation":42,"attempt":2,"done":12000000,"total":40000000,"code":"image-pull","message":"no <b>route</b>"}}`, false)
	fill(t, s, "press-08", `,"x-longshore-extensions":{"agentVersion":"0.1.0","progress":{"phase":"committed","generation":42}}`, false)
	fill(t, s, "press-09", `,"x-longshore-extensions":{"agentVersion":"0.1.0","acceptedGeneration":7,"progress":{"phase":"<b>","generation":42}}`, false)
	fill(t, s, "press-10", "", false)
	_, body := get(t, srv, "/")
	want := `<span class="badge phase">downloading</span> generation 42 <span class="dim"><time datetime="2026-11-20T11:57:00Z" title="2026-11-20 11:57:00 UTC">for 3 min</time>` +
		`, 12.0 of 40.0 MB, boot 2</span> no &lt;b&gt;route&lt;/b&gt; <code>image-pull</code>`
	if !strings.Contains(body, want) || strings.Count(body, "badge phase") != 1 {
		t.Errorf("the page lacks %q, or has other phases:\n%s", want, body)
	}
	if !strings.Contains(body, "<b>7</b>") {
		t.Error("the rest of a report is lost by its phase")
	}
	_, part := get(t, srv, "/fragment")
	wellFormed(t, part)
}

// The newest decision of people at a device is shown while a change waits there, unless the hold tells it.
func TestDecisions(t *testing.T) {
	s, _, srv := start(t)
	const waiting = `"waiting":[{"name":"vision","code":"change-rejected","message":"rejected"}],`
	const last = `"decisions":[{"at":"2026-11-20T11:57:00Z","verdict":"approved","deployment":"web","by":"eve"}]}`
	fill(t, s, "press-08", `,"x-longshore-extensions":{"agentVersion":"0.1.0",`+last, false)
	fill(t, s, "press-09", `,"x-longshore-extensions":{"agentVersion":"0.1.0","hold":{"generation":3,"by":"bo"},`+waiting+last, false)
	fill(t, s, "press-07", `,"x-longshore-extensions":{"agentVersion":"0.1.0",`+waiting+`"decisions":[{"at":"2026-11-20T11:00:00Z","verdict":"approved","deployment":"old","by":"bo"},`+
		`{"at":"2026-11-20T11:57:00Z","verdict":"rejected","deployment":"vision","digest":"sha256:abc","by":"ana at the panel","via":"panel","reason":"camera <2>"}]}`, false)
	_, body := get(t, srv, "/")
	want := `<p class="dim" title="sha256:abc">2026-11-20T11:57:00Z: ana at the panel rejected vision: camera &lt;2&gt;</p>`
	if !strings.Contains(body, want) || strings.Contains(body, "approved") {
		t.Errorf("the page lacks %q:\n%s", want, body)
	}
}

// wellFormed finds tags that are not closed.
func wellFormed(t *testing.T, part string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader("<main>" + part + "</main>"))
	d.Strict, d.AutoClose, d.Entity = false, []string{"br"}, xml.HTMLEntity
	depth := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the fragment is not well formed: %v", err)
		}
		switch tok.(type) {
		case xml.StartElement:
			depth++
		case xml.EndElement:
			depth--
		}
	}
	if depth != 0 {
		t.Errorf("%d tags are not closed", depth)
	}
}

// What devices say cannot reorder the page, or a terminal that shows it.
func TestControls(t *testing.T) {
	s, _, srv := start(t)
	fill(t, s, "press-07", `,"x-longshore-extensions":{"agentVersion":"\u202e1.0\u009b31m","refused":{"code":"x","message":"\u2066evil\u001b[31m"}}`, true)
	deploy(t, s, "press-07", margo.StateFailed, "gone \u202e\u200f")
	for _, path := range []string{"/", "/fragment"} {
		if _, body := get(t, srv, path); !printable.Safe(body) || !strings.Contains(body, `\u2066evil\u001b[31m`) {
			t.Errorf("GET %s = %q", path, body)
		}
	}
}

func TestPages(t *testing.T) {
	s, _, srv := start(t)
	for i := range 130 {
		fill(t, s, fmt.Sprintf("dev-%03d", i), "", false)
	}
	fill(t, s, "dev-129", `,"x-longshore-extensions":{"refused":{"code":"expired"}}`, true)
	_, body := get(t, srv, "/")
	link := regexp.MustCompile(`<li><b><a href="(\?after=.*)#dev-129">`).FindStringSubmatch(body)
	if link == nil {
		t.Fatalf("no link leads to a problem on another page:\n%s", body)
	}
	if _, there := get(t, srv, "/"+link[1]); !strings.Contains(there, `<article class="device bad" id="dev-129">`) || !strings.Contains(there, `<li><b><a href="#dev-129">`) {
		t.Errorf("%s does not lead to the device", link[1])
	}
	if n := strings.Count(body, "<article"); n != 100 || !strings.Contains(body, `href="?after=dev-099"`) {
		t.Errorf("first page has %d devices", n)
	}
	_, body = get(t, srv, "/?after=dev-099")
	if n := strings.Count(body, "<article"); n != 30 || strings.Contains(body, "next page") || !strings.Contains(body, "first page") {
		t.Errorf("second page has %d devices", n)
	}
}

// A device that is not heard for three of its intervals is first among the problems, with the time at which it was heard
// last; a device that says nothing of an interval is not judged.
func TestOffline(t *testing.T) {
	s, _, srv := start(t)
	fill(t, s, "press-07", `,"x-longshore-extensions":{"reportIntervalSeconds":30}`, false)
	fill(t, s, "press-08", `,"x-longshore-extensions":{"reportIntervalSeconds":60}`, false)
	fill(t, s, "press-09", "", false)
	deploy(t, s, "press-08", margo.StateFailed, "broken")
	_, body := get(t, srv, "/")
	first := strings.Index(body, "is offline")
	if n := strings.Count(body, "offline since 2026-11-20 11:57:00 UTC"); n != 1 || first < 0 || first > strings.Index(body, "</a></b> failed") {
		t.Errorf("%d devices are shown as offline:\n%s", n, body)
	}
	if !strings.Contains(body, `<b class="failed">1</b><span>offline</span>`) {
		t.Error("offline devices are not counted")
	}
	wellFormed(t, body[strings.Index(body, "<section"):strings.LastIndex(body, "</main>")])
}

// However many deployments a device has, a few of them are on the page: the worst.
func TestManyDeployments(t *testing.T) {
	s, _, srv := start(t)
	fill(t, s, "press-07", "", false)
	for i := range 300 {
		id := fmt.Sprintf("a3e2f5dc-912e-494f-8395-%012d", i)
		state := margo.StateInstalled
		if i == 299 {
			state = margo.StateFailed
		}
		body := fmt.Sprintf(`{"adoptedManifestVersion":1,"status":{"state":%q},"components":[{"name":%q,"state":%[1]q}]}`, state, strings.Repeat("x", 30_000))
		if _, err := s.PutStatus(t.Context(), store.Status{Device: "press-07", Deployment: id, State: state, Body: []byte(body), At: noon()}); err != nil {
			t.Fatal(err)
		}
	}
	_, body := get(t, srv, "/")
	if n := strings.Count(body, "<tr><td>"); n != 20 || len(body) > 3<<20 || !strings.Contains(body, "and 280 more deployments") || !strings.Contains(body, `title="a3e2f5dc-912e-494f-8395-000000000299"`) {
		t.Errorf("%d deployments in %d bytes", n, len(body))
	}
}

func TestStatic(t *testing.T) {
	_, _, srv := start(t)
	for path, kind := range map[string]string{"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"} {
		res, body := get(t, srv, "/static/"+path)
		if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), kind) {
			t.Errorf("GET %s = %d %s", path, res.StatusCode, res.Header.Get("Content-Type"))
		}
		if strings.Contains(strings.ReplaceAll(body, "http://www.w3.org/2000/svg", ""), "://") {
			t.Errorf("%s names another place", path)
		}
	}
	for _, path := range []string{"/else", "/static/else.js", "/static/", "/favicon.ico"} {
		if res, body := get(t, srv, path); res.StatusCode != 404 || res.Header.Get("Content-Type") != margo.ProblemMediaType {
			t.Errorf("GET %s = %d %s, want a problem: %s", path, res.StatusCode, res.Header.Get("Content-Type"), body)
		}
	}
	res, err := srv.Client().Post(srv.URL+"/", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 405 || res.Header.Get("Allow") == "" || res.Header.Get("Content-Type") != margo.ProblemMediaType {
		t.Errorf("POST / = %d %v", res.StatusCode, res.Header)
	}
}

func TestDatabaseGone(t *testing.T) {
	s, _, srv := start(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if res, _ := get(t, srv, "/"); res.StatusCode != 503 {
		t.Errorf("GET / = %d, want 503", res.StatusCode)
	}
}

func TestEvents(t *testing.T) {
	_, hub, srv := start(t)
	res, err := srv.Client().Get(srv.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type = %q", got)
	}
	lines := bufio.NewScanner(res.Body)
	next := func() string {
		t.Helper()
		var event []string
		for lines.Scan() && lines.Text() != "" {
			event = append(event, lines.Text())
		}
		return strings.Join(event, "|")
	}
	if got, want := next(), "event: change|id: 1|retry: 3000|data: 1"; got != want {
		t.Errorf("first event %q, want %q", got, want)
	}
	for range 100 {
		hub.Notify()
	}
	if got := next(); !strings.HasPrefix(got, "event: change|id: 2|") {
		t.Errorf("second event %q", got)
	}
	hub.Close()
	if got := next(); got != "" {
		t.Errorf("event %q after Close", got)
	}
	res2, _ := get(t, srv, "/events")
	if res2.StatusCode != 503 || res2.Header.Get("Retry-After") == "" {
		t.Errorf("GET /events after Close = %d", res2.StatusCode)
	}
}

// stream counts flushes.
type stream struct {
	http.ResponseWriter
	events chan struct{}
}

func (s stream) Flush() { s.events <- struct{}{} }

func TestHeartbeatAndCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := web.NewHub(time.Now)
		out := stream{httptest.NewRecorder(), make(chan struct{}, 1000)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			hub.ServeHTTP(out, httptest.NewRequestWithContext(t.Context(), "GET", "/events", nil))
		}()
		synctest.Wait()
		for range 20 { // ten changes a second for two seconds
			hub.Notify()
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(out.events); n < 3 || n > 6 {
			t.Errorf("%d events for 20 changes within 2 s", n)
		}
		for len(out.events) > 0 {
			<-out.events
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if n := len(out.events); n < 3 || n > 5 {
			t.Errorf("%d events in a quiet minute, want one each 15 s", n)
		}
		hub.Close()
		<-done
	})
}
