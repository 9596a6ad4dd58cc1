package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// Without a fleet endpoint, status and rollouts go by what devices report in the registry, and only by what is verified.
func TestFleetByReportsInTheRegistry(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.waves(3, "reports: {keys: keys}\nrollout: {waves: [{name: canary, select: \"device=press-0000\"}, {name: rest, percent: 100}]}")
	if err := os.Mkdir("waves/keys", 0o755); err != nil {
		t.Fatal(err)
	}
	devices := map[string]*reporter{}
	for _, id := range []string{"press-0000", "press-0001", "press-0002"} {
		devices[id] = s.reporter(id)
		if id != "press-0002" { // of which the fleet has no key
			s.write("waves/keys/"+id+".pub", string(mustRead(t, id+".pub")))
		}
	}
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", "--key", "release.key", "waves")
	status := func() map[string]string {
		t.Helper()
		var r fleetStatusResult
		_, out, errs := s.try("fleet", "status", "-o", "json", "waves")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v\n%s", err, errs)
		}
		got := map[string]string{}
		for _, d := range r.Devices {
			got[d.Device] = d.Reported.State
		}
		return got
	}
	is := func(what string, want ...string) {
		t.Helper()
		got := status()
		for i, id := range []string{"press-0000", "press-0001", "press-0002"} {
			if got[id] != want[i] {
				t.Errorf("%s: %s is %s, want %s", what, id, got[id], want[i])
			}
		}
	}
	is("nobody reported", "silent", "silent", "silent")
	devices["press-0000"].report(nil)
	devices["press-0002"].report(nil)
	devices["press-0001"].report(func(c *artifacts.CurrentState) {
		c.Deployments[0].State, c.Deployments[0].Error = margo.StateFailed, &margo.StatusError{Code: "exited", Source: "x", Message: "it ended"}
		c.Capabilities = bytes.Replace(c.Capabilities, []byte(`"agentVersion"`), []byte(`"progress":{"phase":"rolling-back","since":"2026-11-26T10:00:00Z","generation":1,"attempt":2,"code":"exited","history":[]},"agentVersion"`), 1)
	})
	is("reported", "well", "failed", "unverified")
	s.do(outcome.Differs, "fleet", "status", "waves")
	devices["press-0001"].report(nil)
	s.move("press-0001.current", "press-0000.current") // another device's report in place of its own
	is("a foreign report", "well", "unverified", "unverified")
	devices["press-0001"].report(nil)

	// A rollout waits for what devices report.
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 6")
	s.do(outcome.OK, "fleet", "publish", "-q", "--no-wait", "--key", "release.key", "waves")
	if got := s.generation("press-0001"); got != 1 {
		t.Errorf("press-0001 has generation %d before the canary is well", got)
	}
	devices["press-0000"].report(nil)
	s.do(outcome.OK, "fleet", "rollout", "continue", "-q", "--no-wait", "--key", "release.key", "waves")
	if got := s.generation("press-0001"); got != 2 {
		t.Errorf("press-0001 has generation %d after the canary was well", got)
	}
	s.mask(`sha256:[0-9a-f]{12,64}`, "sha256:NEW", `([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z)`, "TIME")
	s.golden(golden)
}

// An old report that the registry shows again does not count, in status and in a rollout; both tell. Reports that were missed are counted.
func TestFleetTellsOldReports(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.waves(1, "reports: {keys: keys}\nrollout: {waves: [{name: all, percent: 100}]}")
	press := s.reporter("press-0000")
	s.write("waves/keys/press-0000.pub", string(mustRead(t, "press-0000.pub")))
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", "--key", "release.key", "waves")
	status := func(want int) (*reportedState, string) {
		t.Helper()
		var r fleetStatusResult
		code, out, errs := s.try("fleet", "status", "-o", "json", "waves")
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != want || len(r.Devices) != 1 {
			t.Fatalf("exit %d, %v\n%s", code, err, errs)
		}
		return r.Devices[0].Reported, errs
	}
	at := func() string { // the digest of the report
		t.Helper()
		d, err := s.repository().Resolve(t.Context(), "press-0000.current")
		if err != nil {
			t.Fatal(err)
		}
		return d.Digest.String()
	}
	press.report(nil)
	first := at()
	status(outcome.OK)
	for range 3 {
		press.report(nil)
	}
	if r, errs := status(outcome.OK); r.Missed != 2 || errs != "" {
		t.Errorf("%+v, want that reports 2 and 3 were missed\n%s", r, errs)
	}
	press.report(nil)
	press.report(nil)
	if out := s.do(outcome.OK, "fleet", "status", "waves"); !strings.Contains(out, "reports of 1 device in the registry were replaced") {
		t.Errorf("missed reports are not told:\n%s", out)
	}
	if out := s.do(outcome.OK, "fleet", "status", "waves"); strings.Contains(out, "replaced") {
		t.Errorf("nothing was missed since:\n%s", out)
	}
	s.move("press-0000.current", first)
	const old = "report 1 of press-0000, and report 6 was seen before"
	if r, errs := status(outcome.Differs); r.State != "unverified" || !strings.Contains(r.Reason, old) || !strings.Contains(errs, old) {
		t.Errorf("an old report: %+v\n%s", r, errs)
	}
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 6")
	_, _, errs := s.try("fleet", "publish", "--no-wait", "--key", "release.key", "waves")
	if !strings.Contains(errs, old) {
		t.Errorf("a rollout does not tell:\n%s", errs)
	}
	press.report(nil)
	if r, errs := status(outcome.OK); r.State != "well" || strings.Contains(errs, old) {
		t.Errorf("the next report: %+v\n%s", r, errs)
	}
}

// generation is that under a device's tag.
func (s *shell) generation(device string) uint64 {
	s.t.Helper()
	_, out, errs := s.try("state", "show", "-o", "json", "-d", device, states)
	var x stateInfo
	if err := json.Unmarshal([]byte(out), &x); err != nil {
		s.t.Fatalf("%v\n%s", err, strings.TrimSpace(errs))
	}
	return x.Generation
}
