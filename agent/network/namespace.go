package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/bounded"
)

const (
	nsfsMagic     = 0x6e736673 // linux/magic.h NSFS_MAGIC
	threadNetNS   = "/proc/thread-self/ns/net"
	maxSysctl     = 64
	maxMountStack = 8 // a namespace is mounted once; crashes may have left more
)

// inThread runs f on a thread of its own, which f may move to another network namespace. The thread returns to the old
// namespace, or ends with its goroutine.
func inThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open(threadNetNS)
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		err = f()
		if backErr := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); backErr == nil {
			runtime.UnlockOSThread() // else the runtime ends the thread when this goroutine returns
		}
		done <- err
	}()
	return <-done
}

// inNamespace runs f in the network namespace that fd is open on.
func inNamespace(fd int, f func() error) error {
	return inThread(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// pinned reports whether a network namespace is mounted at path.
func pinned(path string) (bool, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the namespace %s: %w", path, err)
	}
	return st.Type == nsfsMagic, nil
}

// pin makes a new network namespace and mounts it at path. It is configured before it can be seen, so a pinned namespace
// is always complete.
func pin(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the namespace %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make the namespace %s: %w", path, err)
	}
	f.Close()
	err = inThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		// IPv6 is not routed, and neighbours could bypass the host with it; so they could by ICMP redirects.
		for _, s := range [][2]string{
			{"net/ipv6/conf/default/disable_ipv6", "1"},
			{"net/ipv4/conf/all/accept_redirects", "0"},
			{"net/ipv4/conf/default/accept_redirects", "0"},
		} {
			if err := setSysctl(s[0], s[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return unix.Mount(threadNetNS, path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return fmt.Errorf("make the namespace %s: %w", path, err)
	}
	return nil
}

// unpin unmounts and removes path. A missing one is not an error. The namespace itself ends when its last process does.
func unpin(path string) error {
	if err := unmount(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the namespace %s: %w", path, err)
	}
	return nil
}

// unmount unmounts path. It is not an error if nothing is mounted there or path does not exist.
func unmount(path string) error {
	for range maxMountStack {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return nil
}

// sysctl reads a kernel setting of the calling thread's network namespace.
func sysctl(name string) (string, error) {
	b, err := bounded.File(os.Open, filepath.Join("/proc/sys", name), maxSysctl)
	if err != nil {
		return "", fmt.Errorf("read the setting %s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// setSysctl writes a kernel setting of the calling thread's network namespace, when it differs.
func setSysctl(name, value string) error {
	old, err := sysctl(name)
	if err != nil || old == value {
		return err
	}
	if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", name, value, err)
	}
	return nil
}
