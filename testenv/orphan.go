package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// shimName is what the kernel keeps of the name of containerd's shims.
const shimName = "containerd-shim"

// Adopt makes this process the parent of what the box's processes leave behind, for the rest of its life: a shim outlives
// the containerd that started it. Empty then reaps them, so that nothing of the box is left when it returns. Without it
// that is up to process 1, which may take seconds, or never do it. It is for programs that run one box; a program that
// runs processes of its own at the time of Empty should not.
func (b *Box) Adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt the orphans of the box: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.adopts = true
	return nil
}

// reap waits for children without another waiter: those in noted, and all shims. The ones that live have been
// killed.
func reap(ctx context.Context, noted []int) error {
	return poll(ctx, func() error {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		var left []int
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			name, parent, state := processStat(pid)
			if parent != os.Getpid() || name != shimName && !slices.Contains(noted, pid) {
				continue
			}
			if state == "Z" {
				_, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
			if state != "Z" || err != nil && err != unix.ECHILD {
				left = append(left, pid)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("processes %v have not ended", left)
		}
		return nil
	})
}

// namespaces lists a containerd namespace and those that are named after it with a number, as far as runc and the cgroups
// know them.
func namespaces(namespace string) []string {
	var found []string
	for _, pattern := range []string{runcState, "/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, name := range []string{namespace, namespace + "-*"} {
			dirs, _ := filepath.Glob(filepath.Join(pattern, name)) // only a bad pattern is an error
			found = append(found, dirs...)
		}
	}
	return found
}
