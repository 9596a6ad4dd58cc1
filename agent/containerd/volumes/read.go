package volumes

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ReadFile reads a regular file at the top of a volume, and when it was written. Its content is the application's: links are not followed,
// and more than limit bytes are [fault.ErrTooLarge]. fault.ErrNotFound: there is no volume, or no file.
func (r *Store) ReadFile(project string, v workload.Volume, name string, limit int64) (data []byte, modified time.Time, err error) {
	volume := cmp.Or(v.Shared, v.Name)
	dir, err := r.rootOf(project, v)
	if err != nil {
		return nil, time.Time{}, err
	}
	root, err := os.OpenRoot(filepath.Join(dir, volumeData))
	if err != nil {
		return nil, time.Time{}, missing(volume, name, err)
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, time.Time{}, missing(volume, name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, missing(volume, name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, info.ModTime(), fmt.Errorf("read %s of volume %s: it is no regular file: %w", name, volume, fault.ErrInvalid)
	}
	if data, err = bounded.Read(f, limit); err != nil {
		return nil, info.ModTime(), missing(volume, name, err)
	}
	return data, info.ModTime(), nil
}

func missing(volume, name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("read %s of volume %s: %w", name, volume, fault.ErrNotFound)
	}
	return fmt.Errorf("read %s of volume %s: %w", name, volume, failure.Classify(err))
}
