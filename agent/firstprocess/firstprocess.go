// Package firstprocess is the part of the agent's program that runs in processes of their own, which outlive the agent: the first
// process of a container (Compose "init"), and the copier of a terminal's output.
//
// It must run alone in a process: it handles all signals and all children. TestInit and TestCopy check that.
package firstprocess

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit codes when the program has none, as shells and container engines have them.
const (
	exitNotFound = 127
	exitNotRun   = 126
	exitSignal   = 128 // and the signal's number
)

// Init runs argv as a child, forwards every signal to it, reaps orphaned processes, and returns the child's exit code once it has
// ended. environment is the child's.
func Init(argv, environment []string) (int, error) {
	// Orphans come to this process also when it is not the first one of its namespace.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return exitNotRun, fmt.Errorf("take up orphans: %w", err)
	}
	if len(argv) == 0 {
		return exitNotRun, errors.New("nothing to run")
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals) // before the child: none is lost
	program, err := lookUp(argv[0], environment)
	if err != nil {
		return exitNotFound, err
	}
	child, err := os.StartProcess(program, argv, &os.ProcAttr{
		Env: environment, Files: []*os.File{os.NewFile(0, "stdin"), os.NewFile(1, "stdout"), os.NewFile(2, "stderr")},
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: terminal(), Ctty: 0},
	})
	if err != nil {
		return exitNotRun, fmt.Errorf("run %s: %w", argv[0], err)
	}
	for s := range signals {
		switch s {
		case syscall.SIGURG, syscall.SIGTTIN, syscall.SIGTTOU: // the Go runtime's own, and the terminal's about this process
		case syscall.SIGCHLD:
			if code, ended := reap(child.Pid); ended {
				return code, nil
			}
		default:
			if n, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(child.Pid, n) // it may have ended: then SIGCHLD is the next signal
			}
		}
	}
	return exitNotRun, errors.New("signals ended")
}

// reap reaps every process that has ended. ended: the child is one of them.
func reap(child int) (code int, ended bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return code, ended
		}
		if pid != child {
			continue
		}
		ended = true
		if code = status.ExitStatus(); status.Signaled() {
			code = exitSignal + int(status.Signal())
		}
	}
}

// terminal reports whether standard input is a terminal that this process leads.
func terminal() bool {
	pgrp, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// lookUp finds a program as execvp does, in the child's PATH.
func lookUp(name string, environment []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range environment {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		dir = cmp.Or(dir, ".")
		file := strings.TrimRight(dir, "/") + "/" + name
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("%q: executable file not found in $PATH", name)
}
