// Package confinement sets the permissions of a container: capabilities, system calls, AppArmor, SELinux, and how to disable them.
package confinement

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/apparmor"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// unconfined disables a protection.
const unconfined = "unconfined"

// AllowHint is the hint for a rejected privilege.
const AllowHint = "the device's owner can allow it with runtime.allowPrivileged in the agent's configuration"

// Rules are permissions by the owner of the device; the zero value is strict.
type Rules struct {
	AllowPrivileged bool // run services with the privileges of workload.Privileges; rejected otherwise
	AllowNoSeccomp  bool // run containers without a system call filter if runc does not support one
}

// Check returns fault.ErrUnfit if there is no system call filter and the device's owner has not allowed that.
func (r Rules) Check(f features.Features, s workload.Service) error {
	asks := s.Security != nil && (s.Security.Privileged || s.Security.Seccomp == unconfined)
	if f.Seccomp || r.AllowNoSeccomp || asks {
		return nil
	}
	return fault.WithHint(fmt.Errorf("the OCI runtime has no seccomp support: %w", fault.ErrUnfit),
		"install a runc built with seccomp, or allow containers without it in the agent's configuration")
}

// mayEmpower rejects privileges that the device's owner has not allowed.
func (r Rules) mayEmpower() error {
	if r.AllowPrivileged {
		return nil
	}
	return fault.WithHint(fmt.Errorf("this device does not allow privileged containers: %w", fault.ErrRejected), AllowHint)
}

// Empower gives a process all capabilities. fault.ErrRejected: the device's owner has not allowed it.
func (r Rules) Empower(p *specs.Process) error {
	if err := r.mayEmpower(); err != nil {
		return err
	}
	all, err := ownCapabilities()
	if err != nil {
		return err
	}
	p.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	p.ApparmorProfile, p.SelinuxLabel, p.NoNewPrivileges = "", "", false
	return nil
}

// ownCapabilities are the capabilities of this process.
func ownCapabilities() ([]string, error) {
	all, err := cap.Current()
	if err != nil {
		return nil, fmt.Errorf("read the capabilities of this process: %w", err)
	}
	return all, nil
}

// Confine sets the permissions of a container. It must come after everything that changes capabilities.
func (r Rules) Confine(s workload.Service, f features.Features) oci.SpecOpts {
	want := s.Security
	if want == nil {
		want = &workload.Security{}
	}
	return func(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec) error {
		if want.Privileged {
			return r.privileged(ctx, client, c, spec)
		}
		spec.Process.NoNewPrivileges = want.NoNewPrivileges
		caps, err := capabilities(spec.Process.Capabilities.Bounding, want.CapAdd, want.CapDrop)
		if err != nil {
			return err
		}
		spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		if want.Unmasked {
			spec.Linux.MaskedPaths, spec.Linux.ReadonlyPaths = nil, nil
		}
		if err := selinux(spec, want.Label, f); err != nil {
			return err
		}
		if err := r.appArmor(spec, want.AppArmor, f); err != nil {
			return err
		}
		return r.systemCalls(ctx, client, c, spec, want.Seccomp, f)
	}
}

// privileged gives a container the device: all capabilities and devices, no filters, /sys and control groups to write.
func (r Rules) privileged(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec) error {
	if err := r.mayEmpower(); err != nil {
		return err
	}
	if err := oci.Compose(oci.WithPrivileged, oci.WithHostDevices, oci.WithAllDevicesAllowed, oci.WithNewPrivileges)(ctx, client, c, spec); err != nil {
		return err
	}
	return r.Empower(spec.Process)
}

// capabilities adds to and removes from the default capabilities; "ALL" means all existing ones.
func capabilities(base, add, drop []string) ([]string, error) {
	all, err := ownCapabilities()
	if err != nil {
		return nil, err
	}
	out := slices.Clone(base)
	if slices.Contains(drop, "ALL") {
		out = nil
	}
	if slices.Contains(add, "ALL") {
		out = slices.Clone(all)
	}
	for _, n := range add {
		name := "CAP_" + n
		if n != "ALL" && !slices.Contains(all, name) {
			return nil, fmt.Errorf("capability %s is not this device's to give: %w", name, fault.ErrUnfit)
		}
		if n != "ALL" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return slices.DeleteFunc(out, func(name string) bool {
		n := strings.TrimPrefix(name, "CAP_")
		return slices.Contains(drop, n) && !slices.Contains(add, n) || !slices.Contains(all, name)
	}), nil
}

// systemCalls sets the filter. Its default depends on the capabilities.
func (r Rules) systemCalls(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec, profile string, f features.Features) error {
	switch {
	case profile == unconfined:
		spec.Linux.Seccomp = nil
		return nil
	case profile == "" && !f.Seccomp: // allowed by the device's owner: see Check
		return nil
	case profile == "":
		return oci.Compose(seccomp.WithDefaultProfile(), withoutX32)(ctx, client, c, spec)
	case !f.Seccomp:
		return fmt.Errorf("the OCI runtime cannot filter system calls: %w", fault.ErrUnfit)
	}
	filter, err := parseSeccomp([]byte(profile), spec.Process.Capabilities.Bounding, runtime.GOARCH)
	if err != nil {
		return err
	}
	spec.Linux.Seccomp = filter
	return nil
}

// withoutX32 removes an ABI that kernels do not have from the system call filter: its rules cost 30 ms of each start. 32-bit
// programs of the machine's own family still work.
func withoutX32(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	f := s.Linux.Seccomp
	f.Architectures = slices.DeleteFunc(f.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	return nil
}

func (r Rules) appArmor(spec *oci.Spec, profile string, f features.Features) error {
	switch {
	case profile == unconfined, profile == "" && !f.AppArmor:
		return nil
	case profile == "":
		spec.Process.ApparmorProfile = features.DefaultProfile
		return nil
	case !f.AppArmor:
		return fmt.Errorf("this device has no AppArmor for profile %q: %w", profile, fault.ErrUnfit)
	}
	mode, err := apparmor.Mode(profile)
	switch {
	case err != nil:
		return err
	case mode == "":
		return fault.WithHint(fmt.Errorf("AppArmor has no profile %q on this device: %w", profile, fault.ErrUnfit), "load it with apparmor_parser")
	case mode != "enforce" && !r.AllowPrivileged: // some profiles confine nothing
		return fault.WithHint(fmt.Errorf("this device does not allow AppArmor's profile %q, which is not enforced: %w", profile, fault.ErrRejected), AllowHint)
	}
	spec.Process.ApparmorProfile = profile
	return nil
}

// Labels of SELinux policies for containers and for files that they may write.
var (
	processLabel = [4]string{"system_u", "system_r", "container_t", "s0"}
	fileLabel    = [4]string{"system_u", "object_r", "container_file_t", "s0"}
)

// selinux sets labels where a service names parts of them: "type:spc_t", "level:s0:c1,c2", "disable".
func selinux(spec *oci.Spec, options []string, f features.Features) error {
	if len(options) == 0 || len(options) == 1 && options[0] == "disable" {
		return nil
	}
	if !f.SELinux {
		return fmt.Errorf("this device has no SELinux for label %s: %w", strings.Join(options, ", "), fault.ErrUnfit)
	}
	process, file := processLabel, fileLabel
	for _, o := range options {
		k, v, _ := strings.Cut(o, ":")
		switch n := slices.Index([]string{"user", "role", "type", "level"}, k); {
		case n < 0 || v == "":
			return fmt.Errorf("label %q: %w", o, fault.ErrInvalid)
		case k == "level":
			process[n], file[n] = v, v
		default:
			process[n] = v
		}
	}
	spec.Process.SelinuxLabel, spec.Linux.MountLabel = strings.Join(process[:], ":"), strings.Join(file[:], ":")
	return nil
}

// Looser reports whether a service's own seccomp profile allows a system call that the default one does not, and which.
func Looser(ctx context.Context, s *workload.Service) (string, bool) {
	spec, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: "profile"})
	if err != nil {
		return err.Error(), true
	}
	caps, err := capabilities(spec.Process.Capabilities.Bounding, s.Security.CapAdd, s.Security.CapDrop)
	if err != nil {
		return "", false // refused elsewhere
	}
	own, err := parseSeccomp([]byte(s.Security.Seccomp), caps, runtime.GOARCH)
	if err != nil {
		return "", false
	}
	if workload.FilterAllows(string(own.DefaultAction)) {
		return "all by default", true
	}
	spec.Process.Capabilities.Bounding = caps
	usual := map[string][]specs.LinuxSyscall{}
	for _, rule := range seccomp.DefaultProfile(spec).Syscalls {
		for _, name := range rule.Names {
			if workload.FilterAllows(string(rule.Action)) {
				usual[name] = append(usual[name], rule)
			}
		}
	}
	for _, rule := range own.Syscalls {
		for _, name := range rule.Names {
			ok := !workload.FilterAllows(string(rule.Action)) || slices.ContainsFunc(usual[name], func(u specs.LinuxSyscall) bool {
				return len(u.Args) == 0 || reflect.DeepEqual(u.Args, rule.Args)
			})
			if !ok {
				return name, true
			}
		}
	}
	return "", false
}
