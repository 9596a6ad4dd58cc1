package main

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// Windows for changes stay until others are named, and every command that shows a state shows them.
func TestStateWindows(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.write("nights.yaml", "- {days: Mon-Fri, hours: \"22:00-05:00\", zone: Europe/Berlin, except: [12-24/01-02]}\n- {cron: \"0 2 1 * *\", duration: 4h, zone: UTC}\n")
	s.write("weekends.json", `[{"days": "Sat-Sun", "zone": "UTC"}]`)
	push := func(want int, args ...string) {
		s.do(want, append(append([]string{"state", "push", "-d", "press-07", releaseKey}, args...), states)...)
	}
	push(outcome.NotFound, "--windows", "nights.yaml")
	push(outcome.OK, "--component", monitor+":1.4.0")
	push(outcome.OK, "--dry-run", "--windows", "nights.yaml")
	push(outcome.OK, "--windows", "nights.yaml")
	push(outcome.OK, "-o", "json", "--set", "POLL_SECONDS=30")
	s.do(outcome.OK, "state", "show", "-d", "press-07", states)
	s.do(outcome.OK, "state", "show", "-d", "press-07", "-o", "yaml", states)
	s.do(outcome.OK, "state", "rollback", "-d", "press-07", "--to", "1", releaseKey, states)
	s.do(outcome.Differs, "state", "diff", "-d", "press-07", states, "1", "4")
	push(outcome.OK, "--windows", "weekends.json", "-q", "--set", "POLL_SECONDS=20")
	s.do(outcome.OK, "state", "rollback", "-d", "press-07", "--to", "1", "--windows", "none", releaseKey, states)
	push(outcome.OK, "-q", "--windows", "weekends.json")
	push(outcome.OK, "--replace", "--component", monitor+":1.4.0")
	s.do(outcome.OK, "state", "history", "-d", "press-07", states)
	s.do(outcome.OK, "state", "history", "-d", "press-07", "-o", "json", "--limit", "2", states)
	if _, out, _ := s.try("inspect", states+":press-07.v2"); !strings.Contains(out, "window for changes Mon-Fri 22:00-05:00 except 12-24/01-02 (Europe/Berlin)") {
		t.Errorf("inspect:\n%s", out)
	}

	s.write("faults.yaml", "- {days: Mon, zone: Europe/Berlim}\n- {day: Tue, zone: UTC}\n")
	s.write("passed.yaml", "- {only: [2020-02-29], zone: UTC}\n- {days: Mon, zone: UTC}\n")
	for _, file := range []string{"faults.yaml", "passed.yaml", "line-monitor/compose.yaml"} {
		push(outcome.Misused, "--windows", file)
	}
	push(outcome.NotFound, "--windows", "gone.yaml")
	push(outcome.Misused, "--replace", "--windows", "none")
	s.golden(golden)
}
