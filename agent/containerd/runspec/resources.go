package runspec

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
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
			spec.Linux.CgroupsPath = filepath.Join("/", w.CgroupParent, spec.Linux.CgroupsPath)
		}
		spec.Process.Rlimits, spec.Linux.Sysctl = rlimits(s.Ulimits), sysctls(s)
		return nil
	}
}

// set is a pointer to a value, nil for zero.
func set[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

func cpu(w workload.Resources) *specs.LinuxCPU {
	c := specs.LinuxCPU{
		Quota: set(w.CPUQuota), Period: set(w.CPUPeriod), Shares: set(w.CPUShares),
		RealtimeRuntime: set(w.CPURealtime), RealtimePeriod: set(w.CPURealtimePeriod), Cpus: w.CPUSet,
	}
	if w.NanoCPUs > 0 {
		c.Quota = cmp.Or(c.Quota, new(max(w.NanoCPUs*cpuPeriod/1e9, minCPUQuota)))
		c.Period = cmp.Or(c.Period, new(uint64(cpuPeriod)))
	}
	return set(c)
}

// memory sets limits. By default a limit is for memory and swap together: a hard limit.
func memory(w workload.Resources, countsSwap bool) *specs.LinuxMemory {
	m := specs.LinuxMemory{
		Limit: set(w.MemoryBytes), Swap: set(w.MemorySwap), Reservation: set(w.MemoryReservation), Swappiness: w.Swappiness,
		DisableOOMKiller: set(w.OOMKillDisable),
	}
	if countsSwap {
		m.Swap = cmp.Or(m.Swap, m.Limit)
	}
	return set(m)
}

func blockIO(b *workload.Blkio) (*specs.LinuxBlockIO, error) {
	if b == nil {
		return nil, nil
	}
	out := &specs.LinuxBlockIO{Weight: set(b.Weight)}
	for _, d := range b.WeightDevices {
		at, err := blockDevice(d.Path)
		if err != nil {
			return nil, err
		}
		out.WeightDevice = append(out.WeightDevice, specs.LinuxWeightDevice{LinuxBlockIODevice: at, Weight: new(uint16(min(d.Rate, math.MaxUint16)))})
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
			at, err := blockDevice(d.Path)
			if err != nil {
				return nil, err
			}
			*l.to = append(*l.to, specs.LinuxThrottleDevice{LinuxBlockIODevice: at, Rate: d.Rate})
		}
	}
	return out, nil
}

func blockDevice(name string) (d specs.LinuxBlockIODevice, err error) {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return d, fmt.Errorf("blkio_config: block device %s: %w", name, failure.As(fault.ErrUnfit, err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return d, fmt.Errorf("blkio_config: %s is not a block device: %w", name, fault.ErrUnfit)
	}
	return specs.LinuxBlockIODevice{Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev))}, nil
}

// rlimits are only the service's own: containerd's default of 1024 files breaks servers. No limit, -1, is the largest number.
func rlimits(list []workload.Ulimit) (out []specs.POSIXRlimit) {
	for _, u := range list {
		out = append(out, specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(u.Name), Soft: uint64(u.Soft), Hard: uint64(u.Hard)})
	}
	return out
}

// sysctls are kernel parameters of the container's own namespaces: agent/compose rejects all others, as runc does.
func sysctls(s workload.Service) map[string]string {
	out := map[string]string{}
	if ns := s.Namespaces.Network; ns == "" || ns == workload.NoNamespace {
		// Ports below 1024 need no privilege in a namespace of one container.
		out["net.ipv4.ip_unprivileged_port_start"] = "0"
	}
	maps.Copy(out, s.Sysctls)
	return out
}
