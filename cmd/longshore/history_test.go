package main

import (
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
	s.do(outcome.Misused, "state", "history", "--device", "press-07", "--limit", "0", states)
	s.do(outcome.Misused, "state", "history", states+":press-07.v1")
	s.golden(golden)
}
