package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

const (
	releaseKey   = "--key=release.key"
	nobodyToTell = "--endpoint=http://127.0.0.1:1" // no device is heard of
	canaryOfFour = "rollout: {waves: [{name: canary, percent: 25}, {name: rest, percent: 100}]}"
)

// begunRollout is a rollout of which only the canary is published.
func begunRollout(t *testing.T) *shell {
	t.Helper()
	s := newShell(t, testenv.Referrers)
	s.waves(4, canaryOfFour)
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", releaseKey, "waves")
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 6")
	s.do(outcome.Temporary, "fleet", "publish", "-q", "--no-wait", releaseKey, nobodyToTell, "waves")
	return s
}

// A halt whose connection broke before the moving tag was set is done by the same command again: who runs the rollout looks
// at that tag only.
func TestFleetRolloutHaltThatBroke(t *testing.T) {
	s := begunRollout(t)
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/plant/rollouts/manifests/acme-plant$", Effect: testenv.Reset()})
	halt := []string{"fleet", "rollout", "halt", releaseKey, "--reason", "lunch", "waves"}
	s.do(outcome.Temporary, halt...)
	s.server.Faults.Clear()
	tagged := func() string {
		return s.annotations(host + "/plant/rollouts:acme-plant")[artifacts.AnnotationGeneration]
	}
	before := tagged()
	if r := s.shown(outcome.Refused); fmt.Sprint(r.Revision) == before || r.Phase != "halted" {
		t.Fatalf("the tag was set: %s, %+v", before, r)
	}
	s.do(outcome.OK, halt...)
	if r := s.shown(outcome.Refused); fmt.Sprint(r.Revision) != tagged() || r.Phase != "halted" {
		t.Errorf("the tag names revision %s, and not %d", tagged(), r.Revision)
	}
	s.do(outcome.Refused, halt...)
}

// What devices would get again is looked at before an undo writes anything, and can be given back all the same.
func TestFleetRolloutUndoLooks(t *testing.T) {
	s := begunRollout(t)
	undo := []string{"fleet", "rollout", "undo", releaseKey, "waves"}
	s.server.Faults.Add(testenv.Rule{Method: http.MethodHead, Path: "/library/nats/blobs/", Effect: testenv.Status(http.StatusNotFound, 0)})
	s.refuses(outcome.Refused, []string{
		": what it had cannot be had again: ", "image " + host + "/library/nats:2.12@sha256:", "of it is not at ", "nothing was published", "--no-content",
	}, undo...)
	if r := s.shown(outcome.Differs); r.Phase != "running" {
		t.Errorf("%+v", r)
	}
	s.do(outcome.OK, append([]string{"fleet", "rollout", "undo", "--no-content"}, undo[3:]...)...)
	if r := s.shown(outcome.Refused); r.Phase != "rolled-back" {
		t.Errorf("%+v", r)
	}
}
