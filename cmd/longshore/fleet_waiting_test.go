package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/plan"
	devicestore "github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A release reaches a device where somebody has to approve it, one outside of its window, and one that somebody rolls back by hand. They are
// waiting and not failed, also after the wave's deadline, they are left alone, and the rollout goes on as soon as people and times let it.
func TestRolloutToDevicesThatWait(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	ids := s.waves(6, "rollout: {onFailure: rollback, waves: [{name: first, select: \"device!=press-0005\", deadline: 8s}, {name: rest, percent: 100}]}")
	asks, closed, held := ids[0], ids[1], ids[2]
	opens := time.Now().Add(3 * time.Hour).Truncate(time.Second)
	var shut atomic.Bool
	f := newFloor(t, s, ids, func(id string, o *agent.Options) {
		switch id {
		case asks:
			o.Approvals = approval.Policy{Kinds: []plan.Kind{plan.Parameters}, AutomaticAfter: 72 * time.Hour}
		case closed:
			o.ChangeWindow = func(time.Time) (bool, bool, time.Time) { return shut.Load(), false, opens }
		}
	})
	publish := []string{"fleet", "publish", "--key", "release.key", "--endpoint", f.url, "--look-every", "100ms", "--no-wait", "waves"}
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", "--key", "release.key", "waves")
	if got := f.settled(time.Minute); got[1] != len(ids) {
		t.Fatalf("devices by generation: %v", got)
	}
	shut.Store(true)
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 7")
	began := time.Now()
	if code, stdout, stderr := s.try(publish...); code == outcome.Refused {
		t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	shown := func(of, text string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, of+" in the rollout", func() error {
			_, stdout, stderr := s.try("fleet", "rollout", "show", "--verify-key", "release.pub", "--endpoint", f.url, "waves")
			if !strings.Contains(stdout, text) {
				return fmt.Errorf("want %q\n%s\n%s", text, stdout, stderr)
			}
			return nil
		})
	}
	shown("two that wait", "3 of 5 devices well, 2 waiting")
	if _, err := f.devices[held].agent.RollBack(t.Context(), agent.RollbackRequest{By: "user ana (1000)", Via: "command", Reason: "line 3 stops"}); err != nil {
		t.Fatal(err)
	}
	shown("three that wait", "2 of 5 devices well, 3 waiting")

	// The deadline is over: nobody is late, nothing is taken back, and no device gets its state again.
	testenv.Eventually(t, time.Minute, "the deadline", func() error {
		if over := time.Since(began); over < 9*time.Second {
			return fmt.Errorf("%v since the publication", over)
		}
		return nil
	})
	tags := f.tags()
	s.server.Faults.Forget()
	for range 2 {
		if code, stdout, stderr := s.try(publish...); code == outcome.Refused || strings.Contains(stdout+stderr, "failed") {
			t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
		}
	}
	if r := s.shown(outcome.Differs, "--endpoint", f.url); r.Phase != "running" || r.Waves[0].State != "published" || r.Waves[1].State != "pending" {
		t.Errorf("%+v", r)
	}
	if n := len(s.server.Faults.Requests("PUT", `/plant/state/manifests/press-`)); n > 0 {
		t.Errorf("%d tags of devices were written although they only wait", n)
	}
	reported := func() map[string]*reportedState {
		t.Helper()
		_, stdout, stderr := s.try("fleet", "status", "-o", "json", "--verify-key", "release.pub", "--endpoint", f.url, "waves")
		var r fleetStatusResult
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err, stderr)
		}
		out := map[string]*reportedState{}
		for _, d := range r.Devices {
			out[d.Device] = d.Reported
		}
		return out
	}
	all := reported()
	for id, why := range map[string]string{
		asks:   "monitor: waiting for approval: longshore-agent approve monitor (approved automatically at ",
		closed: "monitor: waiting for the window for changes at " + opens.UTC().Format(time.RFC3339) + " (outside-window)",
		held:   "user ana (1000) keeps it at generation 1: line 3 stops",
	} {
		if x := all[id]; x.State != "waiting" || !strings.HasPrefix(x.Reason, why) {
			t.Errorf("%s is %+v, want waiting: %s", id, x, why)
		}
	}
	for id, phase := range map[string]string{asks: "awaiting-approval", closed: "awaiting-window", held: "rolled-back"} {
		if p := all[id].Progress; p == nil || p.Phase != phase || p.Generation != 2 || p.Since.IsZero() {
			t.Errorf("%s stands at %v, want %s of generation 2", id, p, phase)
		}
	}
	if d := all[held].Decisions; len(d) != 1 || d[0].Verdict != "rolled-back" || d[0].By != "user ana (1000)" || d[0].Reason != "line 3 stops" || d[0].Generation != 1 {
		t.Errorf("who keeps %s is told as %+v", held, d)
	}
	// The reason says who keeps it: the decision is not told a second time.
	if _, stdout, _ := s.try("fleet", "status", "--verify-key", "release.pub", "--endpoint", f.url, "waves"); !strings.Contains(stdout, "keeps it at generation 1") || strings.Contains(stdout, "rolled back") {
		t.Errorf("the hold is told as\n%s", stdout)
	}
	if at := f.devices[asks].changes(t)[0].Waiting.Until.UTC().Format(time.RFC3339); !strings.Contains(all[asks].Reason, at) {
		t.Errorf("%s does not tell %s", all[asks].Reason, at)
	}
	if h := f.devices[held].agent.Status(); h.Hold == nil || h.Running.Generation != 1 || f.tags()[held] != tags[held] {
		t.Errorf("the device that is held was changed: %+v, running %+v", h.Hold, h.Running)
	}

	for _, c := range f.devices[asks].changes(t) {
		q := agent.DecisionRequest{Deployment: c.Deployment, ID: c.ID, Verdict: devicestore.Approved, By: "root", Via: "command"}
		if _, err := f.devices[asks].agent.Decide(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	shut.Store(false)
	f.devices[closed].moved <- struct{}{} // it looks
	if _, err := f.devices[held].agent.Release(t.Context(), "root", "command"); err != nil {
		t.Fatal(err)
	}
	shown("all well", "5 of 5 devices well")
	publish = slices.DeleteFunc(publish, func(s string) bool { return s == "--no-wait" })
	if code, stdout, stderr := s.try(publish...); code != outcome.OK || !strings.Contains(stdout, "done") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	if got := f.settled(time.Minute); got[2] != len(ids) {
		t.Errorf("devices by generation: %v", got)
	}
}
