package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// sameNamespace reports whether a process sees the mounts of this one.
func sameNamespace(t *testing.T, pid int) bool {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	return err == nil && own == other
}

// TestPowerCut: what was synced is there after a cut; what was not is not, though it could be read before.
func TestPowerCut(t *testing.T) {
	if os.Geteuid() != 0 {
		Unavailable(t, "needs root")
	}
	box := NewBox(t)
	disk, err := box.NewDisk(t.Context(), 64<<20)
	if err != nil {
		Unavailable(t, "%v", err)
	}
	run, err := box.Folder("run")
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(disk.Dir, "kept"))
	if err := disk.Sync(); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(disk.Dir, "lost"))
	write(filepath.Join(run, "volatile"))
	p, err := box.Start("sleep", nil, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	// A program of another test, whose mount namespace has a copy of the disk's mount.
	other := exec.CommandContext(t.Context(), "unshare", "--mount", "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	Eventually(t, time.Minute, "a copy of the mount", func() error {
		if pids := mountedFor(disk.Dir); !slices.Contains(pids, other.Process.Pid) || sameNamespace(t, other.Process.Pid) {
			return fmt.Errorf("mounted for %v", pids)
		}
		return nil
	})
	if err := box.PowerCut(t.Context(), disk, nil, run); err != nil {
		t.Fatal(err)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a program of another test has ended: %v", err)
	}
	if p.PID() != 0 {
		t.Error("a process outlived the cut")
	}
	if b, err := os.ReadFile(filepath.Join(disk.Dir, "kept")); string(b) != "text" {
		t.Errorf("what was synced holds %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(disk.Dir, "lost")); err == nil && len(b) > 0 {
		t.Errorf("what was not synced holds %q", b)
	}
	if _, err := os.Stat(run); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what lives in memory is there: %v", err)
	}
}
