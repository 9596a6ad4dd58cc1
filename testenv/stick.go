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
	unix.Sync()      // before that, files have no place
	var others int64 // where they end
	err := filepath.WalkDir(s.Dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && name != file {
			_, end := physical(t, name)
			others = max(others, end)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	begin, tries := int64(-1), []string{}
	for err == nil && begin < others { // a copy fills a gap before others, the next one cannot
		if len(tries) == 16 {
			t.Fatalf("%s does not come behind %d bytes of other files", file, others)
		}
		next := fmt.Sprintf("%s.%d", file, len(tries))
		tries = append(tries, next)
		if err = os.WriteFile(next, data, 0o644); err == nil {
			unix.Sync()
			begin, _ = physical(t, next)
		}
	}
	for i, name := range tries {
		if i == len(tries)-1 {
			err = errors.Join(err, os.Rename(name, file))
		} else {
			err = errors.Join(err, os.Remove(name))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	end := begin + offset
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

// physical is where the content of a file begins and ends on its device, in bytes; 0 and 0: it has none.
func physical(t testing.TB, file string) (begin, end int64) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "filefrag", "-b1", "-v", file).Output()
	if err != nil {
		t.Fatalf("filefrag %s: %v", file, err)
	}
	for line := range bytes.Lines(out) { // "   0:        0.. 8003583:   10486784..  18490367: 8003584: last,eof"
		columns := strings.Split(string(line), ":")
		if len(columns) < 4 {
			continue
		}
		from, to, _ := strings.Cut(columns[2], "..")
		first, errFirst := strconv.ParseInt(strings.TrimSpace(from), 10, 64)
		last, errLast := strconv.ParseInt(strings.TrimSpace(to), 10, 64)
		if errFirst != nil || errLast != nil {
			continue // the heading
		}
		if strings.TrimSpace(columns[0]) == "0" {
			begin = first
		}
		end = max(end, last+1)
	}
	return begin, end
}
