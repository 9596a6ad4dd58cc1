package wipe_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/wipe"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// device has two applications with volumes, of which one has no containers any more, and files. What lies outside has links to it.
type device struct {
	wipe.Device
	*runtimetest.Memory
	dir   string
	calls int
	call  func(n int) error // before the n-th call that changes something; nil: nothing happens
}

func (d *device) path(name string) string { return filepath.Join(d.dir, name) }

func newDevice(t *testing.T) *device {
	t.Helper()
	d := &device{dir: t.TempDir(), Memory: runtimetest.NewMemory()}
	d.Device = wipe.Device{
		Credentials: []string{d.path("etc/device.key"), d.path("etc/token"), d.path("etc/never-there"), ""}, RunDir: d.path("run"), DataDir: d.path("data"),
		Configuration: []string{d.path("etc/trust.yaml"), d.path("etc/agent.yaml")},
	}
	for _, f := range []string{"etc/device.key", "etc/trust.yaml", "etc/agent.yaml", "etc/of-others", "data/agent.db", "data/content/blobs/one", "run/agent.sock", "outside/token", "outside/disk/file"} {
		d.write(t, f)
	}
	for link, to := range map[string]string{"etc/token": "outside/token", "data/link": "outside/disk", "data/content/link": "outside/disk/file", "run/link": "outside"} {
		if err := os.Symlink(d.path(to), d.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"line", "press"} {
		p := &workload.Project{Name: name, Deployment: name, Component: name, Volumes: []workload.Volume{{Name: "data"}}, Services: []workload.Service{
			{Name: "web", Image: workload.Image{Repository: "r.example/" + name, Digest: digest.FromString(name)}},
		}}
		c := p.Containers()[0]
		_, err := d.Pull(t.Context(), c.Service.Image, nil)
		if err := errors.Join(err, d.Prepare(t.Context(), p), d.Create(t.Context(), p, c), d.Start(t.Context(), p, c)); err != nil {
			t.Fatal(err)
		}
		if name == "press" {
			if err := errors.Join(d.Memory.Remove(t.Context(), c.ID), d.Memory.Teardown(t.Context(), name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := wipe.Begin(d.DataDir); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *device) write(t *testing.T, name string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(d.path(name)), 0o755), os.WriteFile(d.path(name), []byte(name), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func (d *device) before() error {
	d.calls++
	if d.call == nil {
		return nil
	}
	return d.call(d.calls)
}

func (d *device) Remove(ctx context.Context, id string) error {
	return errors.Join(d.before(), d.Memory.Remove(ctx, id))
}

func (d *device) Teardown(ctx context.Context, project string) error {
	return errors.Join(d.before(), d.Memory.Teardown(ctx, project))
}

func (d *device) TakeVolume(ctx context.Context, project, name string) (func(context.Context) error, error) {
	if err := d.before(); err != nil {
		return nil, err
	}
	free, err := d.Memory.TakeVolume(ctx, project, name)
	return func(ctx context.Context) error { return errors.Join(d.before(), free(ctx)) }, err
}

func (d *device) Collect(ctx context.Context, keep []workload.Image) error {
	return errors.Join(d.before(), d.Memory.Collect(ctx, keep))
}

func (d *device) wipe(ctx context.Context) error {
	return d.Wipe(ctx, d, func() error { return nil }, slog.New(slog.DiscardHandler))
}

// left lists the files and links of the device, and of what is outside.
func (d *device) left(t *testing.T) (out []string) {
	t.Helper()
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name, _ := filepath.Rel(d.dir, path)
			out = append(out, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// gone wants nothing of the device, and all that is outside.
func (d *device) gone(t *testing.T, when string) {
	t.Helper()
	have, err := d.Observe(t.Context())
	if err != nil || len(have.Containers)+len(have.Projects)+len(d.Volumes())+len(d.Pulled()) != 0 {
		t.Errorf("%s: left %+v, volumes %v, images %v, %v", when, have, d.Volumes(), d.Pulled(), err)
	}
	if got, want := d.left(t), []string{"etc/of-others", "outside/disk/file", "outside/token"}; !slices.Equal(got, want) {
		t.Errorf("%s: left %q, want %q", when, got, want)
	}
	if wipe.Begun(d.DataDir) {
		t.Errorf("%s: the wipe goes on", when)
	}
}

// A wipe that is killed anywhere goes on at the next start: the configuration is there until everything else is gone, and the
// credentials are the first that is not.
func TestKilledAnywhere(t *testing.T) {
	d := newDevice(t)
	if err := d.wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.gone(t, "not killed")
	steps := d.calls
	if steps < 6 { // a container, a project, two volumes that are taken and freed, images
		t.Fatalf("%d steps", steps)
	}
	for n := 1; n <= steps; n++ {
		d := newDevice(t)
		ctx, kill := context.WithCancel(t.Context())
		d.call = func(i int) error {
			if i == n {
				kill()
			}
			return ctx.Err()
		}
		if err := d.wipe(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("killed at step %d: %v", n, err)
		}
		left := d.left(t)
		if !wipe.Begun(d.DataDir) || !slices.Contains(left, "etc/agent.yaml") || slices.Contains(left, "etc/device.key") || slices.Contains(left, "etc/token") {
			t.Errorf("killed at step %d: left %q, begun %v", n, left, wipe.Begun(d.DataDir))
		}
		d.call = nil
		if err := d.wipe(t.Context()); err != nil {
			t.Errorf("after a kill at step %d: %v", n, err)
		}
		d.gone(t, "killed")
	}
}

// What fails is tried again, and keeps nothing else from being deleted.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		began := time.Now()
		d.call = func(int) error {
			if time.Since(began) < time.Minute {
				return errors.New("away")
			}
			return nil
		}
		if err := d.wipe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < time.Minute || d > 2*time.Minute {
			t.Errorf("wiped after %s", d)
		}
		d.gone(t, "after errors")
	})
}

// A device that is enrolled again after its wipe was killed at the very end is not wiped once more.
func TestForget(t *testing.T) {
	d := newDevice(t)
	if !wipe.Begun(d.DataDir) {
		t.Fatal("no wipe has begun")
	}
	for range 2 {
		if err := wipe.Forget(d.DataDir); err != nil || wipe.Begun(d.DataDir) {
			t.Errorf("Forget: %v, begun %v", err, wipe.Begun(d.DataDir))
		}
	}
	if err := wipe.Forget(d.path("nowhere")); err != nil {
		t.Errorf("Forget where nothing is: %v", err)
	}
}

// Who may not look into the data directory may still write a configuration for another device.
func TestForgetOfADirectoryOfAnother(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with this
		_, err := unix.SetfsuidRetUid(65534)
		done <- errors.Join(err, wipe.Forget(dir))
	}()
	if err := <-done; err != nil {
		t.Errorf("Forget = %v", err)
	}
}

// The agent's mount of a directory of the device, that stayed because its container was lost, does not lead a wipe there.
func TestMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "mounting needs root")
	}
	d := newDevice(t)
	at := d.path("run/mounts/a b/0")
	d.write(t, "outside/disk/more/file")
	if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount(d.path("outside/disk"), at, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	if err := unix.Mount("tmpfs", filepath.Join(at, "more"), "tmpfs", 0, ""); err != nil { // a mount on a mount
		t.Fatal(err)
	}
	if err := d.wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.path("outside/disk/more/file")); err != nil {
		t.Errorf("a file that is mounted: %v", err)
	}
	d.gone(t, "with mounts")
}
