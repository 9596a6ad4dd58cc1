package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// realtimePeriod is the kernel's own, in microseconds, which groups between the root and a container keep.
const realtimePeriod = 1_000_000

// AllowRealtime gives the groups above a container time for real-time processes, because in version 1 of control
// groups a new group has none. group is the container's, below the mount point.
func AllowRealtime(root, group string, w workload.Resources) error {
	if w.CPURealtime <= 0 {
		return nil
	}
	want := w.CPURealtime
	if w.CPURealtimePeriod > 0 {
		want = want * realtimePeriod / int64(w.CPURealtimePeriod)
	}
	at := filepath.Join(root, "cpu")
	for name := range strings.SplitSeq(strings.Trim(filepath.Dir(group), "/"), "/") {
		at = filepath.Join(at, name)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		sum := want
		below, err := filepath.Glob(filepath.Join(at, "*", realtimeFile))
		if err != nil {
			return err
		}
		for _, b := range below {
			if filepath.Dir(b) != filepath.Join(root, "cpu", group) {
				sum += number(b)
			}
		}
		if own := filepath.Join(at, realtimeFile); number(own) < sum {
			if err := os.WriteFile(own, []byte(strconv.FormatInt(sum, 10)), 0o644); err != nil {
				return fmt.Errorf("cpu_rt_runtime: give group %s %d µs a second: %w", at, sum, err)
			}
		}
	}
	return nil
}

const realtimeFile = "cpu.rt_runtime_us"

// number reads a number from a file of the kernel; 0 if it has none.
func number(file string) int64 {
	n, err := strconv.ParseInt(readSmall(file), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
