package containerd

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// joined are the namespaces of other containers that a container joins, by kind, and the place of the other's /dev/shm.
// It is known while the other one runs.
type joined struct {
	paths map[specs.LinuxNamespaceType]string
	shm   string
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

// namespaced says which namespaces are the container's own, the device's or another container's.
func namespaced(want workload.Namespaces, at Attachment, j joined, f Features) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if at.NetNS == "" {
			dropNamespace(s, specs.NetworkNamespace)
		} else {
			setNamespace(s, specs.NetworkNamespace, at.NetNS)
		}
		switch {
		case want.PID == workload.HostNamespace:
			dropNamespace(s, specs.PIDNamespace)
		case want.PID.Service() != "":
			setNamespace(s, specs.PIDNamespace, j.paths[specs.PIDNamespace])
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
func ipc(s *oci.Spec, want workload.Namespace, j joined) {
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
		if exists("/dev/shm") {
			replace("/dev/shm", bind("/dev/shm", "/dev/shm"))
		}
	case want == workload.NoNamespace:
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" })
	case want.Service() != "":
		setNamespace(s, specs.IPCNamespace, j.paths[specs.IPCNamespace])
		if j.shm != "" {
			replace("/dev/shm", bind("/dev/shm", j.shm))
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

// join finds the namespaces of other services that a container shares; the first replica of each must run.
func (r *Runtime) join(ctx context.Context, project string, c workload.Container) (joined, error) {
	j := joined{paths: map[specs.LinuxNamespaceType]string{}}
	ns := c.Service.Namespaces
	for _, want := range []struct {
		kind    specs.LinuxNamespaceType
		service string
		file    string
	}{
		{specs.PIDNamespace, ns.PID.Service(), "pid"},
		{specs.IPCNamespace, ns.IPC.Service(), "ipc"},
	} {
		if want.service == "" {
			continue
		}
		pid, err := r.firstOfService(ctx, project, want.service)
		if err != nil {
			return j, fmt.Errorf("share the %s namespace of service %s: %w", want.file, want.service, err)
		}
		j.paths[want.kind] = fmt.Sprintf("/proc/%d/ns/%s", pid, want.file)
		if want.kind == specs.IPCNamespace {
			if j.shm, err = r.shareShm(c.ID, pid); err != nil {
				return j, fmt.Errorf("share /dev/shm of service %s: %w", want.service, err)
			}
		}
	}
	return j, nil
}

// firstOfService is the process of a service's first replica that runs.
func (r *Runtime) firstOfService(ctx context.Context, project, service string) (uint32, error) {
	boxes, err := r.list(ctx, owned.LabelProject, project, owned.LabelService, service, owned.LabelReplica, "1")
	if err != nil {
		return 0, err
	}
	answering := r.o.Networks.Answering()
	slices.SortStableFunc(boxes, func(a, b containers.Container) int { // that which answers for the service first
		switch {
		case answering[a.ID] == answering[b.ID]:
			return 0
		case answering[a.ID]:
			return -1
		}
		return 1
	})
	for _, b := range boxes {
		if b.Labels[owned.LabelHook] != "" {
			continue
		}
		if pid, err := r.runningPID(ctx, b.ID); err == nil {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("it does not run: %w", fault.ErrTemporary)
}
