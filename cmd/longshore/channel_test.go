package main

import (
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
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
