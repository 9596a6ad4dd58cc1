package containerd

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
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

// exec runs a process. A privileged one has the rights of a privileged container, with the container's devices and mounts.
func (r *Runtime) exec(ctx context.Context, id string, o agent.ExecOptions, privileged bool) (code int, err error) {
	if len(o.Argv) == 0 || o.Argv[0] == "" {
		return 0, fmt.Errorf("nothing to run: %w", fault.ErrInvalid)
	}
	ctr, _, err := r.records.Own(ctx, id)
	if err != nil {
		return 0, err
	}
	pid, err := r.tasks.PID(ctx, id)
	if err != nil {
		return 0, err
	}
	var s oci.Spec
	if err := typeurl.UnmarshalTo(ctr.Spec, &s); err != nil {
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
	return r.tasks.Exec(ctx, id, proc, o)
}

// execSpec is the specification of the container's own process with another program.
func execSpec(s *oci.Spec, o agent.ExecOptions, pid uint32) (*specs.Process, error) {
	p := runspec.Process(s, o.Argv)
	p.Terminal = o.TTY
	p.Env = runspec.Environment(p.Env, o.Environment)
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
	user, err := users.LookUp(fmt.Sprintf("/proc/%d/root", pid), o.User, nil)
	if err != nil {
		return nil, err
	}
	p.User = user
	return p, nil
}
