package machine

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// cores are the processors that are switched on: the process may be allowed to use only some of them.
func (t *tree) cores(fallback int) int {
	n := 0
	for part := range strings.SplitSeq(t.text("sys/devices/system/cpu/online"), ",") { // "0-3,8"
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || b < a {
			return fallback
		}
		n += int(b-a) + 1
	}
	return n
}

func (t *tree) memory() uint64 {
	for line := range strings.Lines(t.text("proc/meminfo")) {
		rest, ok := strings.CutPrefix(line, "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil || kib > math.MaxUint64>>10 {
			return 0
		}
		return kib << 10
	}
	return 0
}

// features are what the kernel offers containers.
func (t *tree) features() []string {
	var out []string
	for feature, there := range map[string]bool{
		"apparmor": t.text("sys/module/apparmor/parameters/enabled") == "Y",
		"cgroup2":  t.has("sys/fs/cgroup/cgroup.controllers"),
		"kvm":      t.has("dev/kvm"),
		"seccomp":  t.has("proc/sys/kernel/seccomp/actions_avail"),
		"selinux":  t.has("sys/fs/selinux/enforce"),
		"tpm":      t.has("dev/tpmrm0"),
		"userns":   !slices.Contains([]string{"", "0"}, t.text("proc/sys/user/max_user_namespaces")),
	} {
		if there {
			out = append(out, feature)
		}
	}
	slices.Sort(out)
	return out
}
