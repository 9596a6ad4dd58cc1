package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// Every device is listed with the state that its tag names, also one whose tag names another's, or is gone; each costs one request.
func TestStateList(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.do(outcome.NotFound, "state", "list", states)
	s.do(outcome.Misused, "state", "list", states+":press-07")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	for poll, device := range []string{"press-07", "press-07", "press-07", "gateway/press-08", "press-09"} {
		s.do(outcome.OK, "state", "push", "-q", "-d", device, "--key", "release.key", "--component", monitor+":1.4.0", "--set", fmt.Sprintf("POLL_SECONDS=%d", poll+1), states)
	}
	s.do(outcome.OK, "state", "prune", "-q", "--keep", "1", "-d", "press-07", states)
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	repo, err := client.OpenName(t.Context(), s.server.Host+"/plant/state")
	if err != nil {
		t.Fatal(err)
	}
	d, manifest, err := repo.Tagged(t.Context(), "press-07")
	if err == nil {
		err = repo.PushManifest(t.Context(), d, manifest, "press-09")
	}
	if err != nil {
		t.Fatal(err)
	}
	s.server.Faults.Forget()
	s.do(outcome.OK, "state", "list", states)
	asked := s.server.Faults.Requests("", "/plant/state/")
	if n := len(slices.DeleteFunc(asked, func(r testenv.Request) bool { return strings.Contains(r.Path, "/tags/") })); n != 3 {
		t.Errorf("%d requests beside the list of tags, want one for each of 3 devices", n)
	}
	s.do(outcome.OK, "state", "list", "-o", "json", states)
	s.do(outcome.OK, "state", "list", "-q", states)
	s.golden(golden)
}
