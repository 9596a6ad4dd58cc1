package attack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	w, err := world.New(t.Context(), world.Options{Box: openBox(t), Name: name, Pool: pool})
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
	_, err := w.Control(t.Context(), "sync", "--timeout", "1s")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 75 {
		t.Fatalf("sync = %v, want exit code 75", err)
	}
	for _, want := range []string{"no outcome after 1s: still installing: hello/web is starting", "hint: the agent goes on"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("sync says\n%v\nwant %q in it", err, want)
		}
	}
	if err := w.Agent.Running(); err != nil {
		t.Error(err)
	}
}
