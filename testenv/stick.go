package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Stick is a medium that wears out: ext4 without a journal on a loop device of its own.
type Stick struct {
	Dir string // where it is mounted

	file string // that stands for the device
}

// NewStick makes a stick of a size in bytes. Only room bytes can be written, as on a counterfeit one: what is written beyond that is
// lost, which the kernel reports when a file is synced. 0: all can be.
func NewStick(t testing.TB, size, room int64) *Stick {
	t.Helper()
	at := t.TempDir()
	if room > 0 {
		SmallDisk(t, at, size)
	}
	s := &Stick{Dir: t.TempDir(), file: filepath.Join(at, "stick.img")}
	if err := errors.Join(os.WriteFile(s.file, nil, 0o600), os.Truncate(s.file, size)); err != nil {
		t.Fatal(err)
	}
	// Large blocks make one group of them: what is written later lies behind what was written before.
	if text, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "^has_journal", s.file).CombinedOutput(); err != nil {
		Unavailable(t, "make a file system on %s: %v\n%s", s.file, err, tail(text, 5))
	}
	s.mount(t, "loop")
	t.Cleanup(func() { s.Pull(t) })
	if room > 0 {
		var is unix.Stat_t
		unix.Sync()
		if err := unix.Stat(s.file, &is); err != nil {
			t.Fatal(err)
		}
		GrowDisk(t, at, 512*is.Blocks+room)
	}
	return s
}

func (s *Stick) mount(t testing.TB, options string) {
	t.Helper()
	if err := mountLoop(t.Context(), s.file, s.Dir, options); err != nil {
		Unavailable(t, "%v", err)
	}
}

// Pull removes the stick from its folder, also while a process reads from it. It is no error when the stick is removed already.
func (s *Stick) Pull(t testing.TB) {
	t.Helper()
	if err := unix.Unmount(s.Dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
}

// Repair gives a counterfeit stick the room that it says it has.
func (s *Stick) Repair(t testing.TB, room int64) { GrowDisk(t, filepath.Dir(s.file), room) }

// Remount puts the stick into another machine: what only memory had is gone.
func (s *Stick) Remount(t testing.TB) {
	t.Helper()
	s.Pull(t)
	s.mount(t, "loop")
}

// Wear makes the device unreadable from about a byte of a file on: to read there is an input/output error. All other files can be
// read, and nothing can be written any more.
func (s *Stick) Wear(t testing.TB, file string, offset int64) {
	t.Helper()
	unix.Sync()
	data, err := os.ReadFile(file)
	if err == nil { // behind all others
		err = errors.Join(os.WriteFile(file+".last", data, 0o644), os.Rename(file+".last", file))
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	end := physical(t, file) + offset
	s.Pull(t)
	s.mount(t, "loop,ro")
	if err := os.Truncate(s.file, end); err != nil { // the loop device keeps its size
		t.Fatal(err)
	}
	err = filepath.WalkDir(s.Dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if _, err := os.ReadFile(name); errors.Is(err, syscall.EIO) != (name == file) {
			return fmt.Errorf("read %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// physical is where a file begins on its device, in bytes.
func physical(t testing.TB, file string) int64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "filefrag", "-b1", "-v", file).Output()
	if err != nil {
		t.Fatalf("filefrag %s: %v", file, err)
	}
	for line := range bytes.Lines(out) { // "   0:        0.. 8003583:   10486784..  18490367: 8003584: last,eof"
		if columns := strings.Split(string(line), ":"); len(columns) > 2 && strings.TrimSpace(columns[0]) == "0" {
			first, _, _ := strings.Cut(strings.TrimSpace(columns[2]), ".")
			if n, err := strconv.ParseInt(first, 10, 64); err == nil {
				return n
			}
		}
	}
	t.Fatalf("filefrag %s:\n%s", file, out)
	return 0
}
