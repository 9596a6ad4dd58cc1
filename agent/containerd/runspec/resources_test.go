package runspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
)

// The specification is the same for both versions of control groups: the OCI runtime translates it. Only swap depends on
// the kernel.
func TestResourcesSpec(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	u := func(v uint64) *uint64 { return &v }
	disable := true
	for _, tc := range []struct {
		name  string
		in    workload.Resources
		swap  bool
		cpu   *specs.LinuxCPU
		mem   *specs.LinuxMemory
		blkio *specs.LinuxBlockIO
	}{
		{name: "nothing", swap: true},
		{name: "processors", in: workload.Resources{NanoCPUs: 15e8}, cpu: &specs.LinuxCPU{Quota: n(150_000), Period: u(100_000)}},
		{
			name: "quota before processors", in: workload.Resources{NanoCPUs: 1e9, CPUQuota: 5000, CPUPeriod: 50_000, CPUShares: 3, CPUSet: "0-1", CPURealtime: 7, CPURealtimePeriod: 9},
			cpu: &specs.LinuxCPU{Quota: n(5000), Period: u(50_000), Shares: u(3), Cpus: "0-1", RealtimeRuntime: n(7), RealtimePeriod: u(9)},
		},
		{name: "memory is a hard limit", in: workload.Resources{MemoryBytes: 10}, swap: true, mem: &specs.LinuxMemory{Limit: n(10), Swap: n(10)}},
		{name: "memory where swap is not counted", in: workload.Resources{MemoryBytes: 10}, mem: &specs.LinuxMemory{Limit: n(10)}},
		{
			name: "all of memory", in: workload.Resources{MemoryBytes: 10, MemorySwap: -1, MemoryReservation: 5, Swappiness: u(0), OOMKillDisable: true}, swap: true,
			mem: &specs.LinuxMemory{Limit: n(10), Swap: n(-1), Reservation: n(5), Swappiness: u(0), DisableOOMKiller: &disable},
		},
		{name: "weight", in: workload.Resources{Blkio: &workload.Blkio{Weight: 300}}, blkio: &specs.LinuxBlockIO{Weight: func() *uint16 { v := uint16(300); return &v }()}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			io, err := blockIO(tc.in.Blkio)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.cpu, cpu(tc.in)); diff != "" {
				t.Errorf("cpu (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.mem, memory(tc.in, tc.swap)); diff != "" {
				t.Errorf("memory (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.blkio, io); diff != "" {
				t.Errorf("block devices (-want +got):\n%s", diff)
			}
		})
	}
}
