package scenario

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	units "github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
)

func parseFile(a *arguments) property {
	name := a.next("a path")
	mode, owner, text, whole := "", "", "", false
	for !a.failed && a.peek() != "" && text == "" {
		column := a.column()
		switch w := a.next(""); w {
		case "mode":
			mode = a.next("a mode like 0400")
			if _, err := strconv.ParseUint(mode, 8, 32); err != nil {
				a.fault(column, "%q is no mode", mode)
			}
		case "owner":
			owner = a.next("UID:GID")
		case "contains":
			text = a.next("a text")
		case "is":
			text, whole = a.next("a text"), true
		default:
			a.fault(column, "%q is none of mode, owner, contains, is", w)
		}
	}
	return property{soon: true, real: func(m *machine, o workload.Observation) error {
		if o.PID == 0 {
			return fmt.Errorf("container %s is %s", o.ID, o.Status)
		}
		file := filepath.Join(fmt.Sprintf("/proc/%d/root", o.PID), path.Clean("/"+name))
		info, err := os.Lstat(file)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("no owner is known")
		}
		if want, _ := strconv.ParseUint(mode, 8, 32); mode != "" && fs.FileMode(want) != fs.FileMode(st.Mode&0o7777) {
			return fmt.Errorf("its mode is %#o", st.Mode&0o7777)
		}
		if got := fmt.Sprintf("%d:%d", st.Uid, st.Gid); owner != "" && got != owner {
			return fmt.Errorf("its owner is %s", got)
		}
		if text == "" && !whole {
			return nil
		}
		data, err := os.ReadFile(file)
		if whole && err == nil && string(data) != text {
			return fmt.Errorf("it is %q", data)
		}
		return contains(string(data), err, text)
	}}
}

func parseMount(a *arguments) property {
	target := a.next("a path")
	options := a.rest()
	return property{real: func(m *machine, o workload.Observation) error {
		text, err := m.proc(o, "mountinfo")
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			dash := slices.Index(f, "-")
			if len(f) < 6 || dash < 0 || f[4] != target {
				continue
			}
			has := append(strings.Split(f[5], ","), f[6:dash]...)
			has = append(has, f[dash+1])
			has = append(has, strings.Split(f[len(f)-1], ",")...)
			for _, want := range options {
				if !slices.ContainsFunc(has, func(h string) bool { return h == want || strings.HasPrefix(h, want+":") }) {
					return fmt.Errorf("no %s in %s", want, line)
				}
			}
			return nil
		}
		return fmt.Errorf("nothing is mounted at %s", target)
	}}
}

// limit is where the kernel keeps a limit of a cgroup: the file of version 1 below its controller, and that of version 2.
type limit struct {
	controller, v1, v2 string
	form               string // "bytes": of a size; "": as it is
}

func limits() map[string]limit {
	return map[string]limit{
		"memory":             {"memory", "memory.limit_in_bytes", "memory.max", "bytes"},
		"memory+swap":        {"memory", "memory.memsw.limit_in_bytes", "", "bytes"},
		"memory-reservation": {"memory", "memory.soft_limit_in_bytes", "memory.low", "bytes"},
		"swappiness":         {"memory", "memory.swappiness", "", ""},
		"oom":                {"memory", "memory.oom_control", "", ""},
		"pids":               {"pids", "pids.max", "pids.max", ""},
		"cpu-quota":          {"cpu", "cpu.cfs_quota_us", "cpu.max", ""},
		"cpu-period":         {"cpu", "cpu.cfs_period_us", "cpu.max", ""},
		"cpu-shares":         {"cpu", "cpu.shares", "", ""},
		"cpuset":             {"cpuset", "cpuset.cpus", "cpuset.cpus", ""},
		"devices":            {"devices", "devices.list", "", ""},
		"read-bps":           {"blkio", "blkio.throttle.read_bps_device", "io.max", ""},
		"write-bps":          {"blkio", "blkio.throttle.write_bps_device", "io.max", ""},
		"read-iops":          {"blkio", "blkio.throttle.read_iops_device", "io.max", ""},
		"write-iops":         {"blkio", "blkio.throttle.write_iops_device", "io.max", ""},
		"path":               {"memory", "", "", ""},
	}
}

func parseLimit(a *arguments) property {
	column := a.column()
	name := a.next("a limit")
	l, ok := limits()[name]
	if !ok && !a.failed {
		a.fault(column, "%q is none of %s", name, strings.Join(sorted(limits()), ", "))
	}
	want := a.next("a value")
	if l.form == "bytes" && !a.failed {
		n, err := units.RAMInBytes(want)
		if err != nil {
			a.fault(column, "%q is no size", want)
		}
		want = fmt.Sprint(n)
	}
	return property{real: func(m *machine, o workload.Observation) error {
		dir, v2, err := m.cgroup(o, l.controller)
		if err != nil {
			return err
		}
		if name == "path" {
			return contains(dir, nil, want)
		}
		file := l.v1
		if v2 {
			file = l.v2
		}
		if file == "" {
			return nil // this version has no such limit
		}
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		got := strings.Join(strings.Fields(string(data)), " ")
		if got == want || strings.Contains(" "+got+" ", " "+want+" ") {
			return nil
		}
		return fmt.Errorf("%s is %q", file, got)
	}}
}

// cgroup is the folder of a container's cgroup of a controller.
func (m *machine) cgroup(o workload.Observation, controller string) (dir string, v2 bool, err error) {
	text, err := m.proc(o, "cgroup")
	if err != nil {
		return "", false, err
	}
	unified := ""
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if slices.Contains(strings.Split(f[1], ","), controller) {
			return filepath.Join("/sys/fs/cgroup", controller, f[2]), false, nil
		}
		if f[0] == "0" {
			unified = f[2]
		}
	}
	return filepath.Join("/sys/fs/cgroup", unified), true, nil
}

func parseCaps(a *arguments) property {
	column := a.column()
	all := a.rest()
	if len(all) == 0 {
		a.fault(column, "want +NAME or -NAME")
	}
	for _, c := range all {
		if _, ok := capability(strings.TrimLeft(c, "+-")); !ok {
			a.fault(column, "%q is no capability known here", c)
		}
	}
	return property{real: func(m *machine, o workload.Observation) error {
		text, err := m.proc(o, "status")
		if err != nil {
			return err
		}
		f := field(text, "CapEff:")
		if len(f) != 1 {
			return errors.New("no CapEff")
		}
		has, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil {
			return err
		}
		for _, c := range all {
			bit, _ := capability(strings.TrimLeft(c, "+-"))
			if want := !strings.HasPrefix(c, "-"); (has>>bit&1 == 1) != want {
				return fmt.Errorf("capability %s: they are %x", c, has)
			}
		}
		return nil
	}}
}

func capability(name string) (bit uint, ok bool) {
	bit, ok = map[string]uint{
		"CHOWN": unix.CAP_CHOWN, "NET_ADMIN": unix.CAP_NET_ADMIN, "SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_TIME": unix.CAP_SYS_TIME,
		"NET_RAW": unix.CAP_NET_RAW, "MKNOD": unix.CAP_MKNOD, "KILL": unix.CAP_KILL, "SETUID": unix.CAP_SETUID,
	}[name]
	return bit, ok
}

// features are what a scenario can need beside a runtime.
func features() []string {
	return []string{"cgroup-v1", "ipvlan", "macvlan", "gpu", "apparmor", "selinux", "seccomp", "ipv6", "cpu-realtime", "blkio-weight", "swap", "shared-mounts"}
}

// hostLacks returns why this machine lacks a feature; "": it has it.
func hostLacks(what string) string {
	missing := func(file, why string) string {
		if _, err := os.Stat(file); err != nil {
			return why
		}
		return ""
	}
	switch what {
	case "cgroup-v1":
		return missing("/sys/fs/cgroup/memory/memory.limit_in_bytes", "cgroups are of version 2")
	case "swap":
		return missing("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "the kernel does not account swap")
	case "cpu-realtime":
		const file = "/sys/fs/cgroup/cpu/cpu.rt_runtime_us"
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == "0" {
			return "the kernel gives real-time groups no time"
		}
		return missing(file, "the kernel has no real-time groups")
	case "blkio-weight":
		return missing("/sys/fs/cgroup/blkio/blkio.weight", "no block scheduler of this kernel has weights")
	case "gpu":
		return missing("/dev/nvidiactl", "there is no GPU")
	case "apparmor":
		return missing("/sys/kernel/security/apparmor/profiles", "the kernel has no AppArmor")
	case "selinux":
		return missing("/sys/fs/selinux/enforce", "the kernel has no SELinux")
	case "ipv6":
		return missing("/proc/sys/net/ipv6", "the kernel has no IPv6")
	case "shared-mounts":
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 6 && f[4] == "/sys" && strings.HasPrefix(f[6], "shared:") {
				return ""
			}
		}
		return "mounts of this machine are private"
	case "ipvlan", "macvlan":
		return linkLacks(what)
	}
	return ""
}

// linkLacks tries to make an interface of a kind, in a network of its own.
func linkLacks(kind string) string {
	cmd := exec.Command("unshare", "--net", "sh", "-c", "ip link add name v0 type veth peer name v1 && ip link add link v0 name v2 type "+kind)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Sprintf("the kernel makes no %s: %s", kind, strings.TrimSpace(string(text)))
	}
	return ""
}

// inHost runs a command of this system in the machine's network.
func (m *machine) inHost(ctx context.Context, argv ...string) error {
	return inNetwork(m.host, func() error { // a child inherits the thread's network
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, text)
		}
		return nil
	})
}
