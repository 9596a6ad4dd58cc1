package agent

import (
	"context"
	"io"
	"syscall"
)

// Executor runs further processes in containers.
type Executor interface {
	// Exec runs a process in a running container and returns its exit code (128 and the signal's number when a signal
	// ended it) once it has ended and all of its output is written. When ctx ends, the process is killed. fault.ErrNotFound:
	// no such container; fault.ErrConflict: it does not run; fault.ErrInvalid: there is no such program or user in it.
	Exec(ctx context.Context, id string, o ExecOptions) (exit int, err error)
}

// ExecOptions say what to run in a container beside its own process.
type ExecOptions struct {
	Argv        []string
	User        string   // "uid[:gid]" or names; "": the container's
	WorkingDir  string   // "": the container's
	Environment []string // "KEY=value", on top of the container's
	TTY         bool     // a terminal of its own; all output is then on Stdout

	Stdin   io.Reader // nil: no input; its end closes the process's input. Exec does not wait for a Read in progress.
	Stdout  io.Writer // nil: dropped
	Stderr  io.Writer // nil: dropped
	Resize  <-chan Size
	Signals <-chan syscall.Signal // passed on to the process; nil: none
}

// Size is that of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// Exec runs a process in a container; see [Executor].
func (a *Agent) Exec(ctx context.Context, id string, o ExecOptions) (int, error) {
	return a.o.Runtime.Exec(ctx, id, o)
}
