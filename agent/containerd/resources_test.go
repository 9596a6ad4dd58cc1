package containerd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

func p[T any](v T) *T { return &v }

// group is where a process is in a hierarchy of control groups of version 1.
func group(t *testing.T, pid uint32, controller string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[1] == controller {
			return f[2]
		}
	}
	t.Fatalf("no %s in %s", controller, b)
	return ""
}

func TestLimitsOfGroups(t *testing.T) {
	r := newRig(t)
	f, err := r.Features(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.CgroupVersion != 1 {
		testenv.Unavailable(t, "this machine has control groups of version %d: TestResourcesSpec holds the rest", f.CgroupVersion)
	}
	s := server(r.pulled(nil))
	s.Resources = workload.Resources{
		CPUShares: 512, CPUQuota: 50_000, CPUPeriod: 200_000, CPUSet: "0", MemoryBytes: 64 << 20, MemoryReservation: 32 << 20,
		MemorySwap: 96 << 20, Swappiness: p(uint64(10)), OOMScoreAdj: 500, PIDs: 99, CgroupParent: "longshore-test-parent",
	}
	want := map[string]string{
		"cpu/cpu.shares": "512", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "200000", "cpuset/cpuset.cpus": "0",
		"memory/memory.limit_in_bytes": "67108864", "memory/memory.soft_limit_in_bytes": "33554432",
		"memory/memory.memsw.limit_in_bytes": "100663296", "memory/memory.swappiness": "10", "pids/pids.max": "99",
	}
	if disk := aDisk(); disk != "" {
		s.Resources.Blkio = &workload.Blkio{
			ReadBps: []workload.BlkioRate{{Path: disk, Rate: 1 << 20}}, WriteIOps: []workload.BlkioRate{{Path: disk, Rate: 123}},
		}
		want["blkio/blkio.throttle.read_bps_device"], want["blkio/blkio.throttle.write_iops_device"] = "1048576", "123"
		if f.Controls.Weight {
			s.Resources.Blkio.Weight = 300
		}
	}
	if f.Controls.KeepOnOOM {
		s.Resources.OOMKillDisable = true
		want["memory/memory.oom_control"] = "oom_kill_disable 1"
	}
	if f.Controls.Realtime {
		s.Resources.CPURealtime, s.Resources.CPURealtimePeriod = 5000, 500_000
		want["cpu/cpu.rt_runtime_us"], want["cpu/cpu.rt_period_us"] = "5000", "500000"
	}
	c := r.up(project("lim", s))[0]
	pid := r.seen(c.ID).PID
	t.Cleanup(func() {
		for _, controller := range []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "devices", "freezer", "systemd"} {
			dir := filepath.Join("/sys/fs/cgroup", controller, "longshore-test-parent")
			_ = os.Remove(filepath.Join(dir, r.o.Namespace))
			_ = os.Remove(dir)
		}
	})
	for file, value := range want {
		controller, name, _ := strings.Cut(file, "/")
		at := group(t, pid, controller)
		if !strings.HasPrefix(at, "/longshore-test-parent/") {
			t.Errorf("%s: group %s", controller, at)
		}
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, at, name))
		if err != nil || !strings.Contains(string(b), value) {
			t.Errorf("%s = %q, %v, want %s", name, b, err, value)
		}
	}
	if b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "oom_score_adj")); err != nil || string(b) != "500\n" {
		t.Errorf("oom_score_adj %q, %v", b, err)
	}
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
}

// aDisk is a block device of this machine; "" when there is none.
func aDisk() string {
	all, err := filepath.Glob("/sys/block/[vsnm][dvm]*")
	if err != nil || len(all) == 0 {
		return ""
	}
	return "/dev/" + filepath.Base(all[0])
}

func TestLimitsOfProcesses(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Ulimits = []workload.Ulimit{{Name: "core", Soft: 0, Hard: 0}, {Name: "stack", Soft: 4 << 20, Hard: 16 << 20}}
	s.Sysctls = map[string]string{"net.core.somaxconn": "777", "kernel.msgmax": "4096", "net.ipv4.ip_unprivileged_port_start": "100"}
	s.Groups = []string{"www-data", "4242"}
	s.User = "www-data"
	c := r.up(project("proc", s))[0]
	pid := r.seen(c.ID).PID
	b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "limits"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Max stack size            4194304              16777216", "Max core file size        0                    0"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is not in\n%s", want, b)
		}
	}
	if got := of(t, pid, "Groups"); !strings.Contains(got, "4242") || !strings.Contains(got, "33 ") {
		t.Errorf("groups %q, want 33 and 4242 among them", got)
	}
	for file, want := range map[string]string{
		"/proc/sys/net/core/somaxconn": "777\n", "/proc/sys/kernel/msgmax": "4096\n", "/proc/sys/net/ipv4/ip_unprivileged_port_start": "100\n",
	} {
		if got := r.inside(c.ID, "cat", file); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
}

func TestAnotherRuntime(t *testing.T) {
	var wrapper string
	r := newRig(t, func(o *containerd.Options) {
		wrapper = filepath.Join(t.TempDir(), "other-runc")
		o.Runtimes = map[string]string{"other": wrapper}
	})
	text := "#!/bin/sh\necho \"$@\" >>" + wrapper + ".log\nexec " + testenv.Program(t, "runc") + " \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	s := server(r.pulled(nil))
	s.Runtime, s.Annotations = "other", map[string]string{"com.example.note": "kept", "io.containerd.runc.v2.group": "stolen"}
	c := r.up(project("rt", s))[0]
	r.serving(c.ID)
	if b, err := os.ReadFile(wrapper + ".log"); err != nil || !strings.Contains(string(b), "create") {
		t.Errorf("the other runtime did %q, %v", b, err)
	}
}
