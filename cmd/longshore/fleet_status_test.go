package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// small makes press-09 a device that cannot run what the files put on it.
func (s *shell) small() {
	s.t.Helper()
	s.write("plant/capabilities/small.json", strings.Replace(string(mustRead(s.t, "plant/capabilities/press.json")), "4Gi", "256Mi", 1))
	s.change("plant/devices/all.yaml", "press-09, labels: {line: b}", "press-09, labels: {line: b}, capabilities: capabilities/small.json")
}

// A device that cannot get what the files say has a generation all the same.
func TestFleetStatusOfUnfit(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	s.small()
	var r fleetStatusResult
	if err := json.Unmarshal([]byte(s.do(outcome.Differs, "fleet", "status", "-o", "json", "--select", "device=press-09", "plant")), &r); err != nil {
		t.Fatal(err)
	}
	if d := r.Devices[0]; d.State != "cannot" || d.Generation != 1 || d.Digest == "" || len(d.Reasons) != 1 {
		t.Errorf("press-09 is %+v, want generation 1 and why it cannot change", d)
	}
}

// A dry run shows everything, with the digests that publishing has then.
func TestFleetDryRun(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.small()
	out := s.do(outcome.Refused, "fleet", "publish", "--key", "release.key", "--dry-run", "plant")
	if !strings.Contains(out, "needs memory") || strings.Count(out, "would push "+states+":press-0") != 2 {
		t.Errorf("the dry run says\n%s", out)
	}
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "--dry-run", "--skip-unfit", "plant")
	s.do(outcome.NotFound, "state", "show", "-d", "press-07", states)
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "--skip-unfit", "plant")
	if digest := strings.TrimSpace(s.do(outcome.OK, "state", "show", "-q", "-d", "press-07", states)); !strings.Contains(out, states+":press-07  generation 1  "+digest) {
		t.Errorf("press-07 is %s, the dry run said\n%s", digest, out)
	}
}

// A diff tells what it shows nothing of, and follows what plan and publish would follow.
func TestFleetDiff(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	s.do(outcome.OK, "key", "generate", "-q", "next")
	s.change("plant/fleet.yaml", "poll: 10", "poll: 12")
	s.do(outcome.Differs, "fleet", "diff", "--key", "release.key", "plant")
	s.expect(outcome.Verification, "press-07", "fleet", "diff", "--key", "next.key", "plant")
	s.small()
	s.expect(outcome.Refused, "press-09: device does not fit", "fleet", "diff", "plant")
	s.do(outcome.Differs, "fleet", "diff", "--skip-unfit", "plant")
}
