package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/admission"
	"github.com/longshore-dev/longshore/agent/workload"
)

var _ agent.Admitter = (*Runtime)(nil)

// Admit holds projects against each other, the machine and its networks as they are now. It changes nothing.
func (r *Runtime) Admit(ctx context.Context, projects []*workload.Project) error {
	f, err := r.Features(ctx)
	if err != nil {
		return err
	}
	found := admission.Check(r.machine(f), projects)
	lacked, err := r.lacked(projects)
	if err != nil {
		return err
	}
	found = append(found, lacked...)
	if err := r.o.Networks.Admit(ctx, projects); err != nil {
		var more workload.Clashes
		if !errors.As(err, &more) {
			return classify(err)
		}
		found = append(found, more...)
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// machine is what this device has, as it is now: devices come and go.
func (r *Runtime) machine(f Features) admission.Machine {
	m := admission.Machine{
		Cores: runtime.NumCPU(), SwapLimit: f.Controls.Swap, Cgroup: f.CgroupVersion, Controllers: f.Controls.Controllers,
		NoWeights: !f.Controls.Weight,
		Seccomp:   f.Seccomp, AppArmor: f.AppArmor, Privileged: r.o.AllowPrivileged, Runtimes: map[string]bool{"runc": true, runtimeName: true},
		Realtime: f.Controls.Realtime, SELinux: f.SELinux,
		Exists: exists,
		Volume: func(name string) bool {
			dir, err := path(filepath.Join(r.o.DataDir, "shared"), name)
			return err == nil && exists(dir)
		},
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

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
