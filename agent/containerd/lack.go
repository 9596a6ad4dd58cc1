package containerd

import (
	"path/filepath"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/workload"
)

// group is a container's control group, below the root of a hierarchy.
func (r *Runtime) group(w workload.Resources, id string) string {
	return filepath.Join("/", w.CgroupParent, r.o.Namespace, id)
}

// lack asks the control group of a container that exited with an error, which stays until the task is deleted.
func (r *Runtime) lack(b containers.Container) workload.Lack {
	rec, err := records.Of(b)
	if err != nil {
		return ""
	}
	w := rec.Container.Service.Resources
	switch group := r.group(w, b.ID); {
	case cgroup.OOMKills(group) > 0:
		return workload.LackMemory
	case w.PIDs > 0 && cgroup.ForksRefused(group) > 0:
		return workload.LackProcesses
	}
	return ""
}
