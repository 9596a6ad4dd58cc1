package containerd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/apparmor"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// unconfined switches a protection off by name.
const unconfined = "unconfined"

// mayEmpower refuses privileges that the device's owner has not allowed.
func (r *Runtime) mayEmpower() error {
	if r.o.AllowPrivileged {
		return nil
	}
	return fault.WithHint(fmt.Errorf("this device does not allow privileged containers: %w", fault.ErrRejected), allowHint)
}

// empower gives a process all that the kernel can give.
func (r *Runtime) empower(p *specs.Process) error {
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

// ownCapabilities are those that this process can give away.
func ownCapabilities() ([]string, error) {
	all, err := cap.Current()
	if err != nil {
		return nil, fmt.Errorf("read the capabilities of this process: %w", err)
	}
	return all, nil
}

// confinement is what a container may do. It comes after everything that changes capabilities.
func (r *Runtime) confinement(s workload.Service, f Features) oci.SpecOpts {
	want := s.Security
	if want == nil {
		want = &workload.Security{}
	}
	return func(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec) error {
		if want.Privileged {
			return r.privileged(ctx, client, c, spec)
		}
		spec.Process.NoNewPrivileges = want.NoNewPrivileges || r.o.NoNewPrivileges
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
func (r *Runtime) privileged(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec) error {
	if err := r.mayEmpower(); err != nil {
		return err
	}
	if err := oci.Compose(oci.WithPrivileged, oci.WithHostDevices, oci.WithAllDevicesAllowed, oci.WithNewPrivileges)(ctx, client, c, spec); err != nil {
		return err
	}
	return r.empower(spec.Process)
}

// capabilities adds to and takes from those that a container has anyway; "ALL" is every one that there is.
func capabilities(base, add, drop []string) ([]string, error) {
	all, err := ownCapabilities()
	if err != nil {
		return nil, err
	}
	read := func(list []string) (names []string, everything bool, err error) {
		for _, n := range list {
			n = strings.ToUpper(strings.TrimSpace(n))
			if n == "ALL" || n == "CAP_ALL" {
				everything = true
				continue
			}
			if !strings.HasPrefix(n, "CAP_") {
				n = "CAP_" + n
			}
			if !slices.Contains(cap.Known(), n) {
				return nil, false, fmt.Errorf("capability %q: there is none of this name: %w", n, fault.ErrInvalid)
			}
			names = append(names, n)
		}
		return names, everything, nil
	}
	adds, addAll, err := read(add)
	if err != nil {
		return nil, err
	}
	drops, dropAll, err := read(drop)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(base)
	if dropAll {
		out = nil
	}
	if addAll {
		out = slices.Clone(all)
	}
	for _, n := range adds {
		if !slices.Contains(all, n) {
			return nil, fmt.Errorf("capability %s is not this device's to give: %w", n, fault.ErrUnfit)
		}
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return slices.DeleteFunc(out, func(n string) bool {
		return slices.Contains(drops, n) && !slices.Contains(adds, n) || !slices.Contains(all, n)
	}), nil
}

// systemCalls sets the filter. Its default depends on the capabilities.
func (r *Runtime) systemCalls(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec, profile string, f Features) error {
	switch {
	case profile == unconfined:
		spec.Linux.Seccomp = nil
		return nil
	case profile == "" && !f.Seccomp: // as the device's owner allows: see confined
		return nil
	case profile == "":
		return oci.Compose(seccomp.WithDefaultProfile(), withoutX32)(ctx, client, c, spec)
	case !f.Seccomp:
		return fmt.Errorf("the OCI runtime cannot filter system calls: %w", fault.ErrUnfit)
	}
	filter, err := parseSeccomp([]byte(profile), spec.Process.Capabilities.Bounding, hostArch())
	if err != nil {
		return err
	}
	spec.Linux.Seccomp = filter
	return nil
}

// withoutX32 takes an ABI out of the system call filter that kernels do not have: its rules cost 30 ms of each start. 32-bit
// programs of the machine's own family stay possible.
func withoutX32(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	f := s.Linux.Seccomp
	f.Architectures = slices.DeleteFunc(f.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	return nil
}

func (r *Runtime) appArmor(spec *oci.Spec, profile string, f Features) error {
	switch {
	case profile == unconfined, profile == "" && !f.AppArmor:
		return nil
	case profile == "":
		spec.Process.ApparmorProfile = appArmorProfile
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
	case mode != "enforce" && !r.o.AllowPrivileged: // some profiles confine nothing
		return fault.WithHint(fmt.Errorf("this device does not allow AppArmor's profile %q, which is not enforced: %w", profile, fault.ErrRejected), allowHint)
	}
	spec.Process.ApparmorProfile = profile
	return nil
}

// Labels that SELinux policies have for containers and for what they may write.
var (
	processLabel = [4]string{"system_u", "system_r", "container_t", "s0"}
	fileLabel    = [4]string{"system_u", "object_r", "container_file_t", "s0"}
)

// selinux sets labels where a service names parts of them: "type:spc_t", "level:s0:c1,c2", "disable".
func selinux(spec *oci.Spec, options []string, f Features) error {
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
