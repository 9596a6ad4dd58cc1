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
	if len(f.Devices) != 3 || len(f.Applications) != 3 || len(f.Deployments) != 3 {
		t.Errorf("%d devices, %d applications, %d deployments", len(f.Devices), len(f.Applications), len(f.Deployments))
	}
}
