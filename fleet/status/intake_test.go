package status_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

// handler is the API on a database of its own, and the token of a device.
func handler(tb testing.TB, devices ...string) (http.Handler, []string) {
	tb.Helper()
	st, err := store.Open(context.WithoutCancel(tb.Context()), filepath.Join(tb.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = st.Close() })
	var tokens []string
	for _, d := range devices {
		text, tok, err := status.Mint(time.Unix(1, 0), artifacts.DeviceID(d))
		if err != nil {
			tb.Fatal(err)
		}
		if err := st.AddTokens(tb.Context(), tok); err != nil {
			tb.Fatal(err)
		}
		tokens = append(tokens, text)
	}
	return status.API(status.Options{
		Store: st, Now: func() time.Time { return time.Unix(2, 0) }, Logger: slog.New(slog.DiscardHandler), Rate: 1e9, Burst: 1 << 30,
	}), tokens
}

// BenchmarkIntake is a status report from the request to the answer, 64 at a time, without the network.
func BenchmarkIntake(b *testing.B) {
	const devices = 200
	var names []string
	for i := range devices {
		names = append(names, fmt.Sprintf("dev-%03d", i))
	}
	h, tokens := handler(b, names...)
	body := report("", margo.StateInstalled, component("web", margo.StateInstalled), component("db", margo.StateInstalled))
	var n atomic.Uint64
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			req := httptest.NewRequestWithContext(b.Context(), "POST", "/api/v1/deployments/"+dep+"/status", strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+tokens[i%devices])
			req.Header.Set(status.HeaderEpoch, epoch)
			req.Header.Set(status.HeaderSequence, fmt.Sprint(i))
			rec := httptest.NewRecorder()
			if h.ServeHTTP(rec, req); rec.Code != 200 && rec.Code != 201 {
				b.Errorf("%d %s", rec.Code, rec.Body)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
}

// A decision that cannot be read does not hide that the device refuses its state.
func TestUnreadableDecisions(t *testing.T) {
	for decisions, want := range map[string]int{`{}`: 0, `"none"`: 0, `[{"at":"soon"},{"verdict":"approved","by":"ana"},7]`: 1} {
		r := store.Capabilities{Body: []byte(`{"x-longshore-extensions":{"agentVersion":"1.2.3","refused":{"code":"expired"},"decisions":` + decisions + `}}`)}
		status.Summarize(&r)
		if summary := string(r.Summary); !r.Alarm || !strings.Contains(summary, `"code":"expired"`) || strings.Count(summary, `"by"`) != want {
			t.Errorf("%s: alarm %v, %s", decisions, r.Alarm, summary)
		}
	}
}

// Nor does anything else that cannot be read hide the rest, and it is told: a hold is one all the same.
func TestUnreadableMembers(t *testing.T) {
	for member, want := range map[string]string{
		`"hold":{"generation":"seven"}`: `"hold":{"generation":0,"by":"an unknown person (`,
		`"hold":7`:                      `"hold":{"generation":0,"by":"an unknown person (`,
		`"waiting":[{"name":"a","until":"soon"},{"name":"b","code":"x"}]`: `"waiting":[{"deployment":"","name":"changes","code":"unreadable"`,
		`"waiting":{}`:                             `"code":"unreadable"`,
		`"progress":{"phase":7}`:                   `"agentVersion":"1.2.3"`,
		`"insecure":{}`:                            `"unreadable":["insecure"]`,
		`"security":3,"staleSince":"x"`:            `"unreadable":["security","staleSince"]`,
		`"hold":null,"waiting":null`:               `"agentVersion":"1.2.3"`,
		`"waiting":[],"progress":null,"unknown":1`: `"agentVersion":"1.2.3"`,
	} {
		r := store.Capabilities{Body: []byte(`{"x-longshore-extensions":{"agentVersion":"1.2.3","refused":{"code":"expired"},"reportIntervalSeconds":60,` + member + `}}`)}
		status.Summarize(&r)
		if summary := string(r.Summary); !r.Alarm || r.Interval != time.Minute || !strings.Contains(summary, `"code":"expired"`) || !strings.Contains(summary, want) {
			t.Errorf("%s: alarm %v, interval %v, %s", member, r.Alarm, r.Interval, summary)
		}
	}
}

// FuzzReports holds both bodies to one of the answers of the specification, whatever comes.
func FuzzReports(f *testing.F) {
	f.Add([]byte(caps(press)))
	f.Add([]byte(report(press, margo.StateInstalled, component("a", margo.StateInstalled))))
	f.Add([]byte(`{"properties":{"id":"press-07"},"x-longshore-extensions":7}`))
	f.Add([]byte(`{"properties":{"id":"press-07"},"x-longshore-extensions":{"progress":{"phase":"failed","since":"x"}}}`))
	f.Add([]byte(`{`))
	h, tokens := handler(f, press)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, q := range []request{put(press, ""), post("")} {
			req := httptest.NewRequestWithContext(t.Context(), q.method, q.path, bytes.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+tokens[0])
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			switch rec.Code {
			case 200, 201, 400, 403, 422:
			default:
				t.Errorf("%s %s %q = %d %s", q.method, q.path, body, rec.Code, rec.Body)
			}
		}
	})
}

// slowly sends the head of a report and the beginning of its body, and waits.
func (s *server) slowly(token string) net.Conn {
	s.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(s.t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "PUT /api/v1/capabilities/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 20000\r\n\r\n{", press, token)
	return conn
}

// Bodies that one device sends slowly, over any number of connections and with any of its tokens, keep no other device out.
func TestSlowBodies(t *testing.T) {
	s := start(t, func(o *status.Options) { o.InFlight = 20 })
	text, tok, err := status.Mint(time.Unix(1, 0), press)
	if err == nil {
		err = s.store.AddTokens(t.Context(), tok)
	}
	if err != nil {
		t.Fatal(err)
	}
	tokens := []string{s.token(press), text} // two of one device
	var all []net.Conn
	for i := range 40 {
		all = append(all, s.slowly(tokens[i%2]))
	}
	answers := make(chan *http.Response, len(all)) // those beyond what one device may have are answered though their body is on its way
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
				_ = res.Body.Close()
				answers <- res
			}
		})
	}
	limit := time.After(time.Minute)
	for i := range len(all) - 16 {
		select {
		case res := <-answers: // 503: so many at once that the store was busy authenticating them.
			if res.StatusCode != 429 && res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || res.Header.Get("Content-Type") != margo.ProblemMediaType {
				t.Errorf("a slow body too many: %s %v", res.Status, res.Header)
			}
		case <-limit:
			t.Fatalf("%d of %d slow bodies were refused, want all but 16", i, len(all))
		}
	}
	s.wantProblem(put(press, caps(press)), 429, "about:blank")
	for i := range 20 {
		id := fmt.Sprint("other-", i)
		s.want(put(id, caps(id)).by(id), 201)
	}
	for _, c := range all {
		_ = c.Close()
	}
	wg.Wait()
	if n := len(answers); n > 0 {
		t.Errorf("%d slow bodies more were refused, want 16 that are waited for", n)
	}
}

// Large bodies count as several reports.
func TestLargeBodies(t *testing.T) {
	s := start(t, func(o *status.Options) { o.Rate, o.Burst = 1, 20 })
	large := func() request {
		return put(press, caps(press, `,"x-acme-extensions":{"y":"`+strings.Repeat("y", 250_000)+`"}`))
	}
	s.want(large(), 201) // 16 of the 20
	p := s.wantProblem(large(), 429, "about:blank")
	if p.RetryAfterSeconds == 0 || !*p.Retryable {
		t.Errorf("problem %+v", p)
	}
	s.want(put("other", caps("other")).by("other"), 201)
}

// A report over a quota is answered 429 with the time after which to try again, and names the quota.
func TestQuotas(t *testing.T) {
	s := start(t, nil)
	s.store.SetQuota(store.Quota{Deployments: 2, Children: 1, Bytes: 1 << 20})
	s.want(put("gw", relay("gw")).by("gw"), 201)
	s.want(put("gw/a", caps("gw/a")).by("gw"), 201)
	p := s.wantProblem(put("gw/b", caps("gw/b")).by("gw"), 429, "about:blank")
	if p.RetryAfterSeconds < 60 || !strings.Contains(p.Detail, "devices behind it") {
		t.Errorf("problem %+v", p)
	}
	for i, code := range []int{201, 201, 429} {
		id := fmt.Sprintf("a3e2f5dc-912e-494f-8395-%012d", i)
		q := request{method: "POST", path: "/api/v1/deployments/" + id + "/status", body: strings.ReplaceAll(report("", margo.StateInstalled), dep, id)}
		if s.want(q, code); code == 429 {
			if p := s.wantProblem(q, 429, "about:blank"); !strings.Contains(p.Detail, "most deployments") {
				t.Errorf("problem %+v", p)
			}
		}
	}
}

// What is kept of a report is bounded; what failed is kept first.
func TestKept(t *testing.T) {
	s := start(t, nil)
	var all []margo.ComponentStatus
	for i := range 300 {
		all = append(all, component(fmt.Sprint("c", i, strings.Repeat("x", 300)), margo.StateInstalled))
	}
	all[299].State, all[299].Error = margo.StateFailed, &margo.StatusError{Code: "unhealthy", Source: "c299", Message: strings.Repeat("é", 20_000)}
	s.want(post(report("", margo.StateFailed, all...)), 201)
	var out struct{ Deployments []status.Deployment }
	b := s.want(request{method: "GET", path: "/fleet/v1/deployments"}, 200)
	if err := json.Unmarshal(b, &out); err != nil || len(b) > 64<<10 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	d := out.Deployments[0]
	last := d.Components[len(d.Components)-1]
	if d.ComponentsOmitted+len(d.Components) != 300 || d.ComponentsOmitted == 0 || last.State != margo.StateFailed || len(last.Error.Message) > 2100 || !utf8.ValidString(last.Error.Message) {
		t.Errorf("%d components, %d omitted, the last %+v", len(d.Components), d.ComponentsOmitted, last)
	}
	loud := `,"x-longshore-extensions":{"progress":{"phase":"failed","message":"` + strings.Repeat("p", 5_000) + `"},"insecure":["` + strings.Repeat(`x","`, 50_000) + `"],"refused":{"message":"` + strings.Repeat("m", 50_000) + `"}}`
	s.want(put(press, caps(press, loud)), 201)
	if b := s.want(request{method: "GET", path: "/fleet/v1/devices"}, 200); len(b) > 8<<10 || !bytes.Contains(b, []byte("mmm…")) {
		t.Errorf("a device is %d bytes", len(b))
	}
}

// A fault of a body names its field, also where that is missing.
func TestFaultsNameFields(t *testing.T) {
	s := start(t, nil)
	for body, field := range map[string]string{
		`{}`: "properties", `{"properties":{"id":"press-07","vendor":"v","modelNumber":"m"}}`: "properties.serialNumber",
		strings.Replace(caps(press), "arm64", "riscv64", 1): "properties.cpus[0].architecture", strings.Replace(caps(press), `"cores":4,`, "", 1): "properties.cpus[0].cores",
	} {
		p := s.wantProblem(put(press, body), 422, "semantic-error")
		if len(p.Errors) != 1 || p.Errors[0].Field != field {
			t.Errorf("%s: errors %+v, want %s", body, p.Errors, field)
		}
	}
	p := s.wantProblem(post(`{"deploymentId":"`+dep+`"}`), 422, "semantic-error")
	for _, e := range p.Errors {
		if e.Field == "" {
			t.Errorf("an error names no field: %+v", e)
		}
	}
	p = s.wantProblem(put(press, `{`), 400, "invalid-request")
	if len(p.Errors) != 1 || p.Errors[0].Field == "" {
		t.Errorf("errors %+v", p.Errors)
	}
}
