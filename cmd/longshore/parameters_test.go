package main

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A parameter that no component takes is rejected where the components can be read, with the nearest name; elsewhere a note says that
// it was not checked.
func TestParametersNobodyTakes(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.write("vision.yaml", strings.ReplaceAll(string(mustRead(t, "vision.yaml")), "vision\n          revision: 0.9.2", "line-monitor\n          revision: 1.4.0")+
		"  parameters:\n    poll: {value: 5, targets: [{pointer: ENV.POLL_SECONDS, components: [vision]}]}\n")
	s.do(outcome.OK, "check", "app", "vision.yaml")
	s.do(outcome.OK, "app", "push", "--dry-run", "./app", host+"/plant/apps/line") // its component is not there yet
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "bundle", "push", "-q", "vision.yaml", host+"/plant/bundles/press:2026.11")
	s.write("press.yaml", strings.ReplaceAll(string(mustRead(t, "vision.yaml")), "ENV.POLL_SECONDS", "ENV.POLL_SECOND"))
	s.server.Faults.Add(testenv.Rule{Path: "/components/", Effect: testenv.Status(503, 0)})
	s.do(outcome.Temporary, "bundle", "push", "--timeout", "2s", "press.yaml", host+"/plant/bundles/press:2026.12") // it was not checked
	s.server.Faults.Clear()
	s.do(outcome.Misused, "state", "push", "--device", "press-07", "--unsigned", "--deployment", "press.yaml", states)
	s.change("app/margo.yaml", "pointer: POLL_SECONDS", "pointer: POL_SECONDS")
	s.change("app/margo.yaml", "pointer: PLACE", "pointer: ENV.COLOUR")
	s.change("app/margo.yaml", "version: 1.4.0", "version: 1.4.1")
	s.change("vision.yaml", "ENV.POLL_SECONDS", "ENV.POLL_SECOND")
	s.do(outcome.Misused, "app", "push", "./app", host+"/plant/apps/line")
	s.do(outcome.Misused, "app", "push", "--dry-run", "-o", "json", "./app", host+"/plant/apps/line")
	s.do(outcome.Misused, "bundle", "push", "vision.yaml", host+"/plant/bundles/press:2026.12")
	s.do(outcome.OK, "app", "list", host+"/plant/apps/line") // nothing was pushed
	s.golden(golden)
}
