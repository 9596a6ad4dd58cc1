package containerd_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// killShims ends the shims of the rig's namespace as a crash does, and everything that they serve.
func (r *rig) killShims() {
	r.t.Helper()
	for _, pid := range r.shimPIDs() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			r.t.Error(err)
		}
	}
	testenv.Eventually(r.t, time.Minute, "the shims end", func() error {
		if n := r.shims(); n > 0 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
}

func TestContainerdRestartIsSurvived(t *testing.T) {
	r := ownRig(t)
	img := r.pulled(nil)
	c := r.up(project("outage", server(img)))[0]
	r.serving(c.ID)
	before := r.seen(c.ID)
	r.daemon.Kill()
	if _, err := r.Observe(t.Context()); err == nil {
		t.Error("Observe without containerd succeeded")
	}
	if got := r.get(c.ID, "/"); got != "hello\n" {
		t.Errorf("GET / while containerd is away = %q, want hello", got)
	}
	if err := r.daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the runtime is back", func() error {
		_, err := r.Observe(t.Context())
		return err
	})
	if got := r.seen(c.ID); got != before {
		t.Errorf("Observe = %+v, want %+v as before", got, before)
	}
	if err := errors.Join(r.Stop(t.Context(), c.ID), r.start(c)); err != nil {
		t.Error(err)
	}
	r.serving(c.ID)
}

func TestKilledShimIsObservedAndReplaced(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	a, b := server(img), server(img)
	a.Name, b.Name = "a", "b"
	cs := r.up(project("shim", a, b))
	for _, c := range cs {
		r.serving(c.ID)
	}
	r.killShims()
	for _, c := range cs {
		testenv.Eventually(t, time.Minute, "the end is observed", func() error {
			if o := r.seen(c.ID); o.Status == workload.Running {
				return fmt.Errorf("%s is %s", c.ID, o.Status)
			}
			return nil
		})
		if err := r.start(c); err != nil {
			t.Fatal(err)
		}
		r.serving(c.ID)
	}
}

func TestReboot(t *testing.T) {
	r := ownRig(t)
	img := r.pulled(nil)
	a, b := server(img), server(img)
	a.Name, b.Name = "a", "b"
	a.Mounts = []workload.Mount{{Kind: workload.MountVolume, Target: "/anon"}}
	cs := r.up(project("boot", a, b))
	for _, c := range cs {
		r.serving(c.ID)
	}
	if err := r.Probe(t.Context(), cs[0].ID, workload.Probe{Exec: []string{"/toolbox", "write", "/layer", "kept"}}); err != nil {
		t.Fatal(err)
	}
	address := r.nets.Addresses(cs[0].ID)["default"]
	r.powerOff(cs)
	if err := r.daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.nets.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Runtime = r.open()
	for _, c := range cs {
		if o := r.seen(c.ID); o.Status != workload.Created || o.PID != 0 {
			t.Errorf("after the reboot %s = %+v, want created", c.ID, o)
		}
		if err := r.start(c); err != nil {
			t.Fatal(err)
		}
		r.serving(c.ID)
	}
	if got := r.nets.Addresses(cs[0].ID)["default"]; got != address {
		t.Errorf("address = %v, want %v as before", got, address)
	}
	if got := r.get(cs[0].ID, "/file?path=/layer"); got != "kept\n" {
		t.Errorf("the writable layer = %q, want what was written", got)
	}
}

// powerOff takes away what a reboot does: every process, and everything below run directories.
func (r *rig) powerOff(cs []workload.Container) {
	r.t.Helper()
	var pids []int
	for _, c := range cs {
		pids = append(pids, int(r.seen(c.ID).PID))
	}
	if err := r.Runtime.Close(); err != nil {
		r.t.Error(err)
	}
	r.daemon.Kill()
	for _, pid := range append(r.shimPIDs(), pids...) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			r.t.Error(err)
		}
	}
	for _, dir := range []string{r.daemon.State, r.o.RunDir, r.netRun, filepath.Join("/run/containerd/runc", r.o.Namespace)} {
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			r.t.Fatal(err)
		}
		lines := strings.Split(string(mounts), "\n")
		slices.Reverse(lines)
		for _, line := range lines {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
				if err := mount.Unmount(f[1], unix.MNT_DETACH); err != nil {
					r.t.Error(err)
				}
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			r.t.Error(err)
		}
	}
	if err := os.MkdirAll(r.netRun, 0o755); err != nil { // /run is there after a boot, systemd makes the rest
		r.t.Error(err)
	}
}

func TestUpdateMovesThePublishedPort(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	port := freePort(t)
	s := server(img)
	s.Ports = []workload.Port{{HostPort: port, ContainerPort: 8080, Protocol: "tcp"}}
	ask := func(want string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, "the published port answers", func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
			if err != nil {
				return err
			}
			res, err := r.client().Do(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != want+"\n" {
				return fmt.Errorf("it says %q, %w, want %s", b, err, want)
			}
			return nil
		})
	}
	p := project("port", s)
	old := r.up(p)[0]
	ask("hello")
	// As a plan updates: the new container is there before the old one stops, and takes its port.
	p.Services[0].Command = []string{"serve", "8080", "second"}
	next := r.created(p)[0]
	ask("hello")
	if err := errors.Join(r.Stop(t.Context(), old.ID), r.Remove(t.Context(), old.ID), r.start(next)); err != nil {
		t.Fatal(err)
	}
	ask("second")
}
