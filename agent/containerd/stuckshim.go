package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stuckAfter is how long containerd may take to make a task before its shims are looked at, and between two looks.
	stuckAfter = 3 * time.Second
	// stuckEvery is the time between two looks when nobody waits: such a shim costs memory only.
	stuckEvery = 30 * time.Second
	// maxShimFiles bounds how many open files of a shim are looked at: a few, and some for each of its containers.
	maxShimFiles = 4096
)

// errStuckShim says that a task could not be made since its shim had to be killed.
var errStuckShim = errors.New("its shim was stuck and is ended")

// A shim opens its log, a named pipe, before anything else. containerd has opened the other end by then, and closes it when the
// client that asked goes away: an agent that was killed. A shim that comes to its log after that waits for a reader for ever,
// with the socket of its group open. containerd finds the socket for every later container of the group, connects, and waits
// without an end for an answer. Such a shim has never served anybody, so it can be killed.

// endStuckShims kills the shims of our namespace that wait for ever to open their log, and tells how many.
func (r *Runtime) endStuckShims() (ended int) {
	files, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(f))
		if err != nil || !isServing(commandLine(pid, "/proc"), r.o.Namespace) {
			continue
		}
		switch killed, err := killStuckShim(pid, r.o.Namespace); {
		case err != nil:
			r.log.Warn("a shim that will never answer is in the way", "process", pid, "error", err)
		case killed:
			ended++
			r.stuckShims.Add(1)
			r.log.Warn("a shim that would never have answered is ended", "process", pid)
		}
	}
	return ended
}

// lookAfterShims ends stuck and spare shims until ctx ends: those that the agent before this one left, and those whose group has
// found another one since.
func (r *Runtime) lookAfterShims(ctx context.Context) {
	var spare map[int]string
	for pause := stuckAfter; rest(ctx, pause) == nil; pause = stuckEvery {
		r.endStuckShims()
		spare = r.endSpareShims(spare)
	}
}

// isServing tells whether a command line is that of a shim of a namespace, and not of one of its short-lived actions.
func isServing(args []string, namespace string) bool {
	last := args[len(args)-1]
	return isShim(args) && last != "start" && last != "delete" && follows(args, "-namespace", namespace)
}

// killStuckShim kills a shim if it is one that waits for ever.
func killStuckShim(pid int, namespace string) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0) // first, so that what is looked at is what is killed
	if err != nil {
		return false, nil // gone
	}
	defer func() { _ = unix.Close(fd) }()
	if !isServing(commandLine(pid, "/proc"), namespace) || !waitsForLog(pid, namespace, "/proc") {
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill process %d: %w", pid, err)
	}
	return true, nil
}

// waitsForLog tells whether a shim holds the place of a log that is deleted, and has not come to open it: what it opens then has
// the same name.
func waitsForLog(pid int, namespace, proc string) bool {
	dir := filepath.Join(proc, strconv.Itoa(pid), "fd")
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	names, err := d.Readdirnames(maxShimFiles)
	_ = d.Close() // it was only read
	if err != nil {
		return false
	}
	room := "/" + filepath.Join(bundleRoom, namespace) + "/"
	held := false
	for _, name := range names {
		to, err := os.Readlink(filepath.Join(dir, name))
		if err != nil || !strings.Contains(to, room) || !strings.HasSuffix(to, "/log (deleted)") {
			continue
		}
		flags, err := openFlags(filepath.Join(proc, strconv.Itoa(pid), "fdinfo", name))
		if err != nil || flags&unix.O_PATH == 0 {
			return false // it has opened it, or nobody can tell
		}
		held = true
	}
	return held
}

// openFlags are those that a file of a process is open with.
func openFlags(fdinfo string) (int64, error) {
	text, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if octal, ok := strings.CutPrefix(line, "flags:"); ok {
			return strconv.ParseInt(strings.TrimSpace(octal), 8, 64)
		}
	}
	return 0, fmt.Errorf("%s has no flags", fdinfo)
}

// lookingAtShims makes a task, and looks for stuck shims while containerd does not answer. Who of several that look at a time ends
// a shim says nothing about whose it was.
func (r *Runtime) lookingAtShims(do func() error) error {
	var wg sync.WaitGroup
	before := r.stuckShims.Load()
	done := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(stuckAfter)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.endStuckShims()
			case <-done:
				return
			}
		}
	})
	err := do()
	close(done)
	wg.Wait()
	if err != nil && r.stuckShims.Load() > before {
		return fmt.Errorf("%w: %w", errStuckShim, err)
	}
	return err
}
