package volumes

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/process"
)

// ShareShm mounts the /dev/shm of a running process at a path that another container can mount. A mount cannot be taken from
// another mount namespace by its path, so it is cloned from inside. It returns the path; "": the process
// has none.
func (r *Store) ShareShm(id string, pid uint32) (string, error) {
	dir, err := paths.Join(r.o.RunDir, "shm", id)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := detach(dir); err != nil {
		return "", err
	}
	tree, err := cloneMount(pid, "/dev/shm")
	if errors.Is(err, unix.ENOENT) {
		return "", nil // it has none
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", fmt.Errorf("mount %s: %w", dir, err)
	}
	return dir, nil
}

// cloneMount opens a copy of a mount as a process sees it. The caller closes it.
func cloneMount(pid uint32, target string) (int, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return -1, err
	}
	defer ns.Close()
	fd := -1
	process.DetachedThread(func() {
		fd, err = func() (int, error) {
			if err := unix.Unshare(unix.CLONE_FS); err != nil { // a thread that shares its root cannot enter
				return -1, err
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return -1, fmt.Errorf("enter the mounts of process %d: %w", pid, err)
			}
			return unix.OpenTree(unix.AT_FDCWD, target, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		}()
	})
	return fd, err
}

// detach unmounts all mounts at a path of ours.
func detach(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // no mount, or nothing at all
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
}
