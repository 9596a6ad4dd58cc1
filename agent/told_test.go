package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// TestOneOfSeveralFailuresIsTold: of several deployments that failed the same one is told each time, the first by name.
func TestOneOfSeveralFailuresIsTold(t *testing.T) {
	reported := map[string]store.Status{}
	for i, code := range []codes.Code{codes.ImagePlatform, codes.ComponentInvalid, codes.DiskFull, codes.SourceUnreachable} {
		id := fmt.Sprintf("id-%d", 9-i)
		reported[id] = store.Status{
			DeploymentID: id, Name: fmt.Sprintf("app-%d", i), State: margo.StateFailed,
			Components: []store.Component{{Name: "web", State: margo.StateFailed, Error: &margo.StatusError{Code: string(code), Message: "it failed"}}},
		}
	}
	same := &store.State{Digest: "sha256:aa"}
	for range 20 {
		for what, l := range map[string]*loop{
			"runs":         {Agent: &Agent{}, told: told{statuses: reported}, states: states{accepted: same, committed: same}},
			"does not run": {Agent: &Agent{}, told: told{statuses: reported}, states: states{accepted: same}},
		} {
			if r, ok := l.outcome(waiter{}); !ok || r.Outcome != status.SyncFailed || r.Code != codes.ImagePlatform || r.Message != "app-0: web: it failed" {
				t.Fatalf("%s: outcome = %+v, %v, want that app-0 failed", what, r, ok)
			}
		}
	}
}

// TestOneOfSeveralPullTroublesIsTold: of several images that cannot be loaded the same one is told each time.
func TestOneOfSeveralPullTroublesIsTold(t *testing.T) {
	l := &loop{Agent: &Agent{}}
	l.pull.troubles = map[string]plan.Trouble{
		"registry.example/a:1": {Code: codes.ImagePlatform, Message: "a", Permanent: true}, // the deployment tells it
		"registry.example/b:1": {Code: codes.ComponentInvalid, Message: "b"},
		"registry.example/c:1": {Code: codes.DiskFull, Message: "c"},
		"registry.example/d:1": {Code: codes.SourceUnreachable, Message: "d"},
	}
	for range 20 {
		var told []string
		l.pullProblems(time.Now(), func(code codes.Code, message, _, _ string, _ time.Time) {
			told = append(told, string(code)+": "+message)
		})
		if want := string(codes.ComponentInvalid) + ": cannot load an image: b"; len(told) != 1 || told[0] != want {
			t.Fatalf("told %q, want %q", told, want)
		}
	}
}
