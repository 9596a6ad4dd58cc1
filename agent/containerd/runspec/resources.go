package runspec

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// cpuPeriod is the kernel's accounting period in microseconds, as every engine sets it.
	cpuPeriod = 100_000
	// minCPUQuota is the smallest quota of the kernel, in microseconds of a period.
	minCPUQuota = 1000
	// defaultShm is the size of /dev/shm in bytes, as every engine sets it.
	defaultShm = 64 << 20
)

// resources sets limits. Unsupported limits were rejected before: see cgroup.Controls.
func resources(s workload.Service, f features.Features) oci.SpecOpts {
	return func(ctx context.Context, _ oci.Client, c *containers.Container, spec *oci.Spec) error {
		w, res := s.Resources, spec.Linux.Resources
		res.CPU = cpu(w)
		res.Memory = memory(w, f.Controls.Swap)
		if w.PIDs != 0 {
			res.Pids = &specs.LinuxPids{Limit: &w.PIDs}
		}
		var err error
		if res.BlockIO, err = blockIO(w.Blkio); err != nil {
			return err
		}
		if w.OOMScoreAdj != 0 {
			spec.Process.OOMScoreAdj = &w.OOMScoreAdj
		}
		if w.CgroupParent != "" {
			if slices.Contains(strings.Split(w.CgroupParent, "/"), "..") {
				return fmt.Errorf("cgroup_parent %q: %w", w.CgroupParent, fault.ErrInvalid)
			}
			spec.Linux.CgroupsPath = filepath.Join("/", w.CgroupParent, spec.Linux.CgroupsPath)
		}
		if spec.Process.Rlimits, err = rlimits(s.Ulimits); err != nil {
			return err
		}
		return sysctls(s, spec)
	}
}

func cpu(w workload.Resources) *specs.LinuxCPU {
	var c specs.LinuxCPU
	if w.NanoCPUs > 0 {
		quota, period := max(w.NanoCPUs*cpuPeriod/1e9, minCPUQuota), uint64(cpuPeriod)
		c.Quota, c.Period = &quota, &period
	}
	if w.CPUQuota != 0 {
		c.Quota = &w.CPUQuota
	}
	if w.CPUPeriod != 0 {
		c.Period = &w.CPUPeriod
	}
	if w.CPUShares != 0 {
		c.Shares = &w.CPUShares
	}
	if w.CPURealtime != 0 {
		c.RealtimeRuntime = &w.CPURealtime
	}
	if w.CPURealtimePeriod != 0 {
		c.RealtimePeriod = &w.CPURealtimePeriod
	}
	c.Cpus = w.CPUSet
	if c == (specs.LinuxCPU{}) {
		return nil
	}
	return &c
}

// memory sets limits. By default a limit is for memory and swap together: a hard limit.
func memory(w workload.Resources, countsSwap bool) *specs.LinuxMemory {
	var m specs.LinuxMemory
	if w.MemoryBytes > 0 {
		m.Limit = &w.MemoryBytes
		if countsSwap {
			m.Swap = &w.MemoryBytes
		}
	}
	if w.MemorySwap != 0 {
		m.Swap = &w.MemorySwap
	}
	if w.MemoryReservation > 0 {
		m.Reservation = &w.MemoryReservation
	}
	m.Swappiness = w.Swappiness
	if w.OOMKillDisable {
		m.DisableOOMKiller = &w.OOMKillDisable
	}
	if m == (specs.LinuxMemory{}) {
		return nil
	}
	return &m
}

func blockIO(b *workload.Blkio) (*specs.LinuxBlockIO, error) {
	if b == nil {
		return nil, nil
	}
	out := &specs.LinuxBlockIO{}
	if b.Weight != 0 {
		out.Weight = &b.Weight
	}
	for _, d := range b.WeightDevices {
		major, minor, err := blockDevice(d.Path)
		if err != nil {
			return nil, err
		}
		weight := uint16(min(d.Rate, math.MaxUint16))
		w := specs.LinuxWeightDevice{Weight: &weight}
		w.Major, w.Minor = major, minor
		out.WeightDevice = append(out.WeightDevice, w)
	}
	for _, l := range []struct {
		from []workload.BlkioRate
		to   *[]specs.LinuxThrottleDevice
	}{
		{b.ReadBps, &out.ThrottleReadBpsDevice},
		{b.WriteBps, &out.ThrottleWriteBpsDevice},
		{b.ReadIOps, &out.ThrottleReadIOPSDevice},
		{b.WriteIOps, &out.ThrottleWriteIOPSDevice},
	} {
		for _, d := range l.from {
			major, minor, err := blockDevice(d.Path)
			if err != nil {
				return nil, err
			}
			t := specs.LinuxThrottleDevice{Rate: d.Rate}
			t.Major, t.Minor = major, minor
			*l.to = append(*l.to, t)
		}
	}
	return out, nil
}

func blockDevice(name string) (major, minor int64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return 0, 0, fmt.Errorf("blkio_config: block device %s: %w", name, failure.As(fault.ErrUnfit, err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, 0, fmt.Errorf("blkio_config: %s is not a block device: %w", name, fault.ErrUnfit)
	}
	return int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev)), nil
}

// limitNames are those of setrlimit(2).
var limitNames = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
	"rttime", "sigpending", "stack",
}

// rlimits are only the service's own: containerd's default of 1024 files breaks servers.
func rlimits(list []workload.Ulimit) ([]specs.POSIXRlimit, error) {
	value := func(n int64) uint64 {
		if n < 0 {
			return math.MaxUint64
		}
		return uint64(n)
	}
	var out []specs.POSIXRlimit
	for _, u := range list {
		name := strings.ToLower(strings.TrimPrefix(strings.ToUpper(u.Name), "RLIMIT_"))
		if !slices.Contains(limitNames, name) {
			return nil, fmt.Errorf("ulimit %q: %w", u.Name, fault.ErrInvalid)
		}
		l := specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(name), Soft: value(u.Soft), Hard: value(u.Hard)}
		if l.Soft > l.Hard {
			return nil, fmt.Errorf("ulimit %s: soft limit %d is over the hard one, %d: %w", u.Name, u.Soft, u.Hard, fault.ErrInvalid)
		}
		out = append(out, l)
	}
	return out, nil
}

// ipcSysctls belong to the IPC namespace, beside fs.mqueue.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
	"kernel.shm_rmid_forced",
}

// sysctls sets kernel parameters of the container's own namespaces; any other would change the device.
func sysctls(s workload.Service, spec *oci.Spec) error {
	spec.Linux.Sysctl = map[string]string{}
	ns := s.Namespaces
	if ns.Network == "" || ns.Network == workload.NoNamespace {
		// Ports below 1024 need no privilege in a namespace of one container.
		spec.Linux.Sysctl["net.ipv4.ip_unprivileged_port_start"] = "0"
	}
	for k, v := range s.Sysctls {
		k = strings.ReplaceAll(k, "/", ".")
		var shared workload.Namespace
		switch {
		case strings.HasPrefix(k, "net."):
			shared = ns.Network
		case slices.Contains(ipcSysctls, k), strings.HasPrefix(k, "fs.mqueue."):
			shared = ns.IPC
		default:
			return fmt.Errorf("sysctl %s is the whole device's, not a container's: %w", strconv.Quote(k), fault.ErrInvalid)
		}
		if shared == workload.HostNamespace {
			return fmt.Errorf("sysctl %s would change the device, whose namespace the service is in: %w", strconv.Quote(k), fault.ErrInvalid)
		}
		spec.Linux.Sysctl[k] = v
	}
	return nil
}
