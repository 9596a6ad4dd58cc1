package fleet_test

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/fleet"
)

// The files of the documentation are a fleet.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../docs/fleet-files.md")
	if err != nil {
		t.Fatal(err)
	}
	files := plant()
	delete(files, "devices/a.yaml")
	delete(files, "devices/b.yaml")
	for i, part := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		files[[]string{fleet.File, "devices/all.yaml"}[i]] = &fstest.MapFile{Data: []byte(block)}
	}
	f, err := fleet.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile("../docs/rollout.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	staged := fstest.MapFS{fleet.File: {Data: []byte("fleet: a\nregistry: h/p\ndevices: [{id: press-07}]\n" + block)}}
	if g, err := fleet.Read(staged); err != nil || !g.Staged() || g.Endpoint == "" {
		t.Errorf("rollout.md: %v", err)
	}
	if len(f.Devices) != 3 || len(f.Applications) != 3 || len(f.Deployments) != 3 {
		t.Errorf("%d devices, %d applications, %d deployments", len(f.Devices), len(f.Applications), len(f.Deployments))
	}
}
