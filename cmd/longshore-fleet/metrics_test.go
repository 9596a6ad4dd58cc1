package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/testenv"
)

// docs/fleet.md names every metric of the server, with its kind.
func TestMetricsAreDocumented(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "fleet.md"))
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := serve(t, "--database", filepath.Join(t.TempDir(), "fleet.db"), "--state", "registry.example/plant/state")
	do(t, client(t), "PUT", url+"/api/v1/capabilities/press-07", "unknown", "{}")
	_, body := do(t, client(t), "GET", url+"/metrics", "", "")
	served := 0
	for line := range strings.Lines(body) {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" && strings.HasPrefix(f[2], "longshore_") {
			if served++; !strings.Contains(string(page), fmt.Sprintf("\n| `%s` | %s |", f[2], f[3])) {
				t.Errorf("the page lacks %s, a %s", f[2], f[3])
			}
		}
	}
	if served != 11 || strings.Count(string(page), "\n| `longshore_fleet_") != served {
		t.Errorf("%d metrics are served:\n%s", served, body)
	}
}
