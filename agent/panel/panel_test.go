package panel_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
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

	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/panel"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	pin      = "481592"
	otherPIN = "771301"
)

var (
	changeID = digest.FromString("change")
	state    = digest.FromString("state")
)

// device is one change that waits, and records what is decided.
type device struct {
	now     status.Status
	changes []status.Change
	made    []any
	err     error
}

func newDevice() *device {
	return &device{
		now: status.Status{
			Device: "press-07", Phase: status.Phase(store.PhaseAwaitingApproval), Running: &status.Generation{Generation: 1}, Accepted: &status.Generation{Generation: 2, Digest: state},
			Deployments: []status.Deployment{{Name: "vision", State: margo.StatePending, Components: []status.Component{{Name: "camera", Revision: "1.1.0", State: margo.StatePending}}, Running: []status.RunningComponent{
				{Name: "camera", Revision: "1.0.0", Services: []status.Service{{Status: workload.Running}, {Status: workload.Exited}}},
			}}},
		},
		changes: []status.Change{{
			ID: changeID, Deployment: "vision", DeploymentID: "d1", Generation: 2, Kinds: []plan.Kind{plan.Images}, Restarts: 1, Containers: 2, Bytes: 41 << 20,
			Since:      time.Now().Add(-3*time.Hour - 90*time.Second),
			Components: []status.ComponentChange{{Component: "camera", From: "1.0.0", To: "1.1.0"}, {Component: "lamp", To: "2.0.0"}, {Component: "bell", From: "0.9.0"}},
			Images:     []status.ImageChange{{Component: "camera", Service: "web", From: "r/i@sha256:0123456789abcdef", FromTag: "1", To: "r/i@sha256:fedcba9876543210", ToTag: "2"}},
			Waiting:    &status.Waiting{Code: codes.ApprovalNeeded, Message: "waiting for approval: longshore-agent approve vision"},
		}},
	}
}

func (d *device) Status() status.Status { return d.now }

func (d *device) Changes(context.Context) ([]status.Change, error) { return d.changes, d.err }

func (d *device) Decide(_ context.Context, r agent.DecisionRequest) (status.Change, error) {
	if d.err != nil {
		return status.Change{}, d.err
	}
	if r.ID != changeID {
		return status.Change{}, fmt.Errorf("another change waits: %w", fault.ErrConflict)
	}
	d.made = append(d.made, r)
	return status.Change{Deployment: "vision"}, nil
}

func (d *device) RollBack(_ context.Context, r agent.RollbackRequest) (status.Hold, error) {
	d.made = append(d.made, r)
	return status.Hold{Generation: 1}, d.err
}

func (d *device) Release(_ context.Context, by, via string) (status.Hold, error) {
	d.made = append(d.made, [2]string{by, via})
	return status.Hold{Generation: 1}, d.err
}

// desk is a browser before the page of a device.
type desk struct {
	t       *testing.T
	h       http.Handler
	d       *device
	log     bytes.Buffer
	pins    string // file
	from    string // address
	cookies map[string]string
}

func hash(t *testing.T, name, pin string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(pin), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return name + ":" + string(h) + "\n"
}

func newDesk(t *testing.T, edit func(*panel.Options)) *desk {
	t.Helper()
	d := &desk{t: t, d: newDevice(), pins: filepath.Join(t.TempDir(), "pins"), from: "192.0.2.7:4000", cookies: map[string]string{}}
	if err := os.WriteFile(d.pins, []byte("# the shift\n"+hash(t, "ana", pin)+hash(t, "bo", otherPIN)), 0o600); err != nil {
		t.Fatal(err)
	}
	o := panel.Options{Device: d.d, PINFile: d.pins, Log: slog.New(slog.NewTextHandler(&d.log, nil)), Now: time.Now}
	if edit != nil {
		edit(&o)
	}
	var err error
	if d.h, err = panel.New(o); err != nil {
		t.Fatal(err)
	}
	return d
}

// do sends a request as a browser does, and keeps the cookies of the answer.
func (d *desk) do(method, path string, form url.Values, edit ...func(*http.Request)) *http.Response {
	d.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, "http://192.0.2.1:8480"+path, body)
	r.RemoteAddr = d.from
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://192.0.2.1:8480")
	}
	for name, value := range d.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	for _, f := range edit {
		f(r)
	}
	w := httptest.NewRecorder()
	d.h.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if d.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(d.cookies, c.Name)
		}
	}
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (d *desk) login(name, pin string) *http.Response {
	d.t.Helper()
	return d.do("POST", "/login", url.Values{"name": {name}, "pin": {pin}})
}

// enter logs in.
func (d *desk) enter() {
	d.t.Helper()
	if r := d.login("ana", pin); r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != "/" {
		d.t.Fatalf("login = %d\n%s", r.StatusCode, text(d.t, r))
	}
}

func (d *desk) inside() bool {
	d.t.Helper()
	return d.do("GET", "/?renew", nil).StatusCode == http.StatusOK
}

// Nothing is shown without a PIN; what is wrong about one is not told, nor does it reach the log.
func TestLogin(t *testing.T) {
	d := newDesk(t, nil)
	for _, path := range []string{"/", "/change/" + changeID.String(), "/rollback", "/release"} {
		if r := d.do("GET", path, nil); r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != "/login" {
			t.Errorf("%s without a PIN = %d", path, r.StatusCode)
		}
	}
	wrong, nobody, empty := d.login("ana", otherPIN), d.login("4711secret", pin), d.login("", "")
	a := text(t, wrong)
	if b, c := text(t, nobody), text(t, empty); wrong.StatusCode != http.StatusUnauthorized || nobody.StatusCode != wrong.StatusCode || a != b || a != c || strings.Contains(a, otherPIN) {
		t.Errorf("a wrong PIN, a wrong name and neither differ: %d %d\n%s\n%s", wrong.StatusCode, nobody.StatusCode, a, b)
	}
	d.enter()
	if page := text(t, d.do("GET", "/", nil)); !strings.Contains(page, ">ana<") || !strings.Contains(page, "/change/"+changeID.String()) || !strings.Contains(page, "41.0 MiB") {
		t.Errorf("the page:\n%s", page)
	}
	if log := d.log.String(); strings.Contains(log, pin) || strings.Contains(log, otherPIN) || strings.Contains(log, "4711secret") || !strings.Contains(log, "192.0.2.7") {
		t.Errorf("log:\n%s", log)
	}
	if r := d.do("POST", "/logout", url.Values{}); r.StatusCode != http.StatusSeeOther || d.inside() {
		t.Errorf("logout = %d, inside = %v", r.StatusCode, d.inside())
	}
}

func TestCookie(t *testing.T) {
	for _, secure := range []bool{false, true} {
		d := newDesk(t, func(o *panel.Options) { o.TLS = secure })
		all := d.login("ana", pin).Cookies()
		if len(all) != 1 || !all[0].HttpOnly || all[0].SameSite != http.SameSiteStrictMode || all[0].Secure != secure || all[0].MaxAge != 0 || len(all[0].Value) < 20 {
			t.Errorf("TLS %v: cookies %+v", secure, all)
		}
		if strings.HasPrefix(all[0].Name, "__Host-") != secure {
			t.Errorf("TLS %v: cookie %s", secure, all[0].Name)
		}
	}
}

// The page tells what runs from what waits, and how long it has waited.
func TestRunsAndWaits(t *testing.T) {
	d := newDesk(t, nil)
	d.enter()
	page := text(t, d.do("GET", "/", nil))
	for _, want := range []string{
		`<dt>Runs</dt><dd class="runs"><div><b>camera</b> 1.0.0 <span class="dim">1 of 2 containers run</span></div></dd>`, `<dt>Waits</dt><dd><div>camera 1.1.0</div></dd>`,
		`<div>camera: 1.0.0 → <b>1.1.0</b></div><div>lamp: new → <b>2.0.0</b></div><div>bell: 0.9.0 → <b>removed</b></div>`, "(3\u00a0h 1\u00a0min)", `1 of 2</dd>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
	german, err := panel.ReadMessages("testdata/de.yaml")
	if err != nil {
		t.Fatal(err)
	}
	de := newDesk(t, func(o *panel.Options) { o.Messages = german })
	de.enter()
	if page := text(t, de.do("GET", "/", nil)); !strings.Contains(page, "(3\u00a0Std. 1\u00a0Min.)") {
		t.Errorf("the units are not German:\n%s", page)
	}
	d.d.now.Deployments[0].Running = nil
	if page := text(t, d.do("GET", "/", nil)); strings.Contains(page, "<dt>Runs</dt>") || !strings.Contains(page, "<b>camera</b> 1.1.0") {
		t.Errorf("nothing else runs:\n%s", page)
	}
}

// A session ends when nothing is done, after a shift, and with the PIN.
func TestSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.enter()
		for range 4 {
			time.Sleep(time.Minute)
			if !d.inside() {
				t.Fatal("it ended early")
			}
		}
		time.Sleep(time.Minute) // the page has renewed itself all the time
		if d.inside() {
			t.Error("it is open 5 minutes after the last use")
		}
		r := d.do("POST", "/change/"+changeID.String(), url.Values{"deployment": {"d1"}, "verdict": {"approved"}})
		if r.Header.Get("Location") != "/login?ended" || len(d.d.made) > 0 {
			t.Errorf("a decision after the end = %d %s, made %v", r.StatusCode, r.Header.Get("Location"), d.d.made)
		}
		if page := text(t, d.do("GET", "/login?ended", nil)); !strings.Contains(page, "You were logged out") {
			t.Errorf("the page does not tell:\n%s", page)
		}
		d.enter()
		for range 8*15 - 1 {
			time.Sleep(4 * time.Minute)
			d.do("GET", "/", nil)
		}
		if !d.inside() {
			t.Fatal("it ended within a shift")
		}
		time.Sleep(4 * time.Minute)
		if d.inside() {
			t.Error("it is open after a shift")
		}
		d.enter()
		if err := os.WriteFile(d.pins, []byte(hash(t, "ana", otherPIN)), 0o600); err != nil {
			t.Fatal(err)
		}
		if d.inside() {
			t.Error("it is open after the PIN was changed")
		}
		if err := os.Chmod(d.pins, 0o644); err != nil {
			t.Fatal(err)
		}
		if r := d.login("ana", otherPIN); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(d.log.String(), "others may read it") {
			t.Errorf("login by a file that others may read = %d\n%s", r.StatusCode, &d.log)
		}
	})
}

// Whoever guesses is told until when, and the right PIN does not help meanwhile.
func TestGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		guess := func(n, want int) {
			t.Helper()
			for i := range n {
				if r := d.login("ana", "000000"); r.StatusCode != want {
					t.Fatalf("guess %d from %s at %s = %d, want %d", i, d.from, time.Now(), r.StatusCode, want)
				}
			}
		}
		guess(5, 401)
		r := d.login("ana", pin)
		if page := text(t, r); r.StatusCode != 429 || !strings.Contains(page, "Try again at "+time.Now().Add(time.Minute).Format("15:04:05")) || r.Header.Get("Retry-After") == "" {
			t.Fatalf("the right PIN at once = %d\n%s", r.StatusCode, page)
		}
		time.Sleep(time.Minute)
		guess(1, 401)
		time.Sleep(time.Minute)
		guess(1, 429) // 2 minutes this time
		time.Sleep(time.Minute)
		d.enter()
		guess(5, 401) // anew

		for i := range 4 { // 11 before
			d.from = fmt.Sprintf("[2001:db8:0:%d::%d]:4000", i, i)
			guess(2, 401)
			d.from = fmt.Sprintf("[2001:db8:0:%d::ffff:%d]:4000", i, i)
			guess(2, 401)
		}
		d.from = "[2001:db8:0:3::1234]:4000"
		guess(1, 401)
		d.from = "[2001:db8:0:3::4321]:4000"
		guess(1, 429) // a network is one address
		d.from = "198.51.100.1:4000"
		guess(2, 401)
		d.from = "198.51.100.2:4000"
		guess(1, 429) // 30 of all
		d.from = "127.0.0.1:4000"
		d.enter()
		time.Sleep(time.Hour)
		d.from = "198.51.100.3:4000"
		d.enter()
	})
}

type decisionCase struct {
	path string // "": of the change
	form url.Values
	want any // nil: nothing is decided
	told string
}

func decisionCases() map[string]decisionCase {
	who := agent.DecisionRequest{Deployment: "d1", ID: changeID, By: "ana at the panel", Via: "panel"}
	decision := func(v store.Verdict, reason string, until time.Time) any {
		r := who
		r.Verdict, r.Reason, r.Until = v, reason, until
		return r
	}
	later := time.Now().Add(50 * time.Hour).Truncate(time.Minute)
	return map[string]decisionCase{
		"approve": {"", url.Values{"verdict": {"approved"}}, decision(store.Approved, "", time.Time{}), "is approved"},
		"reject":  {"", url.Values{"verdict": {"rejected"}, "reason": {" camera 2\n is blind "}}, decision(store.Rejected, "camera 2 is blind", time.Time{}), "is rejected"},
		"approve, what was seen": {"", url.Values{"verdict": {"approved"}, "seen": {""}}, func() any {
			r := who
			r.Verdict, r.Seen = store.Approved, new(time.Time)
			return r
		}(), "is approved"},
		"postpone": {
			"",
			url.Values{"verdict": {"postponed"}, "for": {"8h"}, "until": {""}, "reason": {"shift"}},
			decision(store.Postponed, "shift", time.Now().Add(8*time.Hour).Truncate(time.Second)), "is postponed until",
		},
		"postpone until":         {"", url.Values{"verdict": {"postponed"}, "for": {"until"}, "until": {later.Format("2006-01-02T15:04")}}, decision(store.Postponed, "", later), "is postponed until"},
		"roll back":              {"/rollback", url.Values{"state": {state.String()}, "reason": {"noise"}}, agent.RollbackRequest{By: who.By, Via: "panel", Reason: "noise", Over: state}, "back to generation 1"},
		"release":                {"/release", url.Values{}, [2]string{who.By, "panel"}, "leaves generation 1"},
		"reject, no why":         {"", url.Values{"verdict": {"rejected"}, "reason": {" "}}, nil, "Say why"},
		"roll back no why":       {"/rollback", url.Values{"state": {state.String()}}, nil, "Say why"},
		"roll back an old state": {"/rollback", url.Values{"state": {digest.FromString("older").String()}, "reason": {"noise"}}, nil, "newer generation"},
		"postpone into the past": {"", url.Values{"verdict": {"postponed"}, "for": {"until"}, "until": {"2000-01-01T00:00"}}, nil, "within the next 90 days"},
		"postpone for ever":      {"", url.Values{"verdict": {"postponed"}, "for": {"until"}, "until": {"2100-01-01T00:00"}}, nil, "within the next 90 days"},
		"postpone strangely":     {"", url.Values{"verdict": {"postponed"}, "for": {"9999h"}}, nil, "within the next 90 days"},
		"superseded":             {"/change/" + digest.FromString("before").String(), url.Values{"verdict": {"approved"}}, nil, "does not wait any more"},
	}
}

func TestDecisions(t *testing.T) {
	for name := range decisionCases() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tc := decisionCases()[name]
				d := newDesk(t, nil)
				d.enter()
				if tc.path == "" {
					tc.path = "/change/" + changeID.String()
				}
				tc.form.Set("deployment", "d1")
				if r := d.do("POST", tc.path, tc.form); r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != "/" {
					t.Fatalf("POST = %d %s", r.StatusCode, r.Header.Get("Location"))
				}
				if got := fmt.Sprint(d.d.made); tc.want == nil && len(d.d.made) > 0 || tc.want != nil && got != fmt.Sprint([]any{tc.want}) {
					t.Errorf("made %s, want %v", got, tc.want)
				}
				if page := text(t, d.do("GET", "/", nil)); !strings.Contains(page, tc.told) {
					t.Errorf("the page does not tell %q:\n%s", tc.told, page)
				}
				if page := text(t, d.do("GET", "/", nil)); strings.Contains(page, `id="flash"`) {
					t.Errorf("it is told twice:\n%s", page)
				}
			})
		})
	}
}
