package main

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// Going back is a new generation that says which one it repeats.
func TestRollback(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.do(outcome.NotFound, "state", "history", "--device", "press-07", states)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.write("line-monitor/config/limits.json", `{"max": 12}`)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.1")
	for _, version := range []string{"1.4.0", "1.4.1"} {
		s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":"+version, states)
	}
	s.do(outcome.Misused, "state", "rollback", "--device", "press-07", "--key", "release.key", states)
	s.do(outcome.Misused, "state", "rollback", "--device", "press-07", "--to", "1", states)
	s.do(outcome.NotFound, "state", "rollback", "--device", "press-07", "--to", "9", "--key", "release.key", states)
	s.do(outcome.Refused, "state", "rollback", "--device", "press-07", "--to", "2", "--key", "release.key", states)
	s.do(outcome.OK, "state", "rollback", "--device", "press-07", "--to", "1", "--key", "release.key", states)
	s.do(outcome.OK, "state", "show", "--device", "press-07", states)
	s.do(outcome.OK, "state", "history", "--device", "press-07", states)
	s.do(outcome.OK, "state", "history", "--device", "press-07", "--limit", "1", "-o", "json", states)
	s.do(outcome.OK, "state", "history", "--device", "press-07", "--limit", "2", "--verify-key", "release.pub", states)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--unsigned", "--set", "POLL_SECONDS=5", "-a", "org.opencontainers.image.revision=4be2d1c", states)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "root.key", "--verify-key", "release.pub", "--replace", "--generation", "5", "--empty", states)
	s.do(outcome.OK, "state", "history", "--device", "press-07", "--limit", "2", states)
	s.do(outcome.Verification, "state", "history", "--device", "press-07", "--limit", "3", "--verify-key", "release.pub", states)
	s.do(outcome.OK, "state", "history", "--device", "press-07", "--limit", "1", "--verify-key", "release.pub", "--verify-key", "root.pub", "-o", "json", states)
	s.server.Faults.Forget()
	s.do(outcome.OK, "state", "history", "-q", "--device", "press-07", "--limit", "1", states)
	asked := map[string]bool{} // signatures of what is shown only
	for _, r := range s.server.Faults.Requests("", "/(referrers/sha256:|manifests/sha256-)") {
		_, of, _ := strings.Cut(strings.ReplaceAll(r.Path, ":", "-"), "sha256-")
		asked[of[:64]] = true
	}
	if len(asked) != 1 {
		t.Errorf("signatures of %d generations were asked for, want those of the one that is shown", len(asked))
	}
	s.do(outcome.Misused, "state", "history", "--device", "press-07", "--limit", "0", states)
	s.do(outcome.Misused, "state", "history", states+":press-07.v1")
	s.golden(golden)
}
