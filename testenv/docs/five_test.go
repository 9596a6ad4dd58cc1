package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// fromComposeToDevice is what a new user types, with the programs installed and a compose.yaml in a directory, until
// containers run on a device: three commands where releases are made, two on the device.
var fromComposeToDevice = []string{
	"longshore key generate release",
	"longshore component push ./line-monitor harbor.acme.example/plant/components/line-monitor:1.4.0",
	"longshore state push --device press-07 --key release.key harbor.acme.example/plant/state \\\n" +
		"      --component oci://harbor.acme.example/plant/components/line-monitor:1.4.0 --set POLL_SECONDS=30",
	"longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --key release.pub",
	"systemctl enable --now longshore-agent",
}

// The commands are those of README.md, they are five, and containerd runs every service of the project when the last has
// ended and nothing else was typed.
func TestFiveCommands(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	if len(fromComposeToDevice) > 5 {
		t.Errorf("%d commands", len(fromComposeToDevice))
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	w := sit(t, programs(t))
	w.registry()
	w.images()
	w.device()
	if out, err := w.shell("install -m 0755 dist/linux-amd64/longshore-agent local-bin/ && longshore-agent unit >units/longshore-agent.service"); err != nil {
		t.Fatalf("install the agent: %v\n%s", err, out)
	}
	begin := time.Now()
	for i, command := range fromComposeToDevice {
		if !strings.Contains(string(readme), " "+command+"\n") {
			t.Errorf("README.md does not have %q", command)
		}
		for from, to := range w.stands {
			command = strings.ReplaceAll(command, from, to)
		}
		if out, err := w.shell(command); err != nil {
			t.Fatalf("command %d: %v\n%s", i+1, err, out)
		}
	}
	running := regexp.MustCompile(`(?m)\sRUNNING\s*$`)
	err = testenv.Await(t.Context(), 2*time.Minute, func() error {
		tasks, err := w.daemon.Ctr(t.Context(), "--namespace", w.daemon.Namespace, "tasks", "list")
		if n := len(running.FindAllString(tasks, -1)); err == nil && n < 3 {
			err = fmt.Errorf("%d containers run:\n%s", n, tasks)
		}
		return err
	})
	if err != nil {
		log, _ := w.shell("longshore-agent status; tail -20 agent.log")
		t.Fatalf("%v\n%s", err, log)
	}
	t.Logf("3 containers run after %d commands, %s after the first was typed", len(fromComposeToDevice), time.Since(begin).Round(time.Second/10))
	if out, err := w.shell("longshore-agent ps && systemctl stop longshore-agent"); err != nil || strings.Count(out, "line-monitor") < 3 {
		t.Errorf("ps: %v\n%s", err, out)
	}
}
