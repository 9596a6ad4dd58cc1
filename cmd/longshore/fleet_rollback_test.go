package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// The night on which three devices got something bad: they go back at once, and a second run finds nothing to do.
func TestFleetRollback(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "fleet", "rollback", "--previous", "--key", "release.key", "plant") // nothing was ever published
	s.env["SOURCE_DATE_EPOCH"] = "1763650000"
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	s.do(outcome.Refused, "fleet", "rollback", "--previous", "--key", "release.key", "plant")
	s.change("plant/fleet.yaml", "poll: 10", "poll: 12")
	s.env["SOURCE_DATE_EPOCH"] = epoch
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "--annotation", "org.opencontainers.image.revision=4be2d1c0ffee", "plant")

	s.do(outcome.Misused, "fleet", "rollback", "--key", "release.key", "plant")
	s.do(outcome.Misused, "fleet", "rollback", "--previous", "plant")
	s.do(outcome.Misused, "fleet", "rollback", "--key", "release.key", "--before", "yesterday", "plant")
	s.do(outcome.Misused, "fleet", "rollback", "--key", "release.key", "--before", "2999-01-01T00:00:00Z", "plant")
	s.do(outcome.Misused, "fleet", "rollback", "--key", "release.key", "--before", "2h", "--revision", "4be2d1c", "plant")
	s.do(outcome.NotFound, "fleet", "rollback", "--previous", "--key", "release.key", "--select", "line=z", "plant")
	s.do(outcome.OK, "fleet", "rollback", "--dry-run", "--before", "2025-11-20T15:00:00Z", "plant") // by what states say of when
	s.do(outcome.OK, "fleet", "rollback", "--dry-run", "--previous", "--select", "device=press-07", "-o", "json", "plant")
	s.do(outcome.NotFound, "fleet", "rollback", "--key", "release.key", "--revision", "0000000", "plant")
	s.do(outcome.OK, "fleet", "rollback", "--key", "release.key", "--revision", "4be2d1c", "--dry-run", "plant")
	s.do(outcome.OK, "fleet", "rollback", "--key", "release.key", "--before", "2025-11-20T15:00:00Z", "plant")
	s.do(outcome.OK, "fleet", "rollback", "--key", "release.key", "--before", "2025-11-20T15:00:00Z", "-o", "json", "plant")
	s.do(outcome.Refused, "fleet", "rollback", "--previous", "--key", "release.key", "--select", "line=a", "plant")
	s.do(outcome.Refused, "fleet", "rollback", "--previous", "--dry-run", "--select", "line=a", "plant")
	s.do(outcome.OK, "state", "history", "--device", "press-07", states)
	s.do(outcome.Differs, "fleet", "plan", "plant")
	s.do(outcome.Verification, "verify", "-q", "--key", "other.pub", states+":press-07")
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-07")
	s.golden(golden)
}

// What ends a way back half way is told; the next run does the rest, and never the same twice.
func TestFleetRollbackEndsHalfWay(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	s.change("plant/fleet.yaml", "poll: 10", "poll: 12")
	s.change("plant/fleet.yaml", "select: group=line-a", `select: "line, device!=press-10"`)
	s.change("plant/devices/all.yaml", "poll: 20", "poll: 21")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/plant/state/manifests/press-0\d$`, Skip: 1, Effect: testenv.Status(http.StatusForbidden, 0)})
	code, _, stderr := s.try("fleet", "rollback", "--previous", "--key", "release.key", "--parallel", "1", "plant")
	if code != outcome.Auth || !strings.Contains(stderr, "states published: publish press-08:") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	s.server.Faults.Clear()
	s.do(outcome.OK, "fleet", "rollback", "-q", "--previous", "--key", "release.key", "plant")
	s.do(outcome.OK, "fleet", "rollback", "-q", "--previous", "--key", "release.key", "plant")
	for _, device := range []string{"press-07", "press-08", "press-09"} {
		s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+device)
		if shown := s.do(outcome.OK, "state", "show", "-d", device, states); !strings.Contains(shown, "generation 3") || !strings.Contains(shown, "repeats") {
			t.Errorf("%s has\n%s", device, shown)
		}
		s.do(outcome.NotFound, "state", "show", "-q", states+":"+device+".v4")
	}
}

// What a device would go back to is looked at before anything moves: an image that was collected meanwhile is told.
func TestFleetRollbackLooks(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.oneDevice("one", "line-monitor", "sensor")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "one")
	s.oneDevice("one", "sensor")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "one")
	back := []string{"fleet", "rollback", "--previous", "--key", "release.key", "one"}
	s.server.Faults.Add(testenv.Rule{Method: http.MethodHead, Path: "/library/nats/blobs/", Effect: testenv.Status(http.StatusNotFound, 0)})
	s.refuses(outcome.Refused, []string{
		"press-07: generation 1 cannot be had again: image " + host + "/library/nats:2.12@sha256:", "of it is not at ", "push the missing content again", "0 devices rolled back",
	}, back...)
	s.do(outcome.OK, append([]string{"fleet", "rollback", "--no-content", "--dry-run"}, back[2:]...)...)
	s.server.Faults.Clear()
	s.write("strict.yaml", "rules:\n  - {scope: "+host+"/plant/**, artifacts: [state, component], keys: [{name: release, file: release.pub}]}\n")
	s.refuses(outcome.Refused, []string{"components/line-monitor@", "not signed"}, append([]string{"fleet", "rollback", "--policy", "strict.yaml"}, back[2:]...)...)
	s.do(outcome.OK, back...)
}
