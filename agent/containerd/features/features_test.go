package features

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A profile that could not be loaded, or that was removed, is loaded soon after that is possible, without a restart. Calls soon
// after a failure do not try again.
func TestAppArmorIsTriedAgain(t *testing.T) {
	var told bytes.Buffer
	var trouble error
	supported, tries := true, 0
	h := NewFinder(Options{Logger: slog.New(slog.NewTextHandler(&told, nil))})
	h.known = &Features{Seccomp: true}
	h.load = func(context.Context) (bool, error) {
		tries++
		return supported, trouble
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h.o.Now = func() time.Time { return now }
	broken := errors.New("apparmor_parser: no space left on device")
	for _, step := range []struct {
		name      string
		supported bool
		trouble   error
		want      bool
		log       string // "": nothing
		after     time.Duration
		tries     int
	}{
		{"broken", true, broken, false, "no space left on device", 0, 1},
		{"still broken", true, broken, false, "", loadInterval, 1},
		{"not tried yet", true, nil, false, "", loadInterval - 1, 0},
		{"mended", true, nil, true, "is loaded now", 1, 1},
		{"well", true, nil, true, "", 0, 1},
		{"removed and broken", true, broken, false, "no space left on device", 0, 1},
		{"the clock was set back", true, broken, false, "", -time.Hour, 1},
		{"mended again", true, nil, true, "is loaded now", loadInterval, 1},
		{"a kernel without it", false, nil, false, "", 0, 1},
	} {
		supported, trouble = step.supported, step.trouble
		told.Reset()
		tries, now = 0, now.Add(step.after)
		f, err := h.Find(t.Context())
		if err != nil || f.AppArmor != step.want || !f.Seccomp {
			t.Errorf("%s: AppArmor %v, seccomp %v, %v, want %v and true", step.name, f.AppArmor, f.Seccomp, err, step.want)
		}
		if tries != step.tries {
			t.Errorf("%s: tried %d times, want %d", step.name, tries, step.tries)
		}
		if got := told.String(); !strings.Contains(got, step.log) || step.log == "" && got != "" {
			t.Errorf("%s: told %q, want %q", step.name, got, step.log)
		}
	}
}

// Loading that was cut short by its caller says nothing of the next try.
func TestAppArmorOfACallerThatGaveUp(t *testing.T) {
	h := NewFinder(Options{Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	h.known = &Features{}
	ctx, cancel := context.WithCancel(t.Context())
	h.load = func(ctx context.Context) (bool, error) {
		cancel()
		return true, ctx.Err()
	}
	if _, err := h.Find(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Find = %v, want canceled", err)
	}
	h.load = func(context.Context) (bool, error) { return true, nil }
	if f, err := h.Find(t.Context()); err != nil || !f.AppArmor {
		t.Errorf("the next: AppArmor %v, %v", f.AppArmor, err)
	}
}

// Each limit is named when the kernel lacks it, and none is when it has them all.
func TestUnmetNamesEachLimit(t *testing.T) {
	all := cgroup.Controls{
		Controllers: map[string]bool{"cpu": true, "cpuset": true, "memory": true, "pids": true, "io": true}, CPUQuota: true, Realtime: true,
		Memory: true, Reservation: true, Swap: true, Swappiness: true, KeepOnOOM: true, Weight: true, WeightOf: true, Throttle: true,
	}
	noHint := map[string]bool{"cpu_rt_runtime": true, "mem_swappiness": true, "oom_kill_disable": true, "blkio_config.weight": true, "blkio_config.weight_device": true}
	rate := []workload.BlkioRate{{Path: "/dev/sda", Rate: 1}}
	for key, r := range map[string]workload.Resources{
		"cpus": {NanoCPUs: 1}, "cpu_quota": {CPUQuota: 1}, "cpu_shares": {CPUShares: 2}, "cpuset": {CPUSet: "0"}, "cpu_rt_runtime": {CPURealtime: 1},
		"mem_limit": {MemoryBytes: 1}, "mem_reservation": {MemoryReservation: 1}, "memswap_limit": {MemorySwap: -1}, "mem_swappiness": {Swappiness: new(uint64)},
		"oom_kill_disable": {OOMKillDisable: true}, "pids_limit": {PIDs: 1}, "blkio_config.weight": {Blkio: &workload.Blkio{Weight: 10}},
		"blkio_config.weight_device": {Blkio: &workload.Blkio{WeightDevices: rate}}, "blkio_config": {Blkio: &workload.Blkio{WriteIOps: rate}},
	} {
		t.Run(key, func(t *testing.T) {
			s := workload.Service{Resources: r}
			if err := (Features{Controls: all, CgroupVersion: 1}).Unmet(s); err != nil {
				t.Errorf("with everything there: %v", err)
			}
			none := Features{CgroupVersion: 2}
			if l := none.Controls.Lacks(r); len(l) != 1 || l[0].Key != key || l[0].What == "" || (l[0].Hint == "") != noHint[key] {
				t.Errorf("Lacks = %+v, want %s, and whether there is a hint: %t", l, key, !noHint[key])
			}
			err := none.Unmet(s)
			if !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), key) {
				t.Errorf("with nothing there: %v, want %s in it", err, key)
			}
		})
	}
	if err := (Features{}).Unmet(workload.Service{}); err != nil {
		t.Errorf("no limit: %v", err)
	}
}
