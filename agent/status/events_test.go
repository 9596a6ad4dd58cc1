package status_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/longshore-dev/longshore/agent/status"
)

// EventKinds has every kind that there is a constant of.
func TestEventKinds(t *testing.T) {
	source, err := os.ReadFile("events.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := regexp.MustCompile(`(?m)^\tEvent\w+ +EventKind = "([a-z-]+)"`).FindAllSubmatch(source, -1)
	listed := map[status.EventKind]bool{}
	for _, k := range status.EventKinds() {
		listed[k] = true
	}
	if len(constants) < 20 || len(listed) != len(constants) {
		t.Errorf("%d kinds are listed, of %d", len(listed), len(constants))
	}
	for _, c := range constants {
		if !listed[status.EventKind(c[1])] {
			t.Errorf("%s is not listed", c[1])
		}
	}
}
