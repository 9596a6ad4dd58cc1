package compose

import (
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// resources reads limits from both places where Compose has them; saying two different things is refused.
func (t *translation) resources(n *node) workload.Resources {
	r := workload.Resources{NanoCPUs: t.cores(n.get("cpus")), MemoryBytes: t.bytes(n.get("mem_limit")), PIDs: t.integer(n.get("pids_limit"), -1, math.MaxInt32)}
	deployed := n.get("deploy", "resources")
	if limits := deployed.get("limits"); t.isMapping(deployed) && t.isMapping(limits) {
		r.NanoCPUs = t.agreed(limits.get("cpus"), "cpus", r.NanoCPUs, t.cores(limits.get("cpus")))
		r.MemoryBytes = t.agreed(limits.get("memory"), "mem_limit", r.MemoryBytes, t.bytes(limits.get("memory")))
		r.PIDs = t.agreed(limits.get("pids"), "pids_limit", r.PIDs, t.integer(limits.get("pids"), -1, math.MaxInt32))
	}
	t.isMapping(deployed.get("reservations"))
	if r.PIDs == -1 {
		r.PIDs = 0 // Compose: no limit
	}
	t.processors(n, &r)
	t.memory(n, &r)
	r.CgroupParent = t.text(n.get("cgroup_parent"))
	if slices.Contains(strings.Split(r.CgroupParent, "/"), "..") {
		t.fault(n.get("cgroup_parent"), "", "must not leave the tree of cgroups")
	}
	r.Blkio = t.blkio(n.get("blkio_config"))
	return r
}

// cpuSet is a list of cores and ranges of them.
var cpuSet = regexp.MustCompile(`^\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*$`)

// Bounds of the kernel on what is given in microseconds.
const (
	leastPeriod = 1_000
	mostPeriod  = 1_000_000
)

func (t *translation) processors(n *node, r *workload.Resources) {
	r.CPUShares = uint64(t.integer(n.get("cpu_shares"), 0, 262_144))
	if s := n.get("deploy", "resources", "reservations", "cpus"); !s.isNull() {
		cores, ok := t.number(s)
		switch shares := uint64(cores * 1024); {
		case !ok:
		case cores < 0 || cores > 256:
			t.fault(s, "", "%q is no number of cores", clipped(s.str()))
		case r.CPUShares == 0:
			r.CPUShares = max(shares, 2)
		default:
			t.notice(s, "no effect: cpu_shares says how cores are shared")
		}
	}
	if r.CPUSet = t.text(n.get("cpuset")); r.CPUSet != "" && !cpuSet.MatchString(r.CPUSet) {
		t.fault(n.get("cpuset"), "write cores and ranges: \"0-2,4\"", "%q is no set of cores", clipped(r.CPUSet))
	}
	r.CPUQuota = t.micros(n.get("cpu_quota"), -1, math.MaxInt32)
	if r.CPUQuota == -1 {
		r.CPUQuota = 0 // no limit
	}
	if r.CPUQuota != 0 && r.CPUQuota < leastPeriod {
		t.fault(n.get("cpu_quota"), "", "%d microseconds are less than the kernel takes: %d", r.CPUQuota, leastPeriod)
	}
	r.CPUPeriod = uint64(t.micros(n.get("cpu_period"), leastPeriod, mostPeriod))
	if r.NanoCPUs != 0 && (r.CPUQuota != 0 || r.CPUPeriod != 0) {
		at := n.get("cpu_quota")
		if at == nil {
			at = n.get("cpu_period")
		}
		t.fault(at, "say it with one of them", "cpus is there beside it")
	}
	r.CPURealtime = t.micros(n.get("cpu_rt_runtime"), 0, math.MaxInt32)
	r.CPURealtimePeriod = uint64(t.micros(n.get("cpu_rt_period"), 0, math.MaxInt32))
	if r.CPURealtimePeriod != 0 && r.CPURealtime > int64(r.CPURealtimePeriod) {
		t.fault(n.get("cpu_rt_runtime"), "", "more than cpu_rt_period")
	}
}

// micros is a number of microseconds, or a duration.
func (t *translation) micros(n *node, least, most int64) int64 {
	if n.isNull() {
		return 0
	}
	if s := t.text(n); strings.ContainsAny(s, "smhunµ") {
		v := t.span(n).Microseconds()
		if v < least || v > most {
			t.fault(n, "", "%s is not within %dµs and %dµs", clipped(s), least, most)
			return 0
		}
		return v
	}
	if v := t.integer(n, min(least, 0), most); v == 0 || v >= least {
		return v
	}
	t.fault(n, "", "%s is less than %d microseconds", clipped(n.str()), least)
	return 0
}

func (t *translation) memory(n *node, r *workload.Resources) {
	r.MemoryReservation = t.bytes(n.get("mem_reservation"))
	if s := n.get("deploy", "resources", "reservations", "memory"); !s.isNull() {
		r.MemoryReservation = t.agreed(s, "mem_reservation", r.MemoryReservation, t.bytes(s))
	}
	if r.MemoryBytes != 0 && r.MemoryReservation > r.MemoryBytes {
		t.fault(n, "", "memory that is reserved must not be more than the limit on it")
	}
	if s := n.get("memswap_limit"); !s.isNull() {
		switch {
		case s.str() == "-1":
			r.MemorySwap = -1
		default:
			r.MemorySwap = t.bytes(s)
		}
		limited := r.MemoryBytes != 0 || t.isCut(n.path+".mem_limit") || t.isCut(n.path+".deploy")
		switch {
		case r.MemorySwap == 0:
		case !limited:
			t.fault(s, "set mem_limit too", "there is no limit on memory: this is of memory and swap together")
		case r.MemorySwap > 0 && r.MemorySwap < r.MemoryBytes:
			t.fault(s, "it is of memory and swap together", "less than the limit on memory")
		}
	}
	if s := n.get("mem_swappiness"); !s.isNull() {
		v := uint64(t.integer(s, 0, 100))
		r.Swappiness = &v
	}
	r.OOMScoreAdj = int(t.integer(n.get("oom_score_adj"), -1000, 1000))
	r.OOMKillDisable = t.flag(n.get("oom_kill_disable"))
	r.ShmBytes = t.bytes(n.get("shm_size"))
}

func (t *translation) blkio(n *node) *workload.Blkio {
	if !t.isMapping(n) {
		return nil
	}
	b := &workload.Blkio{
		WeightDevices: t.rates(n.get("weight_device"), "weight"),
		ReadBps:       t.rates(n.get("device_read_bps"), "rate"),
		WriteBps:      t.rates(n.get("device_write_bps"), "rate"),
		ReadIOps:      t.rates(n.get("device_read_iops"), "rate"),
		WriteIOps:     t.rates(n.get("device_write_iops"), "rate"),
	}
	if w := n.get("weight"); !w.isNull() && w.str() != "0" {
		b.Weight = uint16(t.integer(w, 10, 1000))
	}
	return b
}

func (t *translation) rates(n *node, what string) []workload.BlkioRate {
	var out []workload.BlkioRate
	for _, item := range t.list(n, maxList) {
		r := workload.BlkioRate{Path: t.text(item.get("path"))}
		if !strings.HasPrefix(r.Path, "/") {
			t.fault(item, "", "path must be that of a block device: /dev/sda")
			continue
		}
		switch {
		case item.get(what).isNull():
			t.fault(item, "", "%s is missing", what)
		case what == "weight":
			r.Rate = uint64(t.integer(item.get(what), 10, 1000))
		default:
			r.Rate = uint64(t.bytes(item.get(what)))
		}
		out = append(out, r)
	}
	return out
}

func (t *translation) agreed(at *node, other string, a, b int64) int64 {
	if a != 0 && b != 0 && a != b {
		t.fault(at, "", "says something else than %s", other)
	}
	if b != 0 {
		return b
	}
	return a
}
