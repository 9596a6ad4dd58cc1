package containerd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/moby/sys/signal"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// groupAnnotation makes the runc shim serve all containers of a group from one process.
	groupAnnotation = "io.containerd.runc.v2.group"
	// cpuPeriod is the kernel's accounting period in microseconds, as every engine sets it.
	cpuPeriod = 100_000
	// minCPUQuota is the least that the kernel takes, in microseconds of a period.
	minCPUQuota = 1000

	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// spec is everything about a container that containerd's defaults do not say already.
func (r *Runtime) spec(p *workload.Project, c workload.Container, img *image, at Attachment, mounts []specs.Mount, f Features) []oci.SpecOpts {
	s, config := c.Service, img.config.Config
	hostname := firstOf(s.Hostname, at.Hostname, s.Name)
	user := firstOf(s.User, config.User)
	opts := []oci.SpecOpts{
		process(s, config, hostname),
		oci.WithHostname(hostname),
		oci.WithoutRunMount, // an image's own /run stays visible
		oci.WithMounts(mounts),
		resources(s.Resources, f),
		namespaced(at, f),
	}
	if user != "" {
		opts = append(opts, oci.WithUser(user), supplementaryGroups)
	} else {
		opts = append(opts, oci.WithAdditionalGIDs("root"))
	}
	if s.ReadOnly {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	if !r.o.NoNewPrivileges {
		opts = append(opts, oci.WithNewPrivileges)
	}
	if !s.OwnShim {
		opts = append(opts, oci.WithAnnotations(map[string]string{groupAnnotation: p.Name}))
	}
	if f.AppArmor {
		opts = append(opts, apparmor.WithProfile(appArmorProfile))
	}
	if f.Seccomp {
		opts = append(opts, seccomp.WithDefaultProfile(), withoutX32) // last: the profile depends on the capabilities
	}
	return opts
}

// process sets what runs. A service's entrypoint replaces both the image's entrypoint and its command, as in Compose.
func process(s workload.Service, config ocispec.ImageConfig, hostname string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		entrypoint, command := config.Entrypoint, config.Cmd
		if s.Entrypoint != nil {
			entrypoint, command = s.Entrypoint, nil
		}
		if s.Command != nil {
			command = s.Command
		}
		args := slices.Concat(entrypoint, command)
		if len(args) == 0 || args[0] == "" {
			return fmt.Errorf("neither the service nor its image says what to run: %w", fault.ErrInvalid)
		}
		spec.Process.Args = args
		spec.Process.Env = environment([]string{defaultPath, "HOSTNAME=" + hostname}, config.Env, s.Environment)
		spec.Process.Cwd = firstOf(s.WorkingDir, config.WorkingDir, "/")
		spec.Process.Rlimits = nil // containerd's own: the default of 1024 files breaks servers
		return nil
	}
}

// environment joins lists of KEY=value; a later value replaces an earlier one in its place.
func environment(lists ...[]string) []string {
	var out []string
	at := map[string]int{}
	for _, kv := range slices.Concat(lists...) {
		k, _, _ := strings.Cut(kv, "=")
		if n, ok := at[k]; ok {
			out[n] = kv
			continue
		}
		at[k] = len(out)
		out = append(out, kv)
	}
	return out
}

// supplementaryGroups looks up the groups of the user that was set before.
func supplementaryGroups(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
	return oci.WithAdditionalGIDs(strconv.FormatUint(uint64(s.Process.User.UID), 10))(ctx, client, c, s)
}

func resources(w workload.Resources, f Features) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		res := s.Linux.Resources
		if w.NanoCPUs > 0 {
			quota, period := max(w.NanoCPUs*cpuPeriod/1e9, minCPUQuota), uint64(cpuPeriod)
			res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
		}
		if w.MemoryBytes > 0 {
			res.Memory = &specs.LinuxMemory{Limit: &w.MemoryBytes}
			if limitsSwap(f.CgroupVersion) {
				res.Memory.Swap = &w.MemoryBytes // memory and swap together: a hard limit is one without swap
			}
		}
		if w.PIDs > 0 {
			res.Pids = &specs.LinuxPids{Limit: &w.PIDs}
		}
		return nil
	}
}

// withoutX32 takes an ABI out of the system call filter that kernels do not have: its rules cost 30 ms of each start. 32-bit
// programs of the machine's own family stay possible.
func withoutX32(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	f := s.Linux.Seccomp
	f.Architectures = slices.DeleteFunc(f.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	return nil
}

// namespaced joins the network namespace and shows the container its own control groups.
func namespaced(at Attachment, f Features) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		set := func(ns specs.LinuxNamespace) {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == ns.Type })
			s.Linux.Namespaces = append(s.Linux.Namespaces, ns)
		}
		set(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: at.NetNS})
		if f.CgroupVersion == 2 {
			set(specs.LinuxNamespace{Type: specs.CgroupNamespace})
		}
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"ro", "nosuid", "noexec", "nodev", "relatime"}, // runtimes size their pools by it
		})
		// The port range below 1024 is no privilege in a namespace of one container.
		s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
		slices.SortStableFunc(s.Mounts, func(a, b specs.Mount) int { // parents before what lies in them
			return strings.Count(strings.TrimRight(a.Destination, "/"), "/") - strings.Count(strings.TrimRight(b.Destination, "/"), "/")
		})
		return nil
	}
}

// parseSignal reads a name or number; "" is SIGTERM.
func parseSignal(s string) (syscall.Signal, error) {
	if s == "" {
		return syscall.SIGTERM, nil
	}
	n, err := signal.ParseSignal(s)
	if err != nil {
		return 0, fmt.Errorf("stop signal %q: %w", s, as(fault.ErrInvalid, err))
	}
	return n, nil
}

func firstOf(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

// processSpec is what a probe runs with: the container's own process, other arguments.
func processSpec(s *oci.Spec, argv []string) *specs.Process {
	p := *s.Process
	p.Args, p.Terminal = argv, false
	if p.Capabilities != nil {
		caps := *p.Capabilities
		p.Capabilities = &caps
	}
	return &p
}
