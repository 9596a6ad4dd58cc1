package containerd

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/longshore-dev/longshore/agent/admission"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Admit checks projects against each other, the machine and its networks as they are now. It changes nothing.
func (r *Runtime) Admit(ctx context.Context, projects []*workload.Project) error {
	f, err := r.features.Find(r.in(ctx))
	if errors.Is(err, fault.ErrUnfit) {
		return unfitForAll(projects, err)
	}
	if err != nil {
		return fmt.Errorf("ask containerd what it can do: %w", err)
	}
	guard, err := r.guard.Now(r.in(ctx))
	if err != nil {
		return fmt.Errorf("ask containerd where it keeps its files: %w", err)
	}
	found := admission.Check(r.machine(f, guard), projects)
	found = append(found, f.Unmapped(projects)...)
	lacked, err := r.specs.CDI.Lacked(projects)
	if err != nil {
		return err
	}
	found = append(found, lacked...)
	if err := r.o.Networks.Admit(ctx, projects); err != nil {
		var more workload.Conflicts
		if !errors.As(err, &more) {
			return failure.Classify(err)
		}
		found = append(found, more...)
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// unfitForAll returns the same conflict for every project: containerd itself is not usable.
func unfitForAll(projects []*workload.Project, err error) error {
	var all workload.Conflicts
	message := failure.Message(err)
	for _, p := range projects {
		if len(p.Services) > 0 {
			c := workload.NewConflict(p, p.Services[0].Name, "", fault.ErrUnfit, message, fault.Hint(err))
			c.Service, c.Path = "", "services"
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return err
	}
	return all
}

// machine describes the current state of this device: device nodes are added and removed.
func (r *Runtime) machine(f features.Features, guard workload.Guard) admission.Machine {
	m := admission.Machine{
		Cores: runtime.NumCPU(), Cgroup: f.CgroupVersion, Lacks: f.Controls.Lacks,
		Seccomp: f.Seccomp, AppArmor: f.AppArmor, Privileged: r.o.AllowPrivileged, Guard: guard, Runtimes: map[string]bool{"runc": true, features.DefaultRuntime: true},
		SELinux:   f.SELinux,
		NoProgram: r.unusable(), ProgramHint: programHint,
		Exists: paths.Exists,
		Volume: r.volumes.HasShared,
	}
	for name := range r.o.Runtimes {
		m.Runtimes[name] = true
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = int64(uint64(info.Totalram) * uint64(info.Unit)) // 32 bits wide on some machines
	}
	return m
}
