package compose

import (
	"math"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// resources reads limits from both of Compose's places; different values are rejected.
func (t *translation) resources(n *composefile.Node) workload.Resources {
	r := workload.Resources{NanoCPUs: t.cores(n.Get("cpus")), MemoryBytes: t.bytes(n.Get("mem_limit")), PIDs: t.integer(n.Get("pids_limit"), -1, math.MaxInt32)}
	deployed := n.Get("deploy", "resources")
	if limits := deployed.Get("limits"); t.isMapping(deployed) && t.isMapping(limits) {
		r.NanoCPUs = t.sameValue(limits.Get("cpus"), "cpus", r.NanoCPUs, t.cores(limits.Get("cpus")))
		r.MemoryBytes = t.sameValue(limits.Get("memory"), "mem_limit", r.MemoryBytes, t.bytes(limits.Get("memory")))
		r.PIDs = t.sameValue(limits.Get("pids"), "pids_limit", r.PIDs, t.integer(limits.Get("pids"), -1, math.MaxInt32))
	}
	t.isMapping(deployed.Get("reservations"))
	if r.PIDs == -1 {
		r.PIDs = 0 // Compose: no limit
	}
	t.processors(n, &r)
	t.memory(n, &r)
	r.CgroupParent = t.Text(n.Get("cgroup_parent"))
	if slices.Contains(strings.Split(r.CgroupParent, "/"), "..") {
		t.Fault(n.Get("cgroup_parent"), "", "must not leave the tree of cgroups")
	}
	r.Blkio = t.blkio(n.Get("blkio_config"))
	return r
}

// cpuSet is a list of cores and ranges of them.
var cpuSet = strict.Expression(`^\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*$`)

// Bounds of the kernel, in microseconds.
const (
	leastPeriod = 1_000
	mostPeriod  = 1_000_000
)

func (t *translation) processors(n *composefile.Node, r *workload.Resources) {
	r.CPUShares = uint64(t.integer(n.Get("cpu_shares"), 0, 262_144))
	if s := n.Get("deploy", "resources", "reservations", "cpus"); !s.IsNull() {
		cores, ok := t.number(s)
		switch shares := uint64(cores * 1024); {
		case !ok:
		case cores < 0 || cores > 256:
			t.Fault(s, "", "%q is no number of cores", composefile.Clip(s.Text()))
		case r.CPUShares == 0:
			r.CPUShares = max(shares, 2)
		default:
			t.Notice(s, "no effect: cpu_shares says how cores are shared")
		}
	}
	if r.CPUSet = t.Text(n.Get("cpuset")); r.CPUSet != "" && !cpuSet.MatchString(r.CPUSet) {
		t.Fault(n.Get("cpuset"), "write cores and ranges: \"0-2,4\"", "%q is no set of cores", composefile.Clip(r.CPUSet))
	}
	r.CPUQuota = t.micros(n.Get("cpu_quota"), -1, math.MaxInt32)
	if r.CPUQuota == -1 {
		r.CPUQuota = 0 // no limit
	}
	if r.CPUQuota != 0 && r.CPUQuota < leastPeriod {
		t.Fault(n.Get("cpu_quota"), "", "%d microseconds are less than the kernel takes: %d", r.CPUQuota, leastPeriod)
	}
	r.CPUPeriod = uint64(t.micros(n.Get("cpu_period"), leastPeriod, mostPeriod))
	if r.NanoCPUs != 0 && (r.CPUQuota != 0 || r.CPUPeriod != 0) {
		at := n.Get("cpu_quota")
		if at == nil {
			at = n.Get("cpu_period")
		}
		t.Fault(at, "say it with one of them", "cpus is there beside it")
	}
	r.CPURealtime = t.micros(n.Get("cpu_rt_runtime"), 0, math.MaxInt32)
	r.CPURealtimePeriod = uint64(t.micros(n.Get("cpu_rt_period"), 0, math.MaxInt32))
	if r.CPURealtimePeriod != 0 && r.CPURealtime > int64(r.CPURealtimePeriod) {
		t.Fault(n.Get("cpu_rt_runtime"), "", "more than cpu_rt_period")
	}
}

// micros is a number of microseconds, or a duration.
func (t *translation) micros(n *composefile.Node, least, most int64) int64 {
	if n.IsNull() {
		return 0
	}
	if s := t.Text(n); strings.ContainsAny(s, "smhunµ") {
		v := t.duration(n).Microseconds()
		if v < least || v > most {
			t.Fault(n, "", "%s is not within %dµs and %dµs", composefile.Clip(s), least, most)
			return 0
		}
		return v
	}
	if v := t.integer(n, min(least, 0), most); v == 0 || v >= least {
		return v
	}
	t.Fault(n, "", "%s is less than %d microseconds", composefile.Clip(n.Text()), least)
	return 0
}

func (t *translation) memory(n *composefile.Node, r *workload.Resources) {
	r.MemoryReservation = t.bytes(n.Get("mem_reservation"))
	if s := n.Get("deploy", "resources", "reservations", "memory"); !s.IsNull() {
		r.MemoryReservation = t.sameValue(s, "mem_reservation", r.MemoryReservation, t.bytes(s))
	}
	if r.MemoryBytes != 0 && r.MemoryReservation > r.MemoryBytes {
		t.Fault(n, "", "memory that is reserved must not be more than the limit on it")
	}
	if s := n.Get("memswap_limit"); !s.IsNull() {
		switch {
		case s.Text() == "-1":
			r.MemorySwap = -1
		default:
			r.MemorySwap = t.bytes(s)
		}
		limited := r.MemoryBytes != 0 || t.isOmitted(n.Path+".mem_limit") || t.isOmitted(n.Path+".deploy")
		switch {
		case r.MemorySwap == 0:
		case !limited:
			t.Fault(s, "set mem_limit too", "there is no limit on memory: this is of memory and swap together")
		case r.MemorySwap > 0 && r.MemorySwap < r.MemoryBytes:
			t.Fault(s, "it is of memory and swap together", "less than the limit on memory")
		}
	}
	if s := n.Get("mem_swappiness"); !s.IsNull() {
		r.Swappiness = new(uint64(t.integer(s, 0, 100)))
	}
	r.OOMScoreAdj = int(t.integer(n.Get("oom_score_adj"), -1000, 1000))
	r.OOMKillDisable = t.flag(n.Get("oom_kill_disable"))
	r.ShmBytes = t.bytes(n.Get("shm_size"))
}

func (t *translation) blkio(n *composefile.Node) *workload.Blkio {
	if !t.isMapping(n) {
		return nil
	}
	b := &workload.Blkio{
		WeightDevices: t.rates(n.Get("weight_device"), "weight"),
		ReadBps:       t.rates(n.Get("device_read_bps"), "rate"),
		WriteBps:      t.rates(n.Get("device_write_bps"), "rate"),
		ReadIOps:      t.rates(n.Get("device_read_iops"), "rate"),
		WriteIOps:     t.rates(n.Get("device_write_iops"), "rate"),
	}
	if w := n.Get("weight"); !w.IsNull() && w.Text() != "0" {
		b.Weight = uint16(t.integer(w, 10, 1000))
	}
	return b
}

func (t *translation) rates(n *composefile.Node, what string) []workload.BlkioRate {
	var out []workload.BlkioRate
	for _, item := range t.List(n, composefile.MaxList) {
		r := workload.BlkioRate{Path: t.Text(item.Get("path"))}
		if !strings.HasPrefix(r.Path, "/") {
			t.Fault(item, "", "path must be that of a block device: /dev/sda")
			continue
		}
		switch {
		case item.Get(what).IsNull():
			t.Fault(item, "", "%s is missing", what)
		case what == "weight":
			r.Rate = uint64(t.integer(item.Get(what), 10, 1000))
		default:
			r.Rate = uint64(t.bytes(item.Get(what)))
		}
		out = append(out, r)
	}
	return out
}

func (t *translation) sameValue(at *composefile.Node, other string, a, b int64) int64 {
	if a != 0 && b != 0 && a != b {
		t.Fault(at, "", "differs from %s", other)
	}
	if b != 0 {
		return b
	}
	return a
}
