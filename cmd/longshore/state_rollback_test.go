package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// What one device would go back to is looked at before anything moves, as for many: with --dry-run, too.
func TestStateRollbackLooks(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.pushed(releaseKey, "--component", monitor+":1.4.0")
	s.pushed(releaseKey, "--empty")
	back := []string{"state", "rollback", "--device", "press-07", "--to", "1", releaseKey, states}
	with := func(flags ...string) []string {
		return append(append([]string{"state", "rollback"}, flags...), back[2:]...)
	}
	for path, gone := range map[string]string{
		"/library/nats/blobs/":                             "image " + host + "/library/nats:2.12@sha256:",
		"/plant/components/line-monitor/manifests/sha256:": "component " + host + "/plant/components/line-monitor@sha256:",
	} {
		s.server.Faults.Add(testenv.Rule{Path: path, Effect: testenv.Status(http.StatusNotFound, 0)})
		for _, args := range [][]string{back, with("--dry-run")} {
			s.refuses(outcome.Refused, []string{"go back to generation 1: it cannot be had again: ", gone, "push the missing content again"}, args...)
		}
		s.server.Faults.Clear()
	}
	s.write("strict.yaml", "rules:\n  - {scope: "+host+"/plant/**, artifacts: [state, component], keys: [{name: release, file: release.pub}]}\n")
	s.refuses(outcome.Refused, []string{"components/line-monitor@", "not signed"}, with("--policy", "strict.yaml")...)
	s.env["stdin"] = string(mustRead(t, "strict.yaml")) // which is read once
	s.refuses(outcome.Refused, []string{"components/line-monitor@", "not signed"}, with("--policy", "-")...)
	s.server.Faults.Add(testenv.Rule{Method: http.MethodHead, Path: "/library/nats/blobs/", Effect: testenv.Status(http.StatusNotFound, 0)})
	if out := s.do(outcome.OK, with("--no-content", "--dry-run")...); !strings.Contains(out, "nothing was pushed") {
		t.Errorf("--dry-run:\n%s", out)
	}
	s.server.Faults.Clear()
	s.do(outcome.NotFound, "state", "show", "-q", states+":press-07.v3")
	s.do(outcome.OK, back...)
	s.do(outcome.OK, "state", "show", "-q", states+":press-07.v3")
}
