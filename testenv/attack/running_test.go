package attack

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// newWorld makes a world with the key release, in a box of its own. The log of its agent is shown when the test fails. It needs root.
func newWorld(t *testing.T, name, pool string) *world.World {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	w, err := world.New(t.Context(), world.Options{Box: testenv.NewBox(t), Name: name, Pool: pool})
	must(t, "world", err)
	_, err = w.Run(t.Context(), "longshore", "key", "generate", "release")
	must(t, "key", err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs())
		}
	})
	return w
}

// toolbox pushes the image that tests run, with files in a layer of their own, and returns its reference.
func toolbox(t *testing.T, w *world.World, name string, files ...testenv.File) string {
	t.Helper()
	img, err := testenv.SoftwareImage(t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	if len(files) > 0 {
		if img, err = testenv.AppendLayers(img, files); err != nil {
			t.Fatal(err)
		}
	}
	_, err = w.Registry.Push(t.Context(), name, img)
	must(t, "push", err)
	return w.Reference(name)
}

// installed publishes a component and starts the agent. It does not wait until the component runs.
func installed(t *testing.T, w *world.World, name, compose string) {
	t.Helper()
	reference, err := w.Component(t.Context(), name, "1.0.0", compose)
	must(t, "component", err)
	must(t, "state", w.Release(t.Context(), reference))
	must(t, "init", w.Init(t.Context()))
	must(t, "boot", w.Boot(t.Context()))
}

// TestSyncThatRunsOut: a sync whose time is over while a service is still starting says so, and its exit code tells a script to
// try again.
func TestSyncThatRunsOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "wait", "10.200.0.0/16")
	installed(t, w, "hello", fmt.Sprintf(`services:
  web:
    image: %s
    command: [sleep]
    healthcheck: {test: [CMD, /toolbox, exit, "1"], interval: 200ms, start_period: 10m}
`, toolbox(t, w, "plant/toolbox:1")))
	testenv.Eventually(t, settleLimit, "the service starts", func() error {
		s, err := w.Status(t.Context())
		if err != nil {
			return err
		}
		if d := s.Deployments; len(d) == 0 || len(d[0].Components[0].Services) == 0 || d[0].Components[0].Services[0].Health != plan.HealthStarting {
			return fmt.Errorf("deployments %+v", d)
		}
		return nil
	})
	// On a busy machine a second can be over while the agent still looks at the registry: then the sync says that, and the next one is asked.
	testenv.Eventually(t, settleLimit, "sync names the service", func() error {
		_, err := w.Control(t.Context(), "sync", "--timeout", "1s")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 75 {
			t.Fatalf("sync = %v, want exit code 75", err)
		}
		if !strings.Contains(err.Error(), "no outcome after 1s: still installing: hello/web is starting") {
			return err
		}
		if hint := "hint: the agent goes on"; !strings.Contains(err.Error(), hint) {
			t.Errorf("sync says\n%v\nwant %q in it", err, hint)
		}
		return nil
	})
	if err := w.Agent.Running(); err != nil {
		t.Error(err)
	}
}

// TestRestartLeavesLayersAlone: an agent that starts again reads no image whole and writes into no layer, although a file of one
// is not what the image has and the blobs of all layers are gone.
func TestRestartLeavesLayersAlone(t *testing.T) {
	t.Parallel()
	const size, most = 48 << 20, 12 << 20 // bytes of a layer, and how many a start may read
	w := newWorld(t, "layer", "10.203.0.0/16")
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // does not fail
	installed(t, w, "heavy", fmt.Sprintf("services: {web: {image: %s, command: [sleep]}}\n", toolbox(t, w, "plant/heavy:1", testenv.File{Path: "heavy", Data: data})))
	must(t, "the service runs", w.Settled(t.Context(), 1, settleLimit))
	before, err := w.Status(t.Context())
	must(t, "status", err)
	w.Agent.Kill()

	layers, err := filepath.Glob(filepath.Join(w.Containerd.Root, "io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/heavy"))
	if err != nil || len(layers) != 1 {
		t.Fatalf("the layer is at %v, %v", layers, err)
	}
	must(t, "change a layer", os.WriteFile(layers[0], []byte("changed"), 0o600))
	blobs, err := filepath.Glob(filepath.Join(w.Containerd.Root, "io.containerd.content.v1.content/blobs/sha256/*"))
	must(t, "blobs", err)
	removed := 0
	for _, blob := range blobs {
		info, err := os.Stat(blob)
		must(t, "blob", err)
		if info.Size() > 1<<20 { // a layer
			must(t, "remove a blob", os.Remove(blob))
			removed++
		}
	}
	if removed == 0 {
		t.Fatalf("no layer is among %v", blobs)
	}
	w.Registry.Down()
	daemon := readBy(t, w.Containerd.PID())
	must(t, "boot", w.Boot(t.Context()))
	must(t, "the service runs after a restart", w.Settled(t.Context(), 1, settleLimit))
	if out, err := w.Control(t.Context(), "sync"); err == nil { // after it the agent has looked at everything once
		t.Errorf("sync without a registry = %q", out)
	}
	own := readBy(t, w.Agent.PID())
	daemon = readBy(t, w.Containerd.PID()) - daemon
	t.Logf("%d blobs removed; the agent read %d KiB, containerd %d KiB", removed, own>>10, daemon>>10)
	if own+daemon > most {
		t.Errorf("%d MiB were read, want %d MiB at most", (own+daemon)>>20, most>>20)
	}
	after, err := w.Status(t.Context())
	must(t, "status", err)
	if !maps.Equal(world.Processes(before), world.Processes(after)) {
		t.Errorf("processes %v, before %v", world.Processes(after), world.Processes(before))
	}
	if b, err := os.ReadFile(layers[0]); err != nil || string(b) != "changed" {
		t.Errorf("the file of the layer has %d bytes, %v, want it as it was changed", len(b), err)
	}
}

// readBy is how many bytes a process has read so far, from files and from sockets.
func readBy(t *testing.T, pid int) int64 {
	t.Helper()
	fields, err := testenv.Account(fmt.Sprintf("/proc/%d/io", pid))
	must(t, "read", err)
	return int64(fields["rchar"])
}
