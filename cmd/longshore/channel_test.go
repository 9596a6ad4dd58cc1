package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// A channel moves by digest, from where one believes that it is; what looks like a version stays one.
func TestAppChannel(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	line := host + "/plant/apps/line"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "app", "push", "-q", "--channel", "stable", "./app", line)
	s.change("app/margo.yaml", "version: 1.4.0", "version: 1.4.1")
	s.do(outcome.OK, "app", "push", "-q", "./app", line)
	s.do(outcome.OK, "app", "channel", "list", line)
	s.do(outcome.OK, "app", "channel", "set", line, "stable", "1.4.1")
	s.do(outcome.OK, "app", "channel", "set", "-o", "json", line, "stable", "1.4.1")
	s.do(outcome.Refused, "app", "channel", "set", "--was", "1.4.0", line, "stable", "1.4.0")
	s.do(outcome.OK, "app", "channel", "set", "--was", "1.4.1", line, "stable", "1.4.0")
	s.do(outcome.OK, "app", "channel", "set", "--was", "none", line, "edge", "1.4.1")
	s.do(outcome.OK, "app", "channel", "set", monitor, "stable", "1.4.0")
	s.do(outcome.OK, "app", "channel", "list", monitor)
	s.do(outcome.OK, "app", "channel", "list", "-o", "json", line)
	for _, version := range []string{"1.5.0", "v1", "2", "1.4.0_build", "sha256-abc"} {
		s.do(outcome.Misused, "app", "channel", "set", line, version, "1.4.0")
	}
	s.do(outcome.NotFound, "app", "channel", "set", line, "stable", "9.9.9")
	s.do(outcome.Misused, "app", "channel", "set", line+":stable", "stable", "1.4.0")
	s.do(outcome.Misused, "app", "channel", "set", host+"/library/caddy", "stable", "2.10")
	s.do(outcome.NotFound, "app", "channel", "list", host+"/plant/apps/lime")
	s.do(outcome.OK, "help", "app", "channel", "set")
	s.golden(golden)
}

// A push moves a channel as app channel set does: what somebody else moves meanwhile stays his, and a version is no channel.
func TestAppPushChannel(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	line := host + "/plant/apps/line"
	push := func(version string) {
		s.change("app/margo.yaml", "version: 1.4.0", "version: "+version)
		s.do(outcome.OK, "app", "push", "-q", "./app", line)
		s.change("app/margo.yaml", "version: "+version, "version: 1.4.0")
	}
	push("1.3.0")
	push("1.5.0")
	s.do(outcome.OK, "app", "channel", "set", line, "stable", "1.3.0")
	s.server.Faults.Forget()
	s.do(outcome.Misused, "app", "push", "--channel", "1.6", "./app", line)
	if n := len(s.server.Faults.Requests(http.MethodPut, "")); n > 0 {
		t.Errorf("something was pushed with a channel that looks like a version: %d writes", n)
	}
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	repo, err := client.OpenName(t.Context(), s.server.Host+"/plant/apps/line")
	if err != nil {
		t.Fatal(err)
	}
	newer, err := repo.Resolve(t.Context(), "1.5.0")
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/apps/line/manifests/1\.4\.0$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(w, r)
		once.Do(func() {
			if err := repo.Tag(t.Context(), newer, "stable"); err != nil {
				t.Error(err)
			}
		})
	}})
	code, _, stderr := s.try("app", "push", "--channel", "stable", "--channel", "edge", "./app", line)
	if code != outcome.Refused || !strings.Contains(stderr, "another publisher moved it") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	s.server.Faults.Clear()
	if there, err := repo.Resolve(t.Context(), "stable"); err != nil || there.Digest != newer.Digest {
		t.Errorf("stable names %s, %v, want what somebody else has set", there.Digest, err)
	}
	s.do(outcome.OK, "app", "push", "--channel", "stable", "--channel", "edge", "./app", line) // decided again
	if out := s.do(outcome.OK, "app", "channel", "list", line); !strings.Contains(out, "edge      1.4.0") || !strings.Contains(out, "stable    1.4.0") {
		t.Errorf("channels:\n%s", out)
	}
}
