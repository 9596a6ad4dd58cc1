package usage

import (
	"math"
	"strings"
	"testing"
	"time"

	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-dev/longshore/agent/workload"
)

// One container, as both kinds of control groups tell of it.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	v1 := &stats1.Metrics{
		Pids: &stats1.PidsStat{Current: 7, Limit: 100},
		CPU: &stats1.CPUStat{
			Usage:      &stats1.CPUUsage{Total: 1_500_000_000, Kernel: 1, User: 2, PerCPU: []uint64{3, 4}},
			Throttling: &stats1.Throttle{Periods: 9, ThrottledTime: 250_000_000},
		},
		Memory: &stats1.MemoryStat{
			Cache: 1, TotalCache: 30 << 20, TotalInactiveFile: 20 << 20, HierarchicalMemoryLimit: math.MaxInt64 &^ 4095,
			Usage: &stats1.MemoryEntry{Usage: 50 << 20, Limit: 128 << 20}, Swap: &stats1.MemoryEntry{Usage: 1},
		},
		Blkio: &stats1.BlkIOStat{
			IoServiceBytesRecursive: []*stats1.BlkIOEntry{
				{Op: "Read", Major: 8, Value: 1000}, {Op: "Write", Major: 8, Value: 100}, {Op: "Sync", Major: 8, Value: 1100}, {Op: "Read", Major: 9, Value: 1},
			},
			IoServicedRecursive: []*stats1.BlkIOEntry{{Op: "Read", Value: 5}},
		},
		MemoryOomControl: &stats1.MemoryOomControl{OomKill: 2},
	}
	v2 := &stats2.Metrics{
		Pids: &stats2.PidsStat{Current: 7, Limit: 100},
		CPU:  &stats2.CPUStat{UsageUsec: 1_500_000, UserUsec: 1, ThrottledUsec: 250_000},
		Memory: &stats2.MemoryStat{
			Anon: 30 << 20, File: 30 << 20, InactiveFile: 20 << 20, Usage: 50 << 20, UsageLimit: 128 << 20,
			PSI: &stats2.PSIStats{Some: &stats2.PSIData{Avg10: 1.5, Total: 3}},
		},
		Io:           &stats2.IOStat{Usage: []*stats2.IOEntry{{Major: 8, Rbytes: 1000, Wbytes: 100}, {Major: 9, Rbytes: 1}}},
		MemoryEvents: &stats2.MemoryEvents{Oom: 4, OomKill: 2},
	}
	out := map[string][]byte{}
	for kind, m := range map[string]proto.Message{metricsV1: v1, metricsV2: v2} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out[kind] = b
	}
	return out
}

func TestBothCgroupVersionsSayTheSame(t *testing.T) {
	want := workload.Usage{
		CPU: 1500 * time.Millisecond, Throttled: 250 * time.Millisecond, Memory: 30 << 20, MemoryCache: 30 << 20, MemoryLimit: 128 << 20,
		OOMKills: 2, PIDs: 7, PIDsLimit: 100, BlockRead: 1001, BlockWritten: 100,
	}
	for kind, data := range samples(t) {
		got, err := measured(kind, data)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", kind, d)
		}
	}
}

func TestNoLimitIsZero(t *testing.T) {
	v1, err := proto.Marshal(&stats1.Metrics{
		Pids:   &stats1.PidsStat{Current: 1},
		Memory: &stats1.MemoryStat{HierarchicalMemoryLimit: math.MaxInt64 &^ 4095, Usage: &stats1.MemoryEntry{Usage: 1, Limit: math.MaxInt64 &^ 4095}},
	})
	if err != nil {
		t.Fatal(err)
	}
	v2, err := proto.Marshal(&stats2.Metrics{
		Pids: &stats2.PidsStat{Current: 1, Limit: math.MaxUint64}, Memory: &stats2.MemoryStat{Usage: 1, UsageLimit: math.MaxUint64},
	})
	if err != nil {
		t.Fatal(err)
	}
	for kind, data := range map[string][]byte{metricsV1: v1, metricsV2: v2} {
		got, err := measured(kind, data)
		if d := cmp.Diff(workload.Usage{Memory: 1, PIDs: 1}, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", kind, err, d)
		}
	}
	if _, err := measured("io.containerd.cgroups.v3.Metrics", nil); err == nil {
		t.Error("figures of an unknown kind are no error")
	}
}

func TestInterfacesAreAddedUp(t *testing.T) {
	const table = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1000 1 1 1 0 0 0 0 1000 1 1 1 0 0 0 0
  eth0: 2000 20 1 2 0 0 0 0 300 3 4 8 0 0 0 0
  eth1:1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
 broken: 1 2
`
	var u workload.Usage
	addInterfaces(&u, strings.NewReader(table))
	if d := cmp.Diff(workload.Usage{NetworkReceived: 2001, NetworkTransmitted: 301, NetworkErrors: 15}, u); d != "" {
		t.Error(d)
	}
}

func FuzzMeasured(f *testing.F) {
	for kind, data := range samples(f) {
		f.Add(kind == metricsV1, data)
		f.Add(kind != metricsV1, data)
	}
	f.Add(true, []byte{0xff})
	f.Fuzz(func(t *testing.T, v1 bool, data []byte) {
		kind := metricsV2
		if v1 {
			kind = metricsV1
		}
		if u, err := measured(kind, data); err == nil && (u.CPU < 0 || u.Throttled < 0) {
			t.Errorf("%+v", u)
		}
	})
}
