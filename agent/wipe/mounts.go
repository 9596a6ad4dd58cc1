package wipe

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// unmount detaches everything that is mounted below a directory. Where containerd has lost a container, the agent's mount of a path of
// the device, or of a server, may have stayed: what is deleted below the directory next would be deleted there.
func unmount(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // as the table has it
	if err != nil {
		return gone(err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range slices.Backward(mounts) { // a mount on another one comes later
		if m.Mountpoint == dir {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}
