package containerd

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/spec"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Exec runs a process in a running container to its end.
func (r *Runtime) Exec(ctx context.Context, id string, o agent.ExecOptions) (int, error) {
	code, err := r.exec(r.in(ctx), id, o, false)
	if err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", id, failure.Classify(err))
	}
	return code, nil
}

// outputWait is how long the output of a process that ended is waited for: what it left behind in the container may hold
// its streams open.
const outputWait = 2 * time.Second

// exec runs a process; a privileged one has what a privileged container has, but the container's devices and mounts.
func (r *Runtime) exec(ctx context.Context, id string, o agent.ExecOptions, privileged bool) (code int, err error) {
	if len(o.Argv) == 0 || o.Argv[0] == "" {
		return 0, fmt.Errorf("nothing to run: %w", fault.ErrInvalid)
	}
	box, _, err := r.own(ctx, id)
	if err != nil {
		return 0, err
	}
	pid, err := r.runningPID(ctx, id)
	if err != nil {
		return 0, err
	}
	var s oci.Spec
	if err := typeurl.UnmarshalTo(box.Spec, &s); err != nil {
		return 0, err
	}
	proc, err := execSpec(&s, o, pid)
	if err != nil {
		return 0, err
	}
	if privileged {
		if err := r.specs.Rules.Empower(proc); err != nil {
			return 0, err
		}
	}
	return r.runExec(ctx, id, "exec-"+strings.ToLower(rand.Text()), proc, o)
}

// runningPID is the first process of a running container.
func (r *Runtime) runningPID(ctx context.Context, id string) (uint32, error) {
	got, err := r.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) || err == nil && got.Process.Status == task.Status_STOPPED {
		return 0, fmt.Errorf("it is not running: %w", fault.ErrConflict)
	}
	if err != nil {
		return 0, err
	}
	if got.Process.Status != task.Status_RUNNING {
		return 0, fmt.Errorf("it is %s: %w", strings.ToLower(got.Process.Status.String()), fault.ErrConflict)
	}
	return got.Process.Pid, nil
}

// execSpec is the container's own process with another program.
func execSpec(s *oci.Spec, o agent.ExecOptions, pid uint32) (*specs.Process, error) {
	p := spec.Process(s, o.Argv)
	p.Terminal = o.TTY
	p.Env = spec.Environment(p.Env, o.Environment)
	if o.TTY && !slices.ContainsFunc(p.Env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	p.Cwd = cmp.Or(o.WorkingDir, p.Cwd)
	if !filepath.IsAbs(p.Cwd) {
		return nil, fmt.Errorf("working directory %q is not an absolute path: %w", p.Cwd, fault.ErrInvalid)
	}
	if o.TTY && o.Resize != nil {
		select {
		case size, ok := <-o.Resize:
			if ok {
				p.ConsoleSize = &specs.Box{Width: uint(size.Width), Height: uint(size.Height)}
			}
		default:
		}
	}
	if o.User == "" {
		return p, nil
	}
	user, err := users.LookUp(fmt.Sprintf("/proc/%d/root", pid), o.User)
	if err != nil {
		return nil, err
	}
	p.User = user
	return p, nil
}

// runExec runs a process with its streams and removes what is left of it.
func (r *Runtime) runExec(ctx context.Context, id, exec string, proc *specs.Process, o agent.ExecOptions) (code int, err error) {
	any, err := typeurl.MarshalAnyToProto(proc)
	if err != nil {
		return 0, err
	}
	streams, err := r.streams(ctx, id, exec, o)
	if err != nil {
		return 0, err
	}
	defer func() {
		streams.Cancel() // what has nobody at its other end
		streams.Wait()
		if cerr := streams.Close(); cerr != nil && err == nil {
			r.log.Warn("clean up after a process in a container", "container", id, "error", cerr)
		}
	}()
	svc, cfg := r.client.TaskService(), streams.Config()
	begin, begun := deadline.Outlast(ctx)
	defer begun()
	defer func() { // also where no answer came: the process may be there all the same
		if cerr := r.endExec(ctx, id, exec); cerr != nil {
			r.log.Warn("clean up after a process in a container", "container", id, "error", cerr)
		}
	}()
	if _, err := svc.Exec(begin, &tasks.ExecProcessRequest{
		ContainerID: id, ExecID: exec, Spec: any, Terminal: cfg.Terminal, Stdin: cfg.Stdin, Stdout: cfg.Stdout, Stderr: cfg.Stderr,
	}); err != nil {
		return 0, errgrpc.ToNative(err)
	}
	if _, err := svc.Start(begin, &tasks.StartRequest{ContainerID: id, ExecID: exec}); err != nil {
		return 0, noProgram(errgrpc.ToNative(err), o.Argv[0])
	}
	unattended := r.attend(ctx, id, exec, o)
	defer unattended()
	res, err := svc.Wait(ctx, &tasks.WaitRequest{ContainerID: id, ExecID: exec})
	if err != nil {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%q did not end in time: %w", o.Argv[0], ctx.Err())
		}
		return 0, errgrpc.ToNative(err)
	}
	return int(res.ExitStatus), r.drain(ctx, streams)
}

// noProgram tells from runc's text that there is nothing to run under a name.
func noProgram(err error, name string) error {
	text := err.Error()
	for _, s := range []string{"executable file not found", syscall.ENOENT.Error(), syscall.EACCES.Error(), "is a directory"} {
		if strings.Contains(text, s) && strings.Contains(text, "exec: ") {
			return fmt.Errorf("%q cannot be run in it: %w", name, failure.As(fault.ErrInvalid, err))
		}
	}
	return err
}

// drain waits until all output of a process that ended was passed on. A process that it left behind in the container may
// hold the streams: they end with the deletion of the process then, after a while.
func (r *Runtime) drain(ctx context.Context, streams cio.IO) error {
	done := make(chan error, 1)
	go func() { // ends at the latest by the Cancel that follows
		streams.Wait()
		done <- nil
	}()
	_, err := within(ctx, outputWait, done)
	return err
}

// streams makes the pipes between a process and its caller.
func (r *Runtime) streams(ctx context.Context, id, exec string, o agent.ExecOptions) (cio.IO, error) {
	dir := filepath.Join(r.o.RunDir, "exec")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	out, errOut := shareable(o.Stdout, o.Stderr)
	var in io.Reader
	if o.Stdin != nil {
		in = &ending{Reader: o.Stdin, end: func() { r.closeStdin(ctx, id, exec) }}
	}
	opts := []cio.Opt{cio.WithStreams(in, out, errOut), cio.WithFIFODir(dir)}
	if o.TTY {
		opts = append(opts, cio.WithTerminal)
	}
	return cio.NewCreator(opts...)(exec)
}

// closeStdin tells the shim, which holds the pipe open as well, that nothing follows.
func (r *Runtime) closeStdin(ctx context.Context, id, exec string) {
	_, err := r.client.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: id, ExecID: exec, Stdin: true})
	if err != nil && ctx.Err() == nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		r.log.Debug("close the input of a process in a container", "container", id, "error", err)
	}
}

// attend passes sizes and signals on until the function is called, which waits for the end of it.
func (r *Runtime) attend(ctx context.Context, id, exec string, o agent.ExecOptions) func() {
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
				_, err = r.client.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{
					ContainerID: id, ExecID: exec, Width: uint32(s.Width), Height: uint32(s.Height),
				})
			case s, ok := <-o.Signals:
				if !ok {
					o.Signals = nil
					continue
				}
				_, err = r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, ExecID: exec, Signal: uint32(s)})
			case <-ctx.Done():
				return
			}
			if err != nil && ctx.Err() == nil {
				r.log.Debug("pass a signal or a size on to a process in a container", "container", id, "error", err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// endExec removes a process of ours from a container, killing it unless it has ended by itself. A call of before whose answer did
// not come may still be under way, so a process that is said not to run yet is killed, too. Gone is no error.
func (r *Runtime) endExec(ctx context.Context, id, exec string) error {
	ctx, cancel := deadline.After(ctx)
	defer cancel()
	svc := r.client.TaskService()
	got, err := svc.Get(ctx, &tasks.GetRequest{ContainerID: id, ExecID: exec})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil || got.Process.Status != task.Status_STOPPED {
		_, err := svc.Kill(ctx, &tasks.KillRequest{ContainerID: id, ExecID: exec, Signal: uint32(syscall.SIGKILL)})
		switch err = errgrpc.ToNative(err); {
		case errdefs.IsFailedPrecondition(err): // it was never started: nothing to wait for
		case err != nil && !errdefs.IsNotFound(err):
			return err
		default:
			if _, err := svc.Wait(ctx, &tasks.WaitRequest{ContainerID: id, ExecID: exec}); err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				return errgrpc.ToNative(err)
			}
		}
	}
	_, err = svc.DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: id, ExecID: exec})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// ending tells once that a reader has nothing more.
type ending struct {
	io.Reader
	end  func()
	once sync.Once
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		e.once.Do(e.end)
	}
	return n, err
}

// shareable lets both streams be one writer, and nil.
func shareable(out, errOut io.Writer) (io.Writer, io.Writer) {
	mu := &sync.Mutex{}
	wrap := func(w io.Writer) io.Writer {
		if w == nil {
			return io.Discard
		}
		return &locked{mu: mu, w: w}
	}
	return wrap(out), wrap(errOut)
}

type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// tail keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// maxTail is how much of a process's output an error shows.
const maxTail = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if n := len(t.kept) - maxTail; n > 0 {
		t.kept = append(t.kept[:0], t.kept[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return endOf(string(t.kept))
}

// endOf is the last lines of some output, on one line for an error.
func endOf(s string) string {
	lines := strings.FieldsFunc(s, func(c rune) bool { return c == '\n' || c == '\r' })
	return strings.Join(lines[max(0, len(lines)-maxTailLines):], " | ")
}

// maxTailLines is how many lines of a process's output an error shows.
const maxTailLines = 5
