package tasks

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	_ "github.com/containerd/containerd/v2/client" // names the types of specifications
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// outputWait is how long to wait for the output of a process that ended: its children in the container may keep its streams open.
const outputWait = 2 * time.Second

// Exec runs a process in a running container, with the streams, sizes and signals of o, waits for its end and returns its exit code. It
// leaves no process behind. fault.ErrInvalid: there is no such program.
func (t *Tasks) Exec(ctx context.Context, id string, proc *specs.Process, o agent.ExecOptions) (code int, err error) {
	exec := "exec-" + strings.ToLower(rand.Text())
	running, ended := context.WithCancel(ctx)
	defer ended()
	started := make(chan struct{})
	var writing atomic.Int32 // writes to the caller in progress
	streams, err := t.streams(o, exec, &writing, func() {
		select { // before, there is no input to close
		case <-started:
			t.closeStdin(running, id, exec)
		case <-running.Done():
		}
	})
	if err != nil {
		return 0, err
	}
	defer func() {
		streams.Cancel() // streams whose other end is closed
		streams.Wait()
		if cerr := streams.Close(); cerr != nil && err == nil {
			t.log.Warn("clean up after a process in a container", "container", id, "error", cerr)
		}
	}()
	defer t.cleanUpExec(ctx, id, exec)
	if err := t.startExec(ctx, id, exec, proc, streams.Config()); err != nil {
		return 0, programError(err, proc.Args[0])
	}
	close(started)
	unattended := t.forwardControl(ctx, id, exec, o)
	defer unattended()
	if code, err = t.exit(ctx, id, exec, strconv.Quote(proc.Args[0])); err != nil {
		return 0, err
	}
	return code, t.drain(ctx, streams, &writing)
}

// Try runs a process without streams in a running container and waits for its end. An exit code that is not 0 is an error. It leaves no
// process behind.
func (t *Tasks) Try(ctx context.Context, id string, proc *specs.Process) error {
	exec, name := "probe-"+strings.ToLower(rand.Text()), strconv.Quote(proc.Args[0])
	defer t.cleanUpExec(ctx, id, exec)
	if err := t.startExec(ctx, id, exec, proc, cio.Config{}); err != nil {
		return err
	}
	code, err := t.exit(ctx, id, exec, name)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s exited with %d", name, code)
	}
	return err
}

// Exit waits for the end of a task and returns its exit code.
func (t *Tasks) Exit(ctx context.Context, id string) (int, error) { return t.exit(ctx, id, "", "it") }

func (t *Tasks) exit(ctx context.Context, id, exec, name string) (int, error) {
	res, err := t.client.Wait(ctx, &api.WaitRequest{ContainerID: id, ExecID: exec})
	if err != nil {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%s did not end in time: %w", name, ctx.Err())
		}
		return 0, errgrpc.ToNative(err)
	}
	return int(res.ExitStatus), nil
}

// startExec creates a process and starts it. It may exist even when the call failed.
func (t *Tasks) startExec(ctx context.Context, id, exec string, proc *specs.Process, io cio.Config) error {
	spec, err := typeurl.MarshalAnyToProto(proc)
	if err != nil {
		return err
	}
	ctx, begun := deadline.Detached(ctx)
	defer begun()
	if _, err := t.client.Exec(ctx, &api.ExecProcessRequest{
		ContainerID: id, ExecID: exec, Spec: spec, Terminal: io.Terminal, Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr,
	}); err != nil {
		return errgrpc.ToNative(err)
	}
	_, err = t.client.Start(ctx, &api.StartRequest{ContainerID: id, ExecID: exec})
	return errgrpc.ToNative(err)
}

// cleanUpExec is removeExec with its error logged.
func (t *Tasks) cleanUpExec(ctx context.Context, id, exec string) {
	if err := t.removeExec(ctx, id, exec); err != nil {
		t.log.Warn("clean up after a process in a container", "container", id, "error", err)
	}
}

// removeExec removes a process of ours from a container and kills it unless it has ended. An earlier call without an answer may still
// be running, so a process that does not run yet is killed too. A missing process is not an error.
func (t *Tasks) removeExec(ctx context.Context, id, exec string) error {
	ctx, cancel := deadline.ForCleanup(ctx)
	defer cancel()
	got, err := t.client.Get(ctx, &api.GetRequest{ContainerID: id, ExecID: exec})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil || got.Process.Status != task.Status_STOPPED {
		_, err := t.client.Kill(ctx, &api.KillRequest{ContainerID: id, ExecID: exec, Signal: uint32(syscall.SIGKILL)})
		switch err = errgrpc.ToNative(err); {
		case errdefs.IsFailedPrecondition(err): // it was never started: nothing to wait for
		case err != nil && !errdefs.IsNotFound(err):
			return err
		default:
			if _, err := t.client.Wait(ctx, &api.WaitRequest{ContainerID: id, ExecID: exec}); err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				return errgrpc.ToNative(err)
			}
		}
	}
	_, err = t.client.DeleteProcess(ctx, &api.DeleteProcessRequest{ContainerID: id, ExecID: exec})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// programError turns runc's error about a missing program into fault.ErrInvalid.
func programError(err error, name string) error {
	text := err.Error()
	for _, s := range []string{"executable file not found", syscall.ENOENT.Error(), syscall.EACCES.Error(), "is a directory"} {
		if strings.Contains(text, s) && strings.Contains(text, "exec: ") {
			return fmt.Errorf("%q cannot be run in it: %w", name, failure.As(fault.ErrInvalid, err))
		}
	}
	return err
}

// drain waits until all output of a process that ended was copied. Its children may keep the streams open: then they end a little
// later, when the process is deleted. A caller that reads slowly has the time that it needs.
func (t *Tasks) drain(ctx context.Context, streams cio.IO, writing *atomic.Int32) error {
	done := make(chan error, 1)
	go func() { // ends at the latest by the Cancel that follows
		streams.Wait()
		done <- nil
	}()
	for {
		if all, err := waitFor(ctx, outputWait, done); all || err != nil || writing.Load() == 0 {
			return err
		}
	}
}

// streams creates the pipes between a process and its caller. inputEnds is called when the caller's input has ended.
func (t *Tasks) streams(o agent.ExecOptions, exec string, writing *atomic.Int32, inputEnds func()) (cio.IO, error) {
	if err := os.MkdirAll(t.pipes, 0o700); err != nil {
		return nil, err
	}
	out, errOut := shareable(o.Stdout, o.Stderr, writing)
	var in io.Reader
	if o.Stdin != nil {
		in = &notifyEnd{Reader: o.Stdin, end: inputEnds}
	}
	opts := []cio.Opt{cio.WithStreams(in, out, errOut), cio.WithFIFODir(t.pipes)}
	if o.TTY {
		opts = append(opts, cio.WithTerminal)
	}
	return cio.NewCreator(opts...)(exec)
}

// closeStdin has the shim, which also holds the pipe open, close the process's input.
func (t *Tasks) closeStdin(ctx context.Context, id, exec string) {
	_, err := t.client.CloseIO(ctx, &api.CloseIORequest{ContainerID: id, ExecID: exec, Stdin: true})
	if err != nil && ctx.Err() == nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.log.Debug("close the input of a process in a container", "container", id, "error", err)
	}
}

// forwardControl forwards sizes and signals until the returned function is called, which waits for its end.
func (t *Tasks) forwardControl(ctx context.Context, id, exec string, o agent.ExecOptions) func() {
	if !o.TTY {
		o.Resize = nil
	}
	if o.Resize == nil && o.Signals == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for o.Resize != nil || o.Signals != nil {
			var err error
			select {
			case s, ok := <-o.Resize:
				if !ok {
					o.Resize = nil
					continue
				}
				_, err = t.client.ResizePty(ctx, &api.ResizePtyRequest{
					ContainerID: id, ExecID: exec, Width: uint32(s.Width), Height: uint32(s.Height),
				})
			case s, ok := <-o.Signals:
				if !ok {
					o.Signals = nil
					continue
				}
				_, err = t.client.Kill(ctx, &api.KillRequest{ContainerID: id, ExecID: exec, Signal: uint32(s)})
			case <-ctx.Done():
				return
			}
			if err != nil && ctx.Err() == nil {
				t.log.Debug("pass a signal or a size on to a process in a container", "container", id, "error", err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// notifyEnd calls a function when a reader ends.
type notifyEnd struct {
	io.Reader
	end  func()
	once sync.Once
}

func (e *notifyEnd) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		e.once.Do(e.end)
	}
	return n, err
}

// shareable allows both streams to be one writer, or nil.
func shareable(out, errOut io.Writer, writing *atomic.Int32) (io.Writer, io.Writer) {
	mu := &sync.Mutex{}
	wrap := func(w io.Writer) io.Writer {
		if w == nil {
			return io.Discard
		}
		return &locked{mu: mu, w: w, writing: writing}
	}
	return wrap(out), wrap(errOut)
}

type locked struct {
	mu      *sync.Mutex
	w       io.Writer
	writing *atomic.Int32
}

func (l *locked) Write(p []byte) (int, error) {
	l.writing.Add(1)
	defer l.writing.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
