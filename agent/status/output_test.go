package status_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// What a container wrote is in none of the messages, wherever a status has one.
func TestWithoutOutput(t *testing.T) {
	const said = "service web: exited with code 3" + workload.OutputLabel + "password is hunter2"
	failed := func() *margo.StatusError { return &margo.StatusError{Code: "container-exited", Message: said} }
	full := func() status.Status {
		return status.Status{
			Device:   "press-07",
			Problems: []status.Problem{{Message: said, Hint: "look"}},
			Progress: &status.Progress{Progress: store.Progress{Message: said, History: []store.Outcome{{Message: said}}}},
			Deployments: []status.Deployment{
				{Name: "line", Error: failed(), Refused: &status.RefusedRevision{Message: said}, Components: []status.Component{{Name: "web", Error: failed()}, {Name: "db"}}},
				{Name: "other"},
			},
			Now: time.Unix(1_800_000_000, 0),
		}
	}
	before := full()
	b, err := json.Marshal(before.WithoutOutput())
	if err != nil {
		t.Fatal(err)
	}
	if text := string(b); strings.Contains(text, "hunter2") || strings.Contains(text, "last output") || strings.Count(text, "exited with code 3") != 6 {
		t.Errorf("it tells %s", text)
	}
	if !reflect.DeepEqual(before, full()) {
		t.Errorf("the status itself was changed: %+v", before)
	}
}
