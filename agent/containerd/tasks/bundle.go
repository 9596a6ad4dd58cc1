package tasks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/artifacts/delay"
)

const (
	// bundleDir is where containerd keeps a folder for each task, its bundle, by namespace and container.
	bundleDir = "io.containerd.runtime.v2.task"
	// runcRoot is where the shims let runc keep its state, by namespace and container.
	runcRoot = "/run/containerd/runc"
	// orphanPause is the time between two checks of a process that was killed.
	orphanPause = 20 * time.Millisecond
)

// bundleIn is the path of the bundle that containerd could not create because it exists, "" for any other error. The path is known
// from this error only.
func (t *Tasks) bundleIn(err error, id string) string {
	_, text, _ := strings.Cut(err.Error(), "mkdir /")
	path, _, ok := strings.Cut("/"+text, ": "+syscall.EEXIST.Error())
	if !ok || filepath.Clean(path) != path || !strings.HasSuffix(path, filepath.Join("/", bundleDir, t.namespace, id)) {
		return ""
	}
	return path
}

// hidden is the name to which containerd renames a bundle before it removes it. A containerd that is killed then leaves it there,
// and no later one can delete or create a bundle of that container, because the name is taken.
func hidden(bundle string) string {
	return filepath.Join(filepath.Dir(bundle), "."+filepath.Base(bundle))
}

// halfDeleted reports whether a bundle is the rest of an interrupted deletion: its root file system is unmounted by then.
func halfDeleted(bundle string) bool {
	_, err := os.Lstat(hidden(bundle))
	_, rootErr := os.Lstat(filepath.Join(bundle, "rootfs"))
	return err == nil && errors.Is(rootErr, fs.ErrNotExist)
}

// removeBundle removes the bundle of an ended task that containerd does not list, in the same way as containerd: it kills the process that
// has lost its shim, unmounts and removes. It returns an error while a process may still use the bundle.
func (t *Tasks) removeBundle(ctx context.Context, id, bundle string) error {
	if _, err := t.Status(ctx, id); !errdefs.IsNotFound(err) {
		return errors.Join(fmt.Errorf("%s belongs to an existing task", bundle), err)
	}
	if pid := shimAction(t.namespace, id, "/proc"); pid != 0 {
		return fmt.Errorf("process %d uses %s", pid, bundle)
	}
	if err := t.endOrphan(ctx, id, bundle); err != nil {
		return err
	}
	state := filepath.Join(runcRoot, t.namespace, id)
	if err := paths.RemoveFlat(state); err != nil {
		return err
	}
	rootfs := filepath.Join(bundle, "rootfs")
	if err := mount.UnmountRecursive(rootfs, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", rootfs, err)
	}
	for _, dir := range []string{hidden(bundle), bundle} {
		if err := paths.RemoveFlat(dir); err != nil {
			return err
		}
	}
	t.log.Warn("removed the bundle that an earlier task left", "container", id, "folder", bundle)
	return nil
}

// endOrphan kills a container's first process that outlived its shim. A process whose shim runs is not changed.
func (t *Tasks) endOrphan(ctx context.Context, id, bundle string) error {
	text, err := os.ReadFile(filepath.Join(bundle, "init.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31)
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(bundle, "init.pid"), err)
	}
	group := filepath.Join(t.namespace, id)
	shim, run := process.RunOf(uint32(pid), "/proc")
	if run == "" || !inGroup(int(pid), group, "/proc") {
		return nil // it has ended, or its number was reused
	}
	if isShim(process.CommandLine(shim, "/proc")) {
		return fmt.Errorf("process %d of container %s has its shim %d, which containerd does not know", pid, id, shim)
	}
	if err := unix.Kill(int(pid), unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d, which has lost its shim: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, KillWait)
	defer cancel()
	for {
		if _, now := process.RunOf(uint32(pid), "/proc"); now != run || !inGroup(int(pid), group, "/proc") || process.CommandLine(int(pid), "/proc")[0] == "" {
			return nil // a zombie has no command line
		}
		if err := delay.For(ctx, orphanPause); err != nil {
			return fmt.Errorf("process %d, which has lost its shim, does not end: %w", pid, err)
		}
	}
}

// inGroup reports whether a process is in a container's control group, or below it.
func inGroup(pid int, group, proc string) bool {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	return err == nil && (strings.Contains(string(text), "/"+group+"\n") || strings.Contains(string(text), "/"+group+"/"))
}

// shimAction is a process that is starting or deleting a shim of a container, 0: none. Shims themselves do not count: they may serve
// several containers.
func shimAction(namespace, id, proc string) int {
	for _, pid := range processes(proc) {
		args := process.CommandLine(pid, proc)
		if isShim(args) && (args[len(args)-1] == "start" || args[len(args)-1] == "delete") &&
			hasFlag(args, "-namespace", namespace) && hasFlag(args, "-id", id) {
			return pid
		}
	}
	return 0
}

func isShim(args []string) bool {
	return len(args) > 1 && strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-")
}

func hasFlag(args []string, flag, value string) bool {
	for n := range args[1:] {
		if args[n] == flag && args[n+1] == value {
			return true
		}
	}
	return false
}
