package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// spareMemory is the available memory, in bytes, from which on half of it may hold temporary files; those of all tests need about 2 GiB.
const spareMemory = 8 << 30

// OpenTempDir makes an empty folder for the temporary files of a whole run of tests, on a file system in memory where this process is
// root and the machine has [spareMemory]. Its name is short, for the paths of unix sockets, and the same in each run that is alone on the
// machine, because go test keeps a result only for the same environment. close ends what tests that were killed left behind.
func OpenTempDir(inMemory bool) (dir string, closeDir func() error, err error) {
	for n := 1; n < 10; n++ {
		dir := filepath.Join(os.TempDir(), fmt.Sprintf("ls%d", n))
		lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return "", nil, err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = lock.Close() // another run has this one
			continue
		}
		closeDir := func() error { return errors.Join(sweepTempDir(dir), lock.Close()) }
		err = sweepTempDir(dir) // of a run that was killed
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if err == nil && inMemory {
			err = mountMemory(dir)
		}
		if err == nil {
			err = os.Chmod(dir, 0o777|os.ModeSticky)
		}
		if err != nil {
			return "", nil, errors.Join(err, closeDir())
		}
		return dir, closeDir, nil
	}
	return "", nil, errors.New("nine runs of the tests go on already")
}

// sweepTempDir sweeps the boxes in dir, then dir itself.
func sweepTempDir(dir string) error {
	inside, err := filepath.Glob(filepath.Join(dir, boxes, "*-*"))
	errs := []error{err}
	for _, box := range inside {
		errs = append(errs, sweep(box))
	}
	return errors.Join(append(errs, sweep(dir))...)
}

func mountMemory(dir string) error {
	available, err := availableMemory()
	if err != nil || available < spareMemory || os.Geteuid() != 0 {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", available/2)); err != nil {
		return fmt.Errorf("mount a file system in memory at %s: %w", dir, err)
	}
	return nil
}

// availableMemory is what the kernel can give to programs without swapping, in bytes.
func availableMemory() (int64, error) {
	const file = "/proc/meminfo"
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s has no MemAvailable", file)
}
