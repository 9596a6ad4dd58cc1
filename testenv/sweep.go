package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// boxVariable marks every process that was started from a box, and its children, so that they can be found again. Its
// value is a folder of the box.
const boxVariable = "LONGSHORE_TESTENV_BOX"

// runcState is where the runc shim keeps the state of containers, whatever containerd's own state folder is.
const runcState = "/run/containerd/runc"

// sweepLimit bounds the wait for killed processes to be gone.
const sweepLimit = 10 * time.Second

// sweep ends every process of a folder of a box with its containers, unmounts what is mounted below it, and removes it.
// It knows only the folder, so it works for the leftovers of other processes too.
func sweep(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var errs []error
	tasks, err := filepath.Glob(filepath.Join(dir, "*", "*", "io.containerd.runtime.v2.task", "*", "*"))
	errs = append(errs, err)
	more, err := filepath.Glob(filepath.Join(dir, "*", "io.containerd.runtime.v2.task", "*", "*"))
	errs = append(errs, err)
	tasks = append(tasks, more...)
	// On a busy machine runc needs a second for each container.
	ctx, cancel := context.WithTimeout(context.Background(), 2*sweepLimit+time.Duration(len(tasks))*time.Second)
	defer cancel()
	errs = append(errs, killMarked(ctx, dir, "containerd")) // first: it would react to what follows
	for _, task := range tasks {
		namespace, id := filepath.Base(filepath.Dir(task)), filepath.Base(task)
		removeContainer(ctx, namespace, id)
	}
	errs = append(errs, killMarked(ctx, dir, ""), removeNetworks(ctx, dir), UnmountBelow(dir))
	for _, task := range tasks {
		_ = os.Remove(filepath.Join(runcState, filepath.Base(filepath.Dir(task)))) // when empty
	}
	if err := errors.Join(errs...); err != nil {
		return err // keep the folder: it shows what is still there
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// removeContainer lets runc kill a container and remove its cgroups. Best effort: killMarked ends what remains.
func removeContainer(ctx context.Context, namespace, id string) {
	root := filepath.Join(runcState, namespace)
	if _, err := os.Stat(filepath.Join(root, id)); err != nil {
		return
	}
	runc, err := cachedProgram("runc")
	if err != nil {
		return
	}
	_ = exec.CommandContext(ctx, runc, "--root", root, "delete", "--force", id).Run()
	removeParents(namespace)
}

// removeParents removes what runc leaves of a namespace, and of those named after it with a number, once their last
// containers are gone: empty folders.
func removeParents(namespace string) {
	for _, dir := range namespaces(namespace) {
		_ = os.Remove(dir)
	}
}

// killMarked kills every process that is marked with dir or a folder below it, and all their descendants; name, when not
// empty, restricts it to the marked processes that run a program of that name, without descendants.
func killMarked(ctx context.Context, dir, name string) error {
	return poll(ctx, func() error {
		pids := markedProcesses(dir, name)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if len(pids) > 0 {
			return fmt.Errorf("processes %v of %s are still there", pids, dir)
		}
		return nil
	})
}

// markedProcesses lists living processes. Zombies do not count: their parent has to reap them.
func markedProcesses(dir, name string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	var queue []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		comm, parent, state := processStat(pid)
		if parent == 0 || state == "Z" {
			continue
		}
		children[parent] = append(children[parent], pid)
		// The kernel keeps 15 bytes of a program's name.
		if name != "" && comm != name[:min(len(name), 15)] {
			continue
		}
		if environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")); err == nil && isMarked(environ, dir) {
			queue = append(queue, pid)
		}
	}
	if name != "" {
		return queue
	}
	var found []int
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		if !slices.Contains(found, pid) {
			found = append(found, pid)
			queue = append(queue, children[pid]...)
		}
	}
	return found
}

func isMarked(environ []byte, dir string) bool {
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		if value, ok := bytes.CutPrefix(kv, []byte(boxVariable+"=")); ok {
			return string(value) == dir || strings.HasPrefix(string(value), dir+"/")
		}
	}
	return false
}

// processStat reads name, parent and state of a process; parent 0 when it is gone.
func processStat(pid int) (comm string, parent int, state string) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, ""
	}
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return "", 0, ""
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 2 {
		return "", 0, ""
	}
	parent, _ = strconv.Atoi(fields[1])
	return string(data[open+1 : end]), parent, fields[0]
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	_, parent, state := processStat(pid)
	return parent != 0 && state != "Z"
}

// mountsBelow lists the mounts at or below dir, in the order of mounting.
func mountsBelow(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	var targets []string
	for _, m := range mounts {
		targets = append(targets, m.Mountpoint)
	}
	return targets, err
}

// UnmountBelow detaches every mount at or below dir, the last first, as a cut of the power does.
func UnmountBelow(dir string) error {
	targets, err := mountsBelow(dir)
	errs := []error{err}
	for _, target := range slices.Backward(targets) {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", target, err))
		}
	}
	return errors.Join(errs...)
}
