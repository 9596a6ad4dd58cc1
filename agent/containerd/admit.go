package containerd

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/admission"
	"github.com/longshore-dev/longshore/agent/workload"
)

var _ agent.Admitter = (*Runtime)(nil)

// cgroupRoot is where both versions of control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// Admit holds projects against each other and against the machine as it is now. It changes nothing.
func (r *Runtime) Admit(ctx context.Context, projects []*workload.Project) error {
	f, err := r.Features(ctx)
	if err != nil {
		return err
	}
	if found := admission.Check(r.machine(f), projects); len(found) > 0 {
		return found
	}
	return nil
}

// machine is what this device has, as it is now: devices come and go.
func (r *Runtime) machine(f Features) admission.Machine {
	m := admission.Machine{
		Cores: runtime.NumCPU(), SwapLimit: limitsSwap(f.CgroupVersion), Cgroup: f.CgroupVersion, Controllers: controllers(f.CgroupVersion),
		Seccomp: f.Seccomp, AppArmor: f.AppArmor, Privileged: r.o.AllowPrivileged, Runtimes: map[string]bool{"runc": true, runtimeName: true},
		Realtime: exists(filepath.Join(cgroupRoot, "cpu", "cpu.rt_runtime_us")), SELinux: exists("/sys/fs/selinux/enforce"),
		Exists: exists,
		Volume: func(name string) bool {
			dir, err := path(filepath.Join(r.o.DataDir, "shared"), name)
			return err == nil && exists(dir)
		},
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

// controllers are those that containers can be limited with, by the names of version 2.
func controllers(version int) map[string]bool {
	out := map[string]bool{}
	if version == 2 {
		data, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
		if err != nil {
			return out
		}
		for name := range strings.FieldsSeq(string(data)) {
			out[name] = true
		}
		return out
	}
	for name, dir := range map[string]string{
		admission.ControllerCPU: "cpu", admission.ControllerCPUSet: "cpuset", admission.ControllerMemory: "memory",
		admission.ControllerPIDs: "pids", admission.ControllerIO: "blkio",
	} {
		if exists(filepath.Join(cgroupRoot, dir)) {
			out[name] = true
		}
	}
	return out
}
