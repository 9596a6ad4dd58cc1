package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

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
	if err := box.PowerCut(t.Context(), disk, nil, run); err != nil {
		t.Fatal(err)
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
