package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Each group above a container gets what the containers below it want together, and never less than it has.
func TestRealtimeOfTheGroupsAbove(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  workload.Resources
		holds map[string]string
	}{
		{"nothing asked", map[string]string{"cpu/a/cpu.rt_runtime_us": "0"}, workload.Resources{}, map[string]string{"a": "0"}},
		{"new groups", nil, workload.Resources{CPURealtime: 5000}, map[string]string{"a": "5000", "a/ns": "5000"}},
		{"in another period", nil, workload.Resources{CPURealtime: 5000, CPURealtimePeriod: 500_000}, map[string]string{"a": "10000", "a/ns": "10000"}},
		{
			"beside another",
			map[string]string{"cpu/a/ns/other/cpu.rt_runtime_us": "7000", "cpu/a/ns/c/cpu.rt_runtime_us": "100"},
			workload.Resources{CPURealtime: 5000},
			map[string]string{"a/ns": "12000"},
		},
		{"enough there", map[string]string{"cpu/a/cpu.rt_runtime_us": "90000"}, workload.Resources{CPURealtime: 5000}, map[string]string{"a": "90000", "a/ns": "5000"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := groups(t, tc.files)
			if err := os.MkdirAll(filepath.Join(root, "cpu"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := AllowRealtime(root, "/a/ns/c", tc.want); err != nil {
				t.Fatal(err)
			}
			for group, want := range tc.holds {
				if got := readSmall(filepath.Join(root, "cpu", group, realtimeFile)); got != want {
					t.Errorf("group %s has %q, want %q", group, got, want)
				}
			}
		})
	}
}
