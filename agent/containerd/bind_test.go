package containerd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

func TestUmask(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	mask := uint32(0o027)
	s.Umask, s.User = &mask, "1000"
	if got := of(t, r.seen(r.up(project("umask", s))[0].ID).PID, "Umask"); got != "0027" {
		t.Errorf("umask %s, want 0027", got)
	}
}

// A path that is missing where containers may only read, as /etc/timezone is on many devices, is an empty directory in the container, and
// nothing is created on the device; once it is there, the next container has it.
func TestMissingPathsWhereContainersOnlyRead(t *testing.T) {
	etc := t.TempDir()
	r := newRig(t, func(o *containerd.Options) {
		o.Places = append(o.Places, workload.Place{Path: etc, Access: workload.ReadOnly, Holds: "configuration of the device"})
	})
	file := filepath.Join(etc, "timezone")
	s := server(r.pulled(nil))
	s.User = "1000"
	s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: file, Target: "/etc/timezone", ReadOnly: true, Create: true}}
	c := r.up(project("missing", s))[0]
	if left, err := os.ReadDir(etc); err != nil || len(left) > 0 {
		t.Errorf("the device has %v, %v, want nothing new", left, err)
	}
	if got := r.inside(c.ID, "stat", "/etc/timezone"); got != "0 0 drwxr-xr-x\n" {
		t.Errorf("in the container it is %q", got)
	}
	if err := os.WriteFile(file, []byte("Europe/Berlin\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Stop(t.Context(), c.ID), r.start(c)); err != nil {
		t.Fatal(err)
	}
	s.Environment = []string{"REVISION=2"}
	if got := r.inside(r.up(project("missing", s))[0].ID, "cat", "/etc/timezone"); got != "Europe/Berlin\n" {
		t.Errorf("the next container has %q", got)
	}
}

// A directory of the device that has gone, and is not created again, is empty in the container, also after a reboot.
func TestGonePathsWhereContainersOnlyRead(t *testing.T) {
	etc := t.TempDir()
	r := newRig(t, func(o *containerd.Options) {
		o.Places = append(o.Places, workload.Place{Path: etc, Access: workload.ReadOnly, Holds: "configuration of the device"})
	})
	dir := filepath.Join(etc, "modules")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := server(r.pulled(nil))
	s.User = "1000"
	s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: dir, Target: "/modules", ReadOnly: true, Create: true}}
	c := r.up(project("gone", s))[0]
	for _, left := range []string{dir, filepath.Join(r.o.RunDir, "mounts")} { // the second goes with a reboot
		if err := errors.Join(r.Stop(t.Context(), c.ID), os.RemoveAll(left), r.start(c)); err != nil {
			t.Fatal(err)
		}
		if got := r.inside(c.ID, "stat", "/modules"); got != "0 0 drwxr-xr-x\n" {
			t.Errorf("in the container it is %q", got)
		}
	}
	if left, err := os.ReadDir(etc); err != nil || len(left) > 0 {
		t.Errorf("the device has %v, %v, want nothing new", left, err)
	}
}

// What is mounted below a directory of the device comes along, unless the service wants it otherwise.
func TestBindRecursion(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, ""); err != nil {
		testenv.Unavailable(t, "mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(below, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(below, "file"), []byte("below\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := server(r.pulled(nil))
	for target, how := range map[string]string{"/as-it-is": "", "/alone": "disabled", "/all-read-only": "readonly"} {
		s.Mounts = append(s.Mounts, workload.Mount{Kind: workload.MountBind, Source: dir, Target: target, ReadOnly: true, Recursive: how})
	}
	id := r.up(project("recursion", s))[0].ID
	for target, want := range map[string]string{"/as-it-is": "ok", "/alone": "no such file", "/all-read-only": "read-only"} {
		if got := r.inside(id, "open", target+"/below/file", "w"); !strings.Contains(got, want) {
			t.Errorf("open %s/below/file for writing: %q, want %q", target, got, want)
		}
	}
	if got := r.inside(id, "cat", "/all-read-only/below/file"); got != "below\n" {
		t.Errorf("/all-read-only/below/file holds %q", got)
	}
}
