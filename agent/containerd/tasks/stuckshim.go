package tasks

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/process"
)

// endStuckShims kills the shims of the runtime's namespace that will never serve a container, and reports whether there were any.
// It is called when containerd did not create a task in time.
//
// A shim first opens its log, a named pipe that containerd reads. When the client of the call was killed meanwhile, containerd has
// closed the pipe: the shim waits forever for a reader and keeps the socket of its project. For each later container of the
// project containerd finds the socket, connects, and waits forever for an answer.
func (t *Tasks) endStuckShims() (ended bool) {
	parents := map[int]bool{}
	var shims []int
	for _, pid := range processes("/proc") {
		parent, _ := process.RunOf(uint32(pid), "/proc")
		parents[parent] = true
		if isServing(process.CommandLine(pid, "/proc"), t.namespace) {
			shims = append(shims, pid)
		}
	}
	for _, pid := range shims {
		if parents[pid] { // it has a container: it may wait for the client of an exec
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0) // first, so that the process that is checked is the one that is killed
		if err != nil {
			continue // it has ended
		}
		if isServing(process.CommandLine(pid, "/proc"), t.namespace) && opensPipe(pid) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			ended = true
			t.log.Warn("killed a shim that never answers", "process", pid)
		}
		_ = unix.Close(fd) // nothing is written through it
	}
	return ended
}

// isServing reports whether a command line is that of a shim of a namespace, and not of one of its short-lived actions.
func isServing(args []string, namespace string) bool {
	return isShim(args) && !slices.Contains([]string{"start", "delete"}, args[len(args)-1]) && hasFlag(args, "-namespace", namespace)
}

// opensPipe reports whether a thread of a process waits for the other end of a named pipe that it opens.
func opensPipe(pid int) bool {
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "[0-9]*", "wchan"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(files, func(file string) bool {
		at, err := os.ReadFile(file) // the name of a function of the kernel
		return err == nil && strings.HasPrefix(string(at), "wait_for_partner")
	})
}
