package approve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/testenv"
)

const pin = "481592"

// kindOfChange is what a new generation changes.
type kindOfChange struct {
	kind    plan.Kind
	publish func(p *press, n int) (app string)
	made    func(p *press, app string, n int) // waits until it is made
}

// road is a way in which somebody decides.
type road struct {
	name    string
	by      func(c status.Change) string // as events name who decided
	approve func(p *press, c status.Change)
	back    func(p *press, reason string) // rolls back by hand; nil: it cannot
	release func(p *press)
}

// Every kind of change waits, and is made once it is approved, by every road: another road for each kind, nightly all of them.
func TestKinds(t *testing.T) {
	t.Parallel()
	p := newPress(t, "kinds", "10.210.0.0/16")
	p.apps["line"] = "    environment: {GREETING: \"${GREETING:-none}\"}\n    deploy: {update_config: {monitor: 200ms}}\n"
	p.boot()
	p.kinds = "install, images, parameters, configuration, removal"
	roads := p.roads()
	kinds := kindsOfChange()
	first := rand.IntN(len(roads))
	t.Logf("begins with %s", roads[first].name)
	for n := range testenv.Rounds(1, len(roads)) {
		for i, k := range kinds {
			r := roads[(first+i+n)%len(roads)]
			if !t.Run(fmt.Sprintf("%s by %s", k.kind, r.name), func(t *testing.T) {
				p.t = t
				before := p.processes()
				app := k.publish(p, n)
				p.synced()
				c := p.waits(app, codes.ApprovalNeeded)
				if !slices.Contains(c.Kinds, k.kind) {
					t.Errorf("the change is one of %v", c.Kinds)
				}
				p.unmoved(before, "before the approval")
				r.approve(p, c)
				k.made(p, app, n)
				if n := p.told(c, "approved by "+r.by(c)); n != 1 {
					t.Errorf("told %d times: %+v", n, p.events(status.EventChange))
				}
				p.must(p.Settled(t.Context(), p.generation, limit))
			}) {
				t.Log(p.Logs())
				return
			}
		}
	}
	p.t = t
}

// kindsOfChange are all kinds but that of the trust policy. An installation and a removal of the same number are of the same application.
func kindsOfChange() []kindOfChange {
	greets := func(greeting string) func(p *press, app string, n int) {
		return func(p *press, app string, n int) { p.greets(app, fmt.Sprintf(greeting, n)) }
	}
	applied := func(p *press, app string, _ int) { p.applied(app) }
	return []kindOfChange{
		{plan.Install, func(p *press, n int) string {
			app := fmt.Sprintf("fresh-%d", n)
			p.release(app)
			return app
		}, applied},
		{plan.Images, func(p *press, _ int) string {
			p.release("line")
			return "line"
		}, applied},
		{plan.Parameters, func(p *press, n int) string {
			p.generation++
			p.publishes("line", "--set", fmt.Sprintf("GREETING=set-%d", n))
			return "line"
		}, greets("GREETING=set-%d")},
		{plan.Configuration, func(p *press, n int) string {
			p.generation++
			p.apps["line"] = strings.Replace(p.apps["line"], "environment: {", fmt.Sprintf("environment: {V%d: x, ", n), 1)
			p.component("line")
			p.publishes("line")
			return "line"
		}, greets("V%d=x")},
		{plan.Removal, func(p *press, n int) string {
			app := fmt.Sprintf("fresh-%d", n)
			p.generation++
			_, err := p.Run(p.t.Context(), "longshore", "state", "remove", "--device", p.Device, "--key", p.Path("release.key"), p.Reference("plant/state"), app)
			p.must(err)
			return app
		}, func(p *press, app string, _ int) {
			p.until(app+" is gone", func() error {
				if d, err := p.deployment(app); err == nil {
					return fmt.Errorf("it is %+v", d)
				}
				return nil
			})
		}},
	}
}

// roads are all of them, once the agent was started anew with a panel.
func (p *press) roads() []road {
	p.t.Helper()
	port, err := testenv.FreePort()
	p.must(err)
	hash, err := bcrypt.GenerateFromPassword([]byte(pin), bcrypt.MinCost)
	p.must(err)
	p.must(os.WriteFile(p.Path("etc/panel.pins"), []byte("ana:"+string(hash)+"\n"), 0o600))
	p.restart(fmt.Sprintf("panel: {listen: \"127.0.0.1:%d\", pinFile: panel.pins}\n", port))

	site := fmt.Sprintf("http://127.0.0.1:%d", port)
	is := func(who string) func(status.Change) string { return func(status.Change) string { return who } }
	return []road{
		{
			"root's command", is("user root (0)"),
			func(p *press, c status.Change) { p.orders(p.Control, "approve", "--id", c.ID.String(), c.Deployment) },
			func(p *press, reason string) { p.orders(p.Control, "rollback", "--reason", reason) },
			func(p *press) { p.orders(p.Control, "release") },
		},
		{
			"the group's socket", is(fmt.Sprintf("user %d", member)),
			func(p *press, c status.Change) { p.orders(p.asMember, "approve", "--id", c.ID.String(), c.Deployment) },
			func(p *press, reason string) { p.orders(p.asMember, "rollback", "--reason", reason) },
			func(p *press) { p.orders(p.asMember, "release") },
		},
		{
			"HTTP", is(fmt.Sprintf("user %d", member)),
			func(p *press, c status.Change) {
				p.posts(member, http.StatusOK, "/v1/decisions", control.Decision{Deployment: c.DeploymentID, ID: c.ID, Verdict: store.Approved})
			},
			func(p *press, reason string) {
				p.posts(member, http.StatusOK, "/v1/rollback", control.Rollback{Reason: reason})
			},
			func(p *press) {
				out, err := p.curl(member, "--fail", "--request", "DELETE", "http://agent/v1/hold")
				if err != nil {
					p.t.Fatal(out, err)
				}
			},
		},
		{
			"the panel", is("ana at the panel"),
			func(p *press, c status.Change) {
				p.atPanel(site, "/change/"+c.ID.String(), url.Values{"deployment": {c.DeploymentID}, "verdict": {string(store.Approved)}})
			},
			func(p *press, reason string) {
				s, err := p.Status(p.t.Context())
				p.must(err)
				p.atPanel(site, "/rollback", url.Values{"state": {s.Accepted.Digest.String()}, "reason": {reason}})
			},
			func(p *press) { p.atPanel(site, "/release", nil) },
		},
		{"a file", func(c status.Change) string { return "user " + owner + ", file " + c.ID.Encoded() }, func(p *press, c status.Change) {
			p.decide(c.ID.Encoded(), control.Decision{Deployment: c.DeploymentID, ID: c.ID, Verdict: store.Approved})
			if r := p.result(c.ID.Encoded()); r.Error != "" {
				p.t.Errorf("result %+v", r)
			}
		}, nil, nil},
	}
}

// orders runs a command of the device, which must succeed.
func (p *press) orders(run func(ctx context.Context, command string, args ...string) (string, error), command string, args ...string) {
	p.t.Helper()
	_, err := run(p.t.Context(), command, args...)
	p.must(err)
}

func (p *press) asMember(_ context.Context, command string, args ...string) (string, error) {
	return p.as(member, command, args...)
}

// greets waits until the first process of an application has a variable, and nothing of the application is left to change.
func (p *press) greets(app, variable string) {
	p.t.Helper()
	p.until(app+" has "+variable, func() error {
		c, err := p.change(p.t.Context(), app)
		if err == nil && c != nil {
			err = fmt.Errorf("its change is %+v", c)
		}
		if err != nil {
			return err
		}
		d, err := p.deployment(app)
		if err != nil {
			return err
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.Components[0].Services[0].PID))
		if err == nil && !slices.Contains(strings.Split(string(environ), "\x00"), variable) {
			err = fmt.Errorf("it has %q", environ)
		}
		return err
	})
}

// atPanel sends a form as somebody with a PIN does in a browser.
func (p *press) atPanel(site, path string, form url.Values) {
	p.t.Helper()
	jar, err := cookiejar.New(nil)
	p.must(err)
	browser := &http.Client{Jar: jar, Timeout: limit}
	defer browser.CloseIdleConnections()
	for _, step := range []struct {
		path string
		form url.Values
	}{{"/login", url.Values{"name": {"ana"}, "pin": {pin}}}, {path, form}} {
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, site+step.path, strings.NewReader(step.form.Encode()))
		p.must(err)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", site)
		res, err := browser.Do(req)
		p.must(err)
		text, err := io.ReadAll(res.Body)
		p.must(errors.Join(err, res.Body.Close()))
		if res.StatusCode != http.StatusOK || res.Request.URL.Path != "/" || strings.Contains(string(text), `class="flash bad"`) {
			p.t.Fatalf("%s led to %s: %s\n%s", step.path, res.Request.URL, res.Status, text)
		}
	}
}
