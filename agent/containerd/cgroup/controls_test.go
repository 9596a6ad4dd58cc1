package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
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
			if diff := cmp.Diff(tc.want, Find(groups(t, tc.files), tc.version)); diff != "" {
				t.Errorf("controls (-want +got):\n%s", diff)
			}
		})
	}
}
