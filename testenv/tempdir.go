package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// spareMemory is the least available memory, in bytes, of a machine that keeps temporary files in memory; they may take half of it.
const spareMemory = 8 << 30

// OpenTempDir makes an empty folder for the temporary files of a whole run of tests, on a file system in memory where this process may
// mount one and the machine has [spareMemory]. Its name is short, for the paths of unix sockets, and the same in each run that is alone on
// the machine, because go test keeps a result only for the same environment. closeDir ends what tests that were killed left behind.
func OpenTempDir(inMemory bool) (dir string, closeDir func() error, err error) {
	var errs []error
	for n := 1; n < 10; n++ { // the others belong to runs that go on, to another user, or have what cannot be removed
		dir := filepath.Join(os.TempDir(), fmt.Sprintf("ls%d", n))
		lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			err = sweepTempDir(dir) // of a run that was killed
		}
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("take %s: %w", dir, err), lock.Close())
			continue
		}
		if inMemory {
			mountMemory(dir)
		}
		closeDir := func() error { return errors.Join(sweepTempDir(dir), lock.Close()) }
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return "", nil, errors.Join(err, closeDir())
		}
		return dir, closeDir, nil
	}
	return "", nil, errors.Join(errs...)
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

// mountMemory mounts a file system in memory, if that can be: the tests run on a disk as well.
func mountMemory(dir string) {
	fields, err := Account("/proc/meminfo")
	if available := int64(fields["MemAvailable"]) << 10; err == nil && available >= spareMemory {
		_ = unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", available/2))
	}
}
