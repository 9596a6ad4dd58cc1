package containerd

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/containerd/tasks"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// terminalCommand, of [Options.Program], outlives this process; its name is fixed. It copies a terminal's output, which the shim cannot append to a file by itself, to the file it names.
const terminalCommand = "terminal-output"

// initMount mounts this program into a container.
func (r *Runtime) initMount() (specs.Mount, error) {
	if why := r.unusable(); why != "" {
		return specs.Mount{}, fault.WithHint(fmt.Errorf("init: %s: %w", why, fault.ErrUnfit), programHint)
	}
	return specs.Mount{Destination: runspec.InitTarget, Type: "bind", Source: r.o.Program, Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"}}, nil
}

func (r *Runtime) needProgram(what string) error {
	if filepath.IsAbs(r.o.Program) {
		return nil
	}
	return fmt.Errorf("%s needs the path of the agent's program, which is not known: %w", what, fault.ErrUnsupported)
}

const programHint = "use the released agent, or build it with CGO_ENABLED=0"

// unusable returns why the agent's program cannot run in containers; "" if it can.
func (r *Runtime) unusable() string {
	if !filepath.IsAbs(r.o.Program) {
		return "the path of the agent's program is not known"
	}
	if r.o.Dynamic { // a container has no libraries for it
		return fmt.Sprintf("the agent's program %s is linked dynamically and cannot run in containers", r.o.Program)
	}
	return ""
}

func (r *Runtime) taskIO(s workload.Service, id string, labels map[string]string) (tasks.IO, error) {
	var file string
	if !s.Log.None {
		var err error
		if file, err = r.logs.Create(replicaOf(labels)); err != nil {
			return tasks.IO{}, err
		}
	}
	out := tasks.IO{Terminal: s.TTY}
	if file != "" {
		out.Stdout = (&url.URL{Scheme: "file", Path: file}).String() // one file for both; errors use another path to it
		if u, err := url.Parse(file); err == nil && u.Path == file {
			out.Stdout = file // a plain path is opened twice, whether it is a pipe or, as here, a file
		}
	}
	if s.TTY { // a process must read it, otherwise the container blocks
		if err := r.needProgram("tty"); err != nil {
			return tasks.IO{}, err
		}
		u := url.URL{Scheme: "binary", Path: r.o.Program, RawQuery: url.Values{terminalCommand: {cmp.Or(file, os.DevNull)}}.Encode()}
		out.Stdout = u.String()
	}
	if !s.Stdin {
		return out, nil
	}
	var err error
	out.Stdin, err = r.stdinPipe(id)
	return out, err
}

// stdinPipe is an input without an end: the shim holds both of its ends open, also after this process has ended.
func (r *Runtime) stdinPipe(id string) (string, error) {
	dir, err := paths.Join(r.o.RunDir, "stdin", id)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil && err != unix.EEXIST {
		return "", fmt.Errorf("make %s: %w", pipe, err)
	}
	return pipe, nil
}

// isRunc reports whether containers of a runtime are runc's.
func isRunc(i containers.RuntimeInfo) bool {
	if i.Name != features.DefaultRuntime || i.Options == nil || i.Options.GetTypeUrl() == "" { // containerd returns a nil pointer for none
		return i.Name == features.DefaultRuntime
	}
	var o runcoptions.Options
	return typeurl.UnmarshalTo(i.Options, &o) == nil && (o.BinaryName == "" || filepath.Base(o.BinaryName) == "runc")
}

// runtimeOf returns the OCI runtime of a service's containers.
func (r *Runtime) runtimeOf(s workload.Service) (containers.RuntimeInfo, error) {
	name, ok := r.o.Runtimes[s.Runtime]
	switch {
	case s.Runtime == "" && !ok, s.Runtime == "runc" && !ok:
		return containers.RuntimeInfo{Name: features.DefaultRuntime}, nil
	case !ok:
		return containers.RuntimeInfo{}, fault.WithHint(fmt.Errorf("this device has no runtime %q: %w", s.Runtime, fault.ErrUnfit),
			"allow it in the agent's configuration: runtime.allowed")
	case !filepath.IsAbs(name):
		return containers.RuntimeInfo{Name: name}, nil
	}
	o, err := typeurl.MarshalAny(&runcoptions.Options{BinaryName: name})
	return containers.RuntimeInfo{Name: features.DefaultRuntime, Options: o}, err
}
