package containerd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/longshore-dev/longshore/agent/workload"
)

// group is a container's control group, below the root of a hierarchy.
func (r *Runtime) group(w workload.Resources, id string) string {
	return filepath.Join("/", w.CgroupParent, r.o.Namespace, id)
}

// lack asks the control group of a container that exited with an error, which stays until the task is deleted.
func (r *Runtime) lack(b containers.Container) workload.Lack {
	var rec record
	if ext := b.Extensions[extensionKey]; ext == nil || json.Unmarshal(ext.GetValue(), &rec) != nil {
		return ""
	}
	w := rec.Container.Service.Resources
	switch group := r.group(w, b.ID); {
	case oomKills(group) > 0:
		return workload.LackMemory
	case w.PIDs > 0 && forksRefused(group) > 0:
		return workload.LackProcesses
	}
	return ""
}

// oomKills counts processes of a control group that the kernel killed for lack of memory.
func oomKills(group string) uint64 {
	return eventsOf("oom_kill", filepath.Join(cgroupRoot, "memory", group, "memory.oom_control"), filepath.Join(cgroupRoot, group, "memory.events"))
}

// forksRefused counts processes and threads that a control group's limit kept from beginning.
func forksRefused(group string) uint64 {
	return eventsOf("max", filepath.Join(cgroupRoot, "pids", group, "pids.events"), filepath.Join(cgroupRoot, group, "pids.events"))
}

// eventsOf reads a counter from the first of files that is there, version 1 before version 2; 0: none of them has it.
func eventsOf(key string, files ...string) uint64 {
	for _, file := range files {
		b, err := os.ReadFile(file) // of the kernel: some lines
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == key {
				n, _ := strconv.ParseUint(f[1], 10, 64) // a number, as the kernel's documentation says
				return n
			}
		}
	}
	return 0
}

// crowded adds to the error of a process in a running container that its control group refused it.
func crowded(err error, w workload.Resources, group string, before uint64) error {
	if err == nil || w.PIDs <= 0 || forksRefused(group) <= before {
		return err
	}
	return fmt.Errorf("the container has as many processes as its limit of %d allows; raise pids_limit or deploy.resources.limits.pids: %w", w.PIDs, err)
}
