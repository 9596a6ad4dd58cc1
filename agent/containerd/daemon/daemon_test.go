package daemon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/containerd/daemon"
	"github.com/longshore-dev/longshore/testenv"
)

// Every release reads the configuration without a complaint, and a daemon that has it offers nothing of Kubernetes. That the agent
// needs nothing that it turns off is shown by all other tests: their daemons have it.
func TestConfig(t *testing.T) {
	for _, release := range testenv.Releases() {
		t.Run(release.String(), func(t *testing.T) {
			t.Parallel()
			d := testenv.ContainerdRelease(t, release)
			file := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(file, []byte(daemon.Config), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), filepath.Join(d.Bin, "containerd"), "--config", file, "config", "dump").CombinedOutput()
			said := strings.Count(string(out), "level=") - strings.Count(string(out), "Configuration migrated from version 2")
			if err != nil || said > 0 || !strings.Contains(string(out), "io.containerd.grpc.v1.cri") {
				t.Errorf("containerd config dump: %v\n%s", err, out)
			}
			plugins, err := d.Ctr(t.Context(), "plugins", "ls")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(plugins) {
				if f := strings.Fields(line); len(f) > 3 && (f[1] == "cri" || f[len(f)-1] == "error") {
					t.Errorf("a plugin of it: %s", line)
				}
			}
		})
	}
}
