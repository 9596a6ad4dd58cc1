package panel_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/panel"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// What no page of ours sends decides nothing.
func TestRefuses(t *testing.T) {
	change := "/change/" + changeID.String()
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Host = name; r.Header.Set("Origin", "http://"+name) }
	}
	tests := map[string]struct {
		method, path string
		edit         []func(*http.Request)
		want         int
	}{
		"as it should be":    {"POST", change, nil, 303},
		"by a browser":       {"POST", change, []func(*http.Request){header("Sec-Fetch-Site", "same-origin")}, 303},
		"from another site":  {"POST", change, []func(*http.Request){header("Sec-Fetch-Site", "cross-site")}, 403},
		"of the same site":   {"POST", change, []func(*http.Request){header("Sec-Fetch-Site", "same-site")}, 403},
		"of another origin":  {"POST", change, []func(*http.Request){header("Origin", "http://192.0.2.1:9999")}, 403},
		"of no origin":       {"POST", change, []func(*http.Request){header("Origin", "null")}, 403},
		"by localhost":       {"POST", change, []func(*http.Request){host("localhost:8480")}, 303},
		"by an IPv6 address": {"POST", change, []func(*http.Request){host("[2001:db8::1]:8480")}, 303},
		"by its name":        {"POST", change, []func(*http.Request){host("Press-07.lan")}, 303},
		"by a stranger's":    {"POST", change, []func(*http.Request){host("rebound.example:8480")}, 421},
		"by none":            {"POST", change, []func(*http.Request){host("")}, 421},
		"1 MiB": {"POST", change, []func(*http.Request){func(r *http.Request) {
			r.Body = http.NoBody
			big, err := http.NewRequest("POST", "/", strings.NewReader("verdict=approved&reason="+strings.Repeat("x", 1<<20)))
			if err != nil {
				t.Fatal(err)
			}
			r.Body, r.ContentLength = big.Body, big.ContentLength
		}}, 413},
		"not a form":      {"POST", change, []func(*http.Request){header("Content-Type", "a;b;c")}, 400},
		"PUT":             {"PUT", change, nil, 405},
		"DELETE":          {"DELETE", "/release", nil, 405},
		"GET of a logout": {"GET", "/logout", nil, 405},
		"POST of a page":  {"POST", "/", nil, 405},
		"nothing":         {"POST", "/approve", nil, 404},
		"a file":          {"POST", "/static/page.css", nil, 405},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, func(o *panel.Options) { o.Hosts = []string{"press-07.lan"} })
			d.enter()
			r := d.do(tc.method, tc.path, url.Values{"deployment": {"d1"}, "verdict": {"approved"}}, tc.edit...)
			if r.StatusCode != tc.want || (len(d.d.made) == 1) != (tc.want == 303) {
				t.Errorf("= %d, made %v, want %d\n%s", r.StatusCode, d.d.made, tc.want, text(t, r))
			}
			if csp := r.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
				t.Errorf("policy %q", csp)
			}
		})
	}
	d := newDesk(t, nil)
	for _, path := range []string{"/static/", "/static/none", "/static/..%2fpage.html", "/static/%2e%2e/page.html", "/page.html", "/en.yaml"} {
		if r := d.do("GET", path, nil); r.StatusCode == http.StatusOK {
			t.Errorf("%s = %d\n%s", path, r.StatusCode, text(t, r))
		}
	}
}

// Everybody may look where the owner says so, and decides nothing, nor sees what they could not press, nor what containers write.
func TestAnonymousViewers(t *testing.T) {
	for _, file := range []bool{false, true} {
		d := newDesk(t, func(o *panel.Options) {
			if o.AnonymousViewers = true; !file {
				o.PINFile = ""
			}
		})
		d.d.now.Problems = []status.Problem{{Code: codes.ContainerExited, Message: "it exited" + workload.OutputLabel + "hunter2"}}
		page := text(t, d.do("GET", "/", nil))
		if !strings.Contains(page, "it exited") || strings.Contains(page, "hunter2") {
			t.Errorf("PIN file %v: the page tells what a container wrote:\n%s", file, page)
		}
		if !strings.Contains(page, "vision") || strings.Contains(page, "<form") || strings.Contains(page, "/change/") || strings.Contains(page, `href="/rollback"`) || strings.Contains(page, `href="/login"`) != file {
			t.Errorf("PIN file %v: the page:\n%s", file, page)
		}
		for _, path := range []string{"/change/" + changeID.String(), "/rollback", "/release"} {
			if r := d.do("POST", path, url.Values{"deployment": {"d1"}, "verdict": {"approved"}, "state": {state.String()}, "reason": {"x"}}); r.StatusCode != 303 || len(d.d.made) > 0 {
				t.Errorf("PIN file %v: POST %s = %d, made %v", file, path, r.StatusCode, d.d.made)
			}
		}
		if r := d.login("ana", pin); (r.Header.Get("Location") == "/") != file {
			t.Errorf("PIN file %v: login = %d", file, r.StatusCode)
		}
	}
}

// What applications, registries and people say is text.
func TestHostileText(t *testing.T) {
	const evil = `"><script>alert(1)</script>'` + "\u202e"
	d := newDesk(t, nil)
	d.d.now.Device, d.d.now.Problems = evil, []status.Problem{{Code: codes.Stale, Message: evil}}
	d.d.now.Hold = &status.Hold{By: evil, Reason: evil}
	c := &d.d.changes[0]
	c.Deployment, c.DeploymentID, c.Images[0].Component, c.Images[0].ToTag, c.Images[0].FromTag = evil, evil, evil, evil, ""
	c.Waiting = &status.Waiting{Code: evil, Message: evil}
	a := &d.d.now.Deployments[0]
	a.Name, a.Refused, a.State = evil, &status.RefusedRevision{Message: evil}, evil
	a.Components[0].Name, a.Components[0].Revision = evil, evil
	d.enter()
	for _, path := range []string{"/", "/change/" + changeID.String(), "/rollback", "/release"} {
		r := d.do("GET", path, nil)
		if page := text(t, r); r.StatusCode != 200 || strings.Contains(page, "<script>") || strings.Contains(page, "\u202e") || !strings.Contains(page, "alert(1)") {
			t.Errorf("%s = %d:\n%s", path, r.StatusCode, page)
		}
	}
	d.d.err = fmt.Errorf("%s: %w", evil, fault.ErrInvalid)
	d.do("POST", "/rollback", url.Values{"state": {state.String()}, "reason": {evil}})
	d.d.err = nil
	if page := text(t, d.do("GET", "/", nil)); strings.Contains(page, "<script>") || !strings.Contains(page, "It was not done") {
		t.Errorf("the error:\n%s", page)
	}
}

// A version of the trust policy is shown with who signed it and what it changes.
func TestTrustPolicy(t *testing.T) {
	d := newDesk(t, nil)
	c := &d.d.changes[0]
	c.Deployment, c.Images, c.Trust = status.TrustPolicyName, nil, &store.TrustChange{Version: 7, SignedBy: []string{"root-a", "root-b"}, Changes: []string{"key release-2 is added"}}
	d.enter()
	for _, path := range []string{"/", "/change/" + changeID.String()} {
		if page := text(t, d.do("GET", path, nil)); !strings.Contains(page, "<dd>7</dd>") || !strings.Contains(page, "root-a, root-b") || !strings.Contains(page, "key release-2 is added") || strings.Contains(page, "Containers that restart") {
			t.Errorf("%s:\n%s", path, page)
		}
	}
}

// What the page says of a change that waits, by code.
func TestWhy(t *testing.T) {
	d := newDesk(t, func(o *panel.Options) { o.AnonymousViewers = true })
	for code, want := range map[codes.Code]string{
		codes.ApprovalNeeded: "for an approval", codes.UpdateLocked: "must not be interrupted", codes.OutsideWindow: "the agent&#39;s words", codes.ChangeRejected: "the agent&#39;s words",
	} {
		d.d.changes[0].Waiting = &status.Waiting{Code: code, Message: "the agent's words"}
		if page := text(t, d.do("GET", "/", nil)); !strings.Contains(page, want) {
			t.Errorf("%s: the page lacks %q:\n%s", code, want, page)
		}
	}
	d.d.err = errors.New("the agent ends")
	if r := d.do("GET", "/", nil); r.StatusCode != http.StatusServiceUnavailable || strings.Contains(text(t, r), "ends") {
		t.Errorf("without an answer of the agent = %d", r.StatusCode)
	}
}
