package containerd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
