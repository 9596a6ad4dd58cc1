package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// stale starts a mirror that hosts.toml lets resolve tags: it has all content, and tags as they are now, for ever.
func (s *shell) stale() {
	s.t.Helper()
	upstream, err := url.Parse(s.server.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) }}
	was := map[string]string{} // digests by path
	client, err := registry.New(registry.Options{CertsDir: "certs.d"})
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	for _, repository := range []string{"plant/state", "plant/rollouts", "plant/components/line-monitor"} {
		tags, err := client.Tags(s.t.Context(), host+"/"+repository)
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			s.t.Fatal(err)
		}
		for _, tag := range tags {
			d, err := client.Resolve(s.t.Context(), host+"/"+repository, tag)
			if err != nil {
				s.t.Fatal(err)
			}
			was["/v2/"+repository+"/manifests/"+tag] = d.Digest.String()
		}
	}
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before, name, ok := strings.Cut(r.URL.Path, "/manifests/"); ok && !strings.Contains(name, ":") {
			if was[r.URL.Path] == "" {
				http.NotFound(w, r)
				return
			}
			r.URL.Path = before + "/manifests/" + was[r.URL.Path]
		}
		proxy.ServeHTTP(w, r)
	}))
	s.t.Cleanup(mirror.Close)
	s.write("certs.d/"+host+"/hosts.toml", fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", s.server.URL, mirror.URL))
}

// Whoever publishes through mirrors sees what is at the registry: the rollout, and what each device has.
func TestFleetPastAStaleMirror(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.waves(4, "rollout: {waves: [{name: canary, percent: 25}, {name: rest, percent: 100}]}")
	change := func(from, to int) {
		s.change("waves/fleet.yaml", fmt.Sprintf("POLL_SECONDS: %d", from), fmt.Sprintf("POLL_SECONDS: %d", to))
	}
	const key, nobody = "--key=release.key", "--endpoint=http://127.0.0.1:1"
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", key, "waves")
	change(5, 6)
	s.do(outcome.Temporary, "fleet", "publish", "-q", "--no-wait", key, nobody, "waves")
	s.do(outcome.OK, "fleet", "rollout", "halt", key, "waves")
	s.stale()
	change(6, 7)
	s.do(outcome.Temporary, "fleet", "publish", "-q", "--no-wait", key, nobody, "waves") // nobody else goes on with it
	if r := s.shown(outcome.Differs); r.Rollout != 2 || r.Waves[0].State != "published" {
		t.Errorf("%+v", r)
	}
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", key, "waves")
	s.do(outcome.OK, "fleet", "plan", key, "waves")
	change(7, 8)
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", key, "waves")
	s.do(outcome.OK, "fleet", "rollback", "--yes", "--previous", key, "waves")
}

// Whoever publishes for one device, or says that its state is fresh, goes by what the registry has, and history shows that: the
// mirror knows neither the newest generation nor where the component's tag is by now.
func TestStatePastAStaleMirror(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	state := func(want int, args ...string) string {
		t.Helper()
		return s.do(want, append(append([]string{"state"}, args...), "--device=press-07", states)...)
	}
	push := []string{"push", "-q", releaseKey, "--component=" + monitor + ":1.4.0"}
	state(outcome.OK, append(push, "--set=POLL_SECONDS=5")...)
	s.stale()
	s.change("line-monitor/compose.yaml", "services:", "# once more\nservices:")
	newest := strings.TrimSpace(s.do(outcome.OK, "component", "push", "-q", "--overwrite", "./line-monitor", monitor+":1.4.0"))
	state(outcome.OK, append(push, "--set=POLL_SECONDS=6")...)
	state(outcome.OK, append(push, "--set=POLL_SECONDS=7")...)
	if shown := s.do(outcome.OK, "state", "show", "-o", "json", states+":press-07.v3"); !strings.Contains(shown, newest) {
		t.Errorf("it is not pinned to %s:\n%s", newest, shown)
	}
	if all := state(outcome.OK, "history"); !strings.Contains(all, "3 *") {
		t.Errorf("history:\n%s", all)
	}
	if changes := state(outcome.Differs, "diff"); !strings.Contains(changes, "POLL_SECONDS") {
		t.Errorf("diff:\n%s", changes)
	}
	if r := s.freshened(outcome.OK, releaseKey, states+":press-07"); r.Renewed != 1 || r.States[0].Generation != 3 {
		t.Errorf("freshen = %+v", r)
	}
	if signed := s.do(outcome.OK, "sign", "-o", "json", releaseKey, states+":press-07"); !strings.Contains(signed, s.digestOf("press-07.v3")) {
		t.Errorf("signed:\n%s", signed)
	}
	state(outcome.OK, "rollback", "-q", releaseKey, "--to=1")
	if all := state(outcome.OK, "history"); !strings.Contains(all, "4 *") || !strings.Contains(all, "repeats generation 1") {
		t.Errorf("history:\n%s", all)
	}
}

// digestOf is what a tag of the states names at the registry.
func (s *shell) digestOf(tag string) string {
	s.t.Helper()
	d, err := s.repository().Resolve(s.t.Context(), tag)
	if err != nil {
		s.t.Fatal(err)
	}
	return d.Digest.String()
}
