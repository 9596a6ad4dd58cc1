// Package process identifies processes by /proc, and runs code on dedicated threads.
package process

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clockTick is the unit of start times in /proc; the kernel fixed it for user space.
	clockTick = 100
	// maxCommandLine bounds what is read of a process.
	maxCommandLine = 4 << 10
)

// RunOf returns a process's parent and its run: the process id with its start time in ticks since boot. No other process has both
// until the next boot. Both are zero when the process does not exist.
func RunOf(pid uint32, proc string) (parent int, run string) {
	id := strconv.FormatUint(uint64(pid), 10)
	stat, err := os.ReadFile(filepath.Join(proc, id, "stat"))
	if err != nil {
		return 0, ""
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the name may contain any character
	if len(f) < 20 {
		return 0, ""
	}
	if parent, err = strconv.Atoi(f[1]); err != nil {
		return 0, ""
	}
	return parent, id + "/" + f[19]
}

// Started returns a process's run, see [RunOf], and when it started: by the current clock, and since boot. The kernel's btime changes
// when the clock is set, so the first is for display only. All are zero when the process does not exist.
func Started(pid uint32, proc string) (run string, at time.Time, began time.Duration) {
	_, run = RunOf(pid, proc)
	_, after, _ := strings.Cut(run, "/")
	ticks, err := strconv.ParseInt(after, 10, 64)
	if err != nil {
		return "", time.Time{}, 0
	}
	began = time.Duration(ticks) * time.Second / clockTick
	kernel, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return run, time.Time{}, began
	}
	_, rest, ok := bytes.Cut(kernel, []byte("\nbtime "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	boot, err := strconv.ParseInt(string(line), 10, 64)
	if !ok || err != nil {
		return run, time.Time{}, began
	}
	return run, time.Unix(boot, 0).Add(began).UTC(), began
}

// CommandLine is the command line of a process; one empty word if it is unknown.
func CommandLine(pid int, proc string) []string {
	f, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return []string{""}
	}
	defer f.Close()
	b := make([]byte, maxCommandLine)
	n, _ := f.Read(b) // nothing read: no arguments
	return strings.Split(strings.TrimRight(string(b[:n]), "\x00"), "\x00")
}

// DetachedThread runs do on a thread of its own, which may enter other namespaces: it never runs anything else and ends with do.
// It is never the process's first thread: that one cannot end and would keep the namespaces, which would be those of the process.
func DetachedThread(do func()) {
	done := make(chan struct{})
	var try func()
	try = func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			defer close(done)
			do()
			return // still locked: the thread ends
		}
		go try() // on another thread, for this one is held
		<-done
		runtime.UnlockOSThread()
	}
	go try()
	<-done
}
