package containerd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A directory that a container may mount is replaced by a link after the container was made, as a container that writes
// beside it can: the container does not start again, and where the link is replaced only later, what is mounted is what was
// judged.
func TestSourceThatBecomesALink(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("plant\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := server(r.pulled(nil))
	s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: dir, Target: "/data"}}
	p := project("link", s)
	c := r.up(p)[0]
	if got := r.inside(c.ID, "cat", "/data/file"); got != "plant\n" {
		t.Fatalf("/data/file = %q", got)
	}
	if err := r.Stop(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(dir, dir+".old"), os.Symlink("/etc", dir)); err != nil {
		t.Fatal(err)
	}
	err := r.Start(t.Context(), p, c)
	if !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "/etc") {
		t.Errorf("Start = %v, want a refusal that names /etc", err)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".old", dir)); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), p, c); err != nil {
		t.Errorf("Start with the directory itself: %v", err)
	}
}

// A place that is mounted read-only brings along no mount below it that could be written.
func TestReadOnlyPlaceStaysReadOnly(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: "/sys", Target: "/s", ReadOnly: true}}
	id := r.up(project("sys", s))[0].ID
	if got := r.inside(id, "open", "/s/fs/cgroup/cgroup.procs", "w"); strings.Contains(got, "ok") {
		t.Errorf("a container can move processes of the device between control groups: %s", got)
	}
	if got := r.inside(id, "cat", "/s/devices/system/cpu/present"); got == "" {
		t.Error("/sys is empty")
	}
}

// The device's own mounts stay when a container that had them goes.
func TestMountsBelowASourceStay(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, ""), unix.Mount("tmpfs", below, "tmpfs", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(below, unix.MNT_DETACH)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	if err := os.WriteFile(filepath.Join(below, "file"), []byte("below\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := server(r.pulled(nil))
	s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: dir, Target: "/x"}}
	id := r.up(project("below", s))[0].ID
	if got := r.inside(id, "cat", "/x/below/file"); got != "below\n" {
		t.Errorf("/x/below/file = %q", got)
	}
	if err := r.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(below, "file")); err != nil {
		t.Errorf("the device's own mount went with the container: %v", err)
	}
}
