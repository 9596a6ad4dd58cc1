// Package cgroup reads from the mount of control groups which limits the kernel supports, and the effects of limits on a container. It changes
// only the real-time CPU time of the groups above a container, see [AllowRealtime]. It supports both versions of control groups.
package cgroup

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Root is where control groups are mounted.
const Root = "/sys/fs/cgroup"

// Controls are the abilities of this kernel's control groups, for both versions.
type Controls struct {
	Controllers map[string]bool // "cpu", "cpuset", "memory", "pids", "io": named as version 2 does
	CPUQuota    bool            // limits of CPU time
	Realtime    bool            // CPU time of real-time processes
	Memory      bool            // limits
	Reservation bool            // memory that is not reclaimed
	Swap        bool            // memory and swap are counted together
	Swappiness  bool            // by group
	KeepOnOOM   bool            // the OOM killer can be disabled
	Weight      bool            // shares of block devices
	WeightOf    bool            // shares of one block device
	Throttle    bool            // bytes and operations a second of block devices
}

// Find looks below the mount point of control groups. version is 1 or 2.
func Find(root string, version int) Controls {
	if version == 2 {
		return find2(root)
	}
	has := func(controller, file string) bool { return paths.Exists(filepath.Join(root, controller, file)) }
	inGroup := func(controller, file string) bool { return existsBelow(filepath.Join(root, controller), file) }
	c := Controls{
		Controllers: map[string]bool{},
		CPUQuota:    has("cpu", "cpu.cfs_quota_us") || inGroup("cpu", "cpu.cfs_quota_us"),
		Realtime:    has("cpu", realtimeFile) && readSmall(filepath.Join(root, "cpu", realtimeFile)) != "0", // 0: no group can get a share
		Memory:      has("memory", "memory.limit_in_bytes"),
		Reservation: has("memory", "memory.soft_limit_in_bytes"),
		Swap:        has("memory", "memory.memsw.limit_in_bytes"),
		Swappiness:  has("memory", "memory.swappiness"),
		KeepOnOOM:   has("memory", "memory.oom_control"),
		Weight:      inGroup("blkio", "blkio.weight") || inGroup("blkio", "blkio.bfq.weight"),
		WeightOf:    inGroup("blkio", "blkio.weight_device") || inGroup("blkio", "blkio.bfq.weight_device"),
		Throttle:    has("blkio", "blkio.throttle.read_bps_device"),
	}
	for ours, theirs := range map[string]string{"cpu": "cpu", "cpuset": "cpuset", "memory": "memory", "pids": "pids", "io": "blkio"} {
		if paths.Exists(filepath.Join(root, theirs)) {
			c.Controllers[ours] = true
		}
	}
	return c
}

func find2(root string) Controls {
	c := Controls{Controllers: map[string]bool{}}
	for _, name := range strings.Fields(readSmall(filepath.Join(root, "cgroup.controllers"))) {
		c.Controllers[name] = true
	}
	on := c.Controllers
	c.CPUQuota, c.Memory, c.Reservation = on["cpu"], on["memory"], on["memory"]
	c.Swap = on["memory"] && (existsBelow(root, "memory.swap.max") || !existsBelow(root, "memory.max"))
	c.Throttle = on["io"]
	c.Weight = on["io"] && (paths.Exists(filepath.Join(root, "io.cost.qos")) || existsBelow(root, "io.weight") || existsBelow(root, "io.bfq.weight"))
	c.WeightOf = c.Weight
	return c
}

// Lacks are the limits of a service that these controls do not support.
func (c Controls) Lacks(r workload.Resources) []workload.MissingLimit {
	b := r.Blkio
	if b == nil {
		b = &workload.Blkio{}
	}
	hint := func(controller string) string {
		return "switch the " + controller + " controller on in the kernel's command line, or leave the limit out"
	}
	var out []workload.MissingLimit
	for _, n := range []struct {
		asked, there    bool
		key, what, hint string
	}{
		{r.NanoCPUs > 0, c.CPUQuota, "cpus", "limits of CPU time", hint("cpu")},
		{r.CPUQuota > 0 || r.CPUPeriod > 0, c.CPUQuota, "cpu_quota", "limits of CPU time", hint("cpu")},
		{r.CPUShares > 0, c.Controllers["cpu"], "cpu_shares", "shares of CPU time", hint("cpu")},
		{r.CPUSet != "", c.Controllers["cpuset"], "cpuset", "sets of processors", hint("cpuset")},
		{r.CPURealtime > 0 || r.CPURealtimePeriod > 0, c.Realtime, "cpu_rt_runtime", "real-time CPU time", ""},
		{r.MemoryBytes > 0, c.Memory, "mem_limit", "limits of memory", hint("memory")},
		{r.MemoryReservation > 0, c.Reservation, "mem_reservation", "reserved memory", hint("memory")},
		{r.MemorySwap != 0, c.Swap, "memswap_limit", "limits of swap", "boot with swapaccount=1, or leave it out"},
		{r.Swappiness != nil, c.Swappiness, "mem_swappiness", "swappiness", ""},
		{r.OOMKillDisable, c.KeepOnOOM, "oom_kill_disable", "way to keep the kernel from killing", ""},
		{r.PIDs > 0, c.Controllers["pids"], "pids_limit", "limits of processes", hint("pids")},
		{b.Weight > 0, c.Weight, "blkio_config.weight", "weights of block devices", ""},
		{len(b.WeightDevices) > 0, c.WeightOf, "blkio_config.weight_device", "weights of one block device", ""},
		{len(b.ReadBps)+len(b.WriteBps)+len(b.ReadIOps)+len(b.WriteIOps) > 0, c.Throttle, "blkio_config", "limits of block devices", hint("io")},
	} {
		if n.asked && !n.there {
			out = append(out, workload.MissingLimit{Key: n.key, What: n.what, Hint: n.hint})
		}
	}
	return out
}

// existsBelow looks into any one group below dir: some controls the root group does not have.
func existsBelow(dir, file string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer d.Close()
	for {
		some, err := d.ReadDir(64)
		for _, e := range some {
			if e.IsDir() {
				return paths.Exists(filepath.Join(dir, e.Name(), file))
			}
		}
		if err != nil {
			return madeBelow(dir, file)
		}
	}
}

// madeBelow creates a group to inspect, on a machine that has no group yet.
func madeBelow(dir, file string) bool {
	group := filepath.Join(dir, "longshore-look")
	if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
		return false
	}
	found := paths.Exists(filepath.Join(group, file))
	if err := os.Remove(group); err != nil { // it has no process: only an inspection by another agent can prevent this
		return found
	}
	return found
}

// maxSmall bounds files of the kernel that hold a line or two.
const maxSmall = 64 << 10

// readSmall reads a file of the kernel; "" if there is none.
func readSmall(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSmall))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}
