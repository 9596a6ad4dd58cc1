package agent

import (
	"context"
	"io"
	"syscall"
)

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

// Exec runs a process in a container; see [Runtime].
func (a *Agent) Exec(ctx context.Context, id string, o ExecOptions) (int, error) {
	return a.o.Runtime.Exec(ctx, id, o)
}
