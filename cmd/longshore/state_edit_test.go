package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A push changes what it names and nothing else, and shows the change before it publishes.
func TestStateEdit(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "component", "push", "-q", "./sensor", host+"/plant/components/vision:0.9.2")
	s.write("line-monitor/compose.yaml", "services:\n  broker: {image: "+host+"/library/nats:2.12, environment: [\"POLL=${POLL_SECONDS:-10}\", \"LEVEL=${LEVEL:-info}\"]}\n")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.5.0")
	s.write("line-monitor/compose.yaml", "services:\n  broker: {image: "+host+"/library/nats:2.12, environment: [\"LEVEL=${LEVEL:-info}\"]}\n")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.6.0")
	push := func(want int, args ...string) string {
		return s.do(want, append(append([]string{"state", "push", "-d", "press-07", releaseKey}, args...), states)...)
	}
	push(outcome.NotFound, "--set", "POLL_SECONDS=30")
	push(outcome.OK, "--component", monitor+":1.4.0", "--set", "POLL_SECONDS=30", "--namespace", "plant")
	push(outcome.OK, "--set", "POLL_SECONDS=60")
	push(outcome.OK, "--deployment", "vision.yaml")
	push(outcome.Misused, "--set", "POLL_SECONDS=90")                            // of which?
	push(outcome.NotFound, "--name", "line-moniter", "--set", "POLL_SECONDS=90") // a slip
	push(outcome.Misused, "--name", "line-monitor", "--set", "POLL_SECOND=90")   // a slip
	push(outcome.Misused, "--name", "line-monitor", "--unset", "LEVEL")          // it is not set
	push(outcome.Misused, "--component", monitor+":1.5.0", "--unset", "LEVEL")   // it is not set
	push(outcome.OK, "--dry-run", "--component", monitor+":1.5.0", "--set", "LEVEL=debug")
	push(outcome.OK, "--component", monitor+":1.5.0", "--set", "LEVEL=debug")
	push(outcome.OK, "--name", "line-monitor", "--unset", "LEVEL", "-o", "json")
	push(outcome.OK, "--component", monitor+":1.6.0")
	s.do(outcome.OK, "state", "show", "-d", "press-07", "-o", "json", states)
	push(outcome.OK, "--component", monitor+":1.6.0")
	remove := func(want int, args ...string) {
		s.do(want, append([]string{"state", "remove", "-d", "press-07", releaseKey, states}, args...)...)
	}
	remove(outcome.NotFound, "visoin")
	remove(outcome.OK, "vision", "--dry-run")
	remove(outcome.OK, "vision", "-o", "json")
	remove(outcome.OK, "B7FF3FCA-bc5c-5941-88ba-54143595392b")
	remove(outcome.NotFound, "line-monitor")
	push(outcome.OK, "--component", monitor+":1.5.0")
	push(outcome.OK, "--deployment", "vision.yaml")
	push(outcome.OK, "--replace", "--component", monitor+":1.6.0")
	for _, args := range [][]string{
		{"--replace", "--set", "LEVEL=a"},
		{"--replace"},
		{"--set", "A=1", "--unset", "A", "--name", "line-monitor"},
		{"--namespace", "x", "--set", "LEVEL=a"},
		{"--deployment", "vision.yaml", "--set", "LEVEL=a"},
		{"--empty", "--unset", "LEVEL"},
		{"--replace", "--component", monitor + ":1.6.0", "--unset", "LEVEL"},
	} {
		push(outcome.Misused, args...)
	}
	s.golden(golden)
}

// What a fleet's files have put on a device keeps the names of its components and parameters.
func TestStateEditOfAFleet(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.write("one/fleet.yaml", "fleet: one\nregistry: "+host+"/plant\nstates: state\napplications: {monitor: {component: components/line-monitor, version: 1.4.0}}\n"+
		"deployments: {line: {application: monitor, select: \"*\", parameters: {POLL_SECONDS: 30}}}\ndevices: [{id: press-07, capabilities: unchecked}]\n")
	s.do(outcome.OK, "fleet", "publish", releaseKey, "one")
	shown := func() stateInfo {
		t.Helper()
		var r stateInfo
		if err := json.Unmarshal([]byte(s.do(outcome.OK, "state", "show", "-o", "json", "-d", "press-07", states)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	before := shown().Deployments[0]
	s.pushed(releaseKey, "--set", "POLL_SECONDS=60")
	s.do(outcome.OK, "component", "push", "-q", "./sensor", monitor+":1.4.1")
	s.pushed(releaseKey, "--name", "line", "--component", monitor+":1.4.1")
	after := shown().Deployments
	if len(after) != 1 || after[0].ID != before.ID || after[0].Components[0].Name != before.Components[0].Name || after[0].Components[0].Version != "1.4.1" ||
		after[0].Parameters["POLL_SECONDS"] != "60" {
		t.Errorf("it is %+v, was %+v", after, before)
	}
	r := s.pushed(releaseKey, "--component", monitor+":1.4.0", "--name", "other", "--set", "POLL_SECONDS=5")
	if !slices.Equal(r.Kept, []string{"line"}) || len(r.Notes) != 1 || !strings.HasSuffix(r.Notes[0], "use --name line") {
		t.Errorf("kept %v, notes %q", r.Kept, r.Notes)
	}
}
