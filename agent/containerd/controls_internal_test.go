package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// groups makes the files of a control group mount.
func groups(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFindControls(t *testing.T) {
	for _, tc := range []struct {
		name    string
		version int
		files   map[string]string
		want    Controls
	}{
		{
			name: "version 2 with all", version: 2,
			files: map[string]string{
				"cgroup.controllers": "cpuset cpu io memory pids\n", "io.cost.qos": "", "system.slice/memory.max": "max", "system.slice/memory.swap.max": "max",
			},
			want: Controls{
				Controllers: map[string]bool{"cpuset": true, "cpu": true, "io": true, "memory": true, "pids": true}, CPUQuota: true,
				Memory: true, Reservation: true, Swap: true, Weight: true, WeightOf: true, Throttle: true,
			},
		},
		{
			name: "version 2 without swap and weights", version: 2,
			files: map[string]string{"cgroup.controllers": "io memory\n", "system.slice/memory.max": "max"},
			want:  Controls{Controllers: map[string]bool{"io": true, "memory": true}, Memory: true, Reservation: true, Throttle: true},
		},
		{
			name: "version 1 with all", version: 1,
			files: map[string]string{
				"cpu/cpu.cfs_quota_us": "", "cpu/cpu.rt_runtime_us": "", "cpuset/x": "", "memory/memory.limit_in_bytes": "",
				"memory/memory.soft_limit_in_bytes": "", "memory/memory.memsw.limit_in_bytes": "", "memory/memory.swappiness": "",
				"memory/memory.oom_control": "", "pids/x": "", "blkio/blkio.throttle.read_bps_device": "", "blkio/c/blkio.bfq.weight": "",
				"blkio/c/blkio.bfq.weight_device": "",
			},
			want: Controls{
				Controllers: map[string]bool{"cpuset": true, "cpu": true, "io": true, "memory": true, "pids": true}, CPUQuota: true, Realtime: true,
				Memory: true, Reservation: true, Swap: true, Swappiness: true, KeepOnOOM: true, Weight: true, WeightOf: true, Throttle: true,
			},
		},
		{
			name: "version 1 of a kernel without much", version: 1, files: map[string]string{
				"memory/memory.limit_in_bytes": "", "blkio/c/x": "", "cpu/cpu.rt_runtime_us": "0\n",
			},
			want: Controls{Controllers: map[string]bool{"cpu": true, "memory": true, "io": true}, Memory: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, findControls(groups(t, tc.files), tc.version)); diff != "" {
				t.Errorf("controls (-want +got):\n%s", diff)
			}
		})
	}
}

// Each limit is named when the kernel lacks it, and none is when it has them all.
func TestUnmetNamesEachLimit(t *testing.T) {
	all := Controls{
		Controllers: map[string]bool{"cpu": true, "cpuset": true, "memory": true, "pids": true, "io": true}, CPUQuota: true, Realtime: true,
		Memory: true, Reservation: true, Swap: true, Swappiness: true, KeepOnOOM: true, Weight: true, WeightOf: true, Throttle: true,
	}
	rate := []workload.BlkioRate{{Path: "/dev/sda", Rate: 1}}
	for key, r := range map[string]workload.Resources{
		"cpus": {NanoCPUs: 1}, "cpu_quota": {CPUQuota: 1}, "cpu_shares": {CPUShares: 2}, "cpuset": {CPUSet: "0"}, "cpu_rt_runtime": {CPURealtime: 1},
		"mem_limit": {MemoryBytes: 1}, "mem_reservation": {MemoryReservation: 1}, "memswap_limit": {MemorySwap: -1}, "mem_swappiness": {Swappiness: new(uint64)},
		"oom_kill_disable": {OOMKillDisable: true}, "pids_limit": {PIDs: 1}, "blkio_config.weight": {Blkio: &workload.Blkio{Weight: 10}},
		"blkio_config.weight_device": {Blkio: &workload.Blkio{WeightDevices: rate}}, "blkio_config": {Blkio: &workload.Blkio{WriteIOps: rate}},
	} {
		t.Run(key, func(t *testing.T) {
			s := workload.Service{Resources: r}
			if err := (Features{Controls: all, CgroupVersion: 1}).unmet(s); err != nil {
				t.Errorf("with everything there: %v", err)
			}
			err := Features{CgroupVersion: 2}.unmet(s)
			if !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), key) {
				t.Errorf("with nothing there: %v, want %s in it", err, key)
			}
		})
	}
	if err := (Features{}).unmet(workload.Service{}); err != nil {
		t.Errorf("no limit: %v", err)
	}
}

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
