package runspec

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Joined has the paths of the namespaces that a container shares with others, known while those run. "" is not shared.
type Joined struct {
	PID, IPC string // namespaces
	Shm      string // the other's /dev/shm, mounted at a path that this container can mount
}

// setNamespace puts a namespace in place of the one of its kind; a path of "" is a new one.
func setNamespace(s *oci.Spec, kind specs.LinuxNamespaceType, path string) {
	for n := range s.Linux.Namespaces {
		if s.Linux.Namespaces[n].Type == kind {
			s.Linux.Namespaces[n].Path = path
			return
		}
	}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
}

func dropNamespace(s *oci.Spec, kind specs.LinuxNamespaceType) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

// namespaced sets which namespaces are the container's own, the device's or another container's.
func namespaced(want workload.Namespaces, netns string, j Joined, f features.Features) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if netns == "" {
			dropNamespace(s, specs.NetworkNamespace)
		} else {
			setNamespace(s, specs.NetworkNamespace, netns)
		}
		switch {
		case want.PID == workload.HostNamespace:
			dropNamespace(s, specs.PIDNamespace)
		case want.PID.Service() != "":
			setNamespace(s, specs.PIDNamespace, j.PID)
		}
		if want.UTS == workload.HostNamespace {
			dropNamespace(s, specs.UTSNamespace)
			s.Hostname, s.Domainname = "", "" // the device's
		}
		ipc(s, want.IPC, j)
		private := want.Cgroup == workload.PrivateNamespace || want.Cgroup == "" && f.CgroupVersion == 2
		if private {
			setNamespace(s, specs.CgroupNamespace, "")
		} else {
			dropNamespace(s, specs.CgroupNamespace)
		}
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"ro", "nosuid", "noexec", "nodev", "relatime"}, // runtimes size their pools by it
		})
		return nil
	}
}

// ipc shares System V IPC, POSIX queues and /dev/shm.
func ipc(s *oci.Spec, want workload.Namespace, j Joined) {
	replace := func(target string, with specs.Mount) {
		for n := range s.Mounts {
			if s.Mounts[n].Destination == target {
				s.Mounts[n] = with
			}
		}
	}
	bind := func(target, source string) specs.Mount {
		return specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"bind", "rprivate", "nosuid", "noexec", "nodev"}}
	}
	switch {
	case want == workload.HostNamespace:
		dropNamespace(s, specs.IPCNamespace)
		if paths.Exists("/dev/shm") {
			replace("/dev/shm", bind("/dev/shm", "/dev/shm"))
		}
	case want == workload.NoNamespace:
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" })
	case want.Service() != "":
		setNamespace(s, specs.IPCNamespace, j.IPC)
		if j.Shm != "" {
			replace("/dev/shm", bind("/dev/shm", j.Shm))
		}
	}
}

// shmSize gives /dev/shm its size.
func shmSize(bytes int64) oci.SpecOpts {
	if bytes <= 0 {
		bytes = defaultShm
	}
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		for n, m := range s.Mounts {
			if m.Destination == "/dev/shm" && m.Type == "tmpfs" {
				s.Mounts[n].Options = []string{"nosuid", "noexec", "nodev", "mode=1777", "size=" + strconv.FormatInt(bytes, 10)}
			}
		}
		return nil
	}
}

// mapped gives a container users of its own. Its volumes and its files are mapped; its mounts of the device are not:
// there its root has no rights.
func mapped(s workload.Service) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		if !users.HasOwnUsers(s) {
			return nil
		}
		setNamespace(spec, specs.UserNamespace, "")
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = users.Mappings(), users.Mappings()
		for k := range spec.Linux.Sysctl {
			if strings.HasPrefix(k, "net.") { // the container must not change its network: see users.SetNetSysctls
				delete(spec.Linux.Sysctl, k)
			}
		}
		for n, m := range spec.Mounts {
			if m.Type == "sysfs" { // a new one would need a network of the same owner
				spec.Mounts[n] = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "ro", "nosuid", "noexec", "nodev", "rslave"}}
			}
		}
		return nil
	}
}
