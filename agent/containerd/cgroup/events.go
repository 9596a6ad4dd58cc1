package cgroup

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// OOMKills counts the processes of a group, below [Root], that the kernel killed for lack of memory.
func OOMKills(group string) uint64 {
	return eventsOf("oom_kill", filepath.Join(Root, "memory", group, "memory.oom_control"), filepath.Join(Root, group, "memory.events"))
}

// ForksRefused counts the processes and threads that could not start because of the limit of a group, below [Root].
func ForksRefused(group string) uint64 {
	return eventsOf("max", filepath.Join(Root, "pids", group, "pids.events"), filepath.Join(Root, group, "pids.events"))
}

// eventsOf reads a counter from the first existing file of a list, version 1 before version 2; 0: no file has it.
func eventsOf(key string, files ...string) uint64 {
	for _, file := range files {
		for line := range strings.Lines(readSmall(file)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == key {
				n, _ := strconv.ParseUint(f[1], 10, 64) // a number, by the kernel's documentation
				return n
			}
		}
	}
	return 0
}

// PIDLimitError adds the limit to the error of a process in a running container when its control group refused the process. before is the
// result of [ForksRefused] before the process started.
func PIDLimitError(err error, w workload.Resources, group string, before uint64) error {
	if err == nil || w.PIDs <= 0 || ForksRefused(group) <= before {
		return err
	}
	return fmt.Errorf("the container has as many processes as its limit of %d allows; raise pids_limit or deploy.resources.limits.pids: %w", w.PIDs, err)
}
