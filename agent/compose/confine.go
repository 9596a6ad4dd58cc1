package compose

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxProfile bounds a seccomp profile; Docker's own is 12 KiB.
const maxProfile = 256 << 10

// capability is the name of a capability of the kernel, without CAP_, or ALL.
var capability = strict.Expression(`^(ALL|AUDIT_(CONTROL|READ|WRITE)|BLOCK_SUSPEND|BPF|CHECKPOINT_RESTORE|CHOWN|DAC_OVERRIDE|DAC_READ_SEARCH|FOWNER|FSETID|IPC_(LOCK|OWNER)|KILL|LEASE|LINUX_IMMUTABLE|MAC_(ADMIN|OVERRIDE)|MKNOD|NET_(ADMIN|BIND_SERVICE|BROADCAST|RAW)|PERFMON|SETFCAP|SETGID|SETPCAP|SETUID|SYSLOG|SYS_(ADMIN|BOOT|CHROOT|MODULE|NICE|PACCT|PTRACE|RAWIO|RESOURCE|TIME|TTY_CONFIG)|WAKE_ALARM)$`)

func (t *translation) confine(n *composefile.Node, s *workload.Service) {
	c := workload.Security{
		Privileged: t.flag(n.Get("privileged")),
		CapAdd:     t.capabilities(n.Get("cap_add")),
		CapDrop:    t.capabilities(n.Get("cap_drop")),
	}
	for _, o := range t.Elements(n.Get("security_opt")) {
		t.securityOption(o, &c)
	}
	if c.Privileged || c.NoNewPrivileges || c.Unmasked || c.Seccomp != "" || c.AppArmor != "" || len(c.CapAdd)+len(c.CapDrop)+len(c.Label) > 0 {
		s.Security = &c
	}
	s.Ulimits = t.ulimits(n.Get("ulimits"))
	t.sysctls(n.Get("sysctls"), s)
}

func (t *translation) capabilities(n *composefile.Node) []string {
	var out []string
	for _, item := range t.Elements(n) {
		name := strings.TrimPrefix(strings.ToUpper(item.Text()), "CAP_")
		switch {
		case !capability.MatchString(name):
			t.Fault(item, "", "%q is no capability", composefile.Clip(item.Text()))
		case !slices.Contains(out, name):
			out = append(out, name)
		}
	}
	return out
}

// securityOption reads "key=value", or the older form "key:value".
func (t *translation) securityOption(n *composefile.Node, c *workload.Security) {
	key, value, ok := strings.Cut(n.Text(), "=")
	if !ok {
		key, value, ok = strings.Cut(n.Text(), ":")
	}
	switch {
	case key == "no-new-privileges":
		switch {
		case !ok || value == "true":
			c.NoNewPrivileges = true
		case value != "false":
			t.Fault(n, "", "must be true or false")
		}
	case !ok || value == "":
		t.Fault(n, "write name=value", "%q is no security option", composefile.Clip(n.Text()))
	case key == "seccomp":
		c.Seccomp = value
		if value == "builtin" {
			c.Seccomp = ""
		} else if value != "unconfined" {
			c.Seccomp = t.profile(n, value)
		}
	case key == "apparmor":
		c.AppArmor = value
	case key == "label":
		c.Label = append(c.Label, value)
	case key == "systempaths" && value == "unconfined":
		c.Unmasked = true
	case key == "systempaths", key == "writable-cgroups":
		t.Fault(n, "", "%q is not possible on a device", composefile.Clip(n.Text()))
	default:
		t.Fault(n, "no-new-privileges, seccomp, apparmor, label and systempaths are", "%q is no security option", composefile.Clip(key))
	}
}

// profile reads a seccomp profile of the archive.
func (t *translation) profile(n *composefile.Node, name string) string {
	data, ok := t.read(n, name, maxProfile, "a seccomp profile")
	if !ok || t.files == nil {
		return "unread"
	}
	if !json.Valid(data) || !strings.HasPrefix(strings.TrimSpace(string(data)), "{") {
		t.Fault(n, "", "%s is no seccomp profile: it is not JSON", name)
		return ""
	}
	return string(data)
}

// limitName is the name of a limit of setrlimit(2), without RLIMIT_.
var limitName = strict.Expression(`^(as|core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime|sigpending|stack)$`)

func (t *translation) ulimits(n *composefile.Node) []workload.Ulimit {
	if n.IsNull() {
		return nil
	}
	if n.Kind != composefile.Map {
		t.Fault(n, "write name: number, or name: {soft: …, hard: …}", "must be a mapping")
		return nil
	}
	var out []workload.Ulimit
	for _, name := range slices.Sorted(slices.Values(n.Keys)) {
		v := n.Fields[name]
		u := workload.Ulimit{Name: name}
		switch {
		case !limitName.MatchString(name):
			t.Fault(v, "", "%q is no limit of the kernel", composefile.Clip(name))
			continue
		case v.IsNull():
			t.Fault(v, "", "there is no value")
			continue
		case v.Kind == composefile.Map && (v.Get("soft").IsNull() || v.Get("hard").IsNull()):
			t.Fault(v, "", "soft and hard must both be there")
			continue
		case v.Kind == composefile.Map:
			u.Soft, u.Hard = t.integer(v.Get("soft"), -1, math.MaxInt64), t.integer(v.Get("hard"), -1, math.MaxInt64)
		default:
			u.Soft = t.integer(v, -1, math.MaxInt64)
			u.Hard = u.Soft
		}
		if u.Hard != -1 && (u.Soft > u.Hard || u.Soft == -1) {
			t.Fault(v, "", "soft is more than hard")
			continue
		}
		out = append(out, u)
	}
	return out
}

// ipcSysctls belong to an IPC namespace, as fs.mqueue.* does.
var ipcSysctls = strict.Expression(`^(kernel\.(msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|shm_rmid_forced)|fs\.mqueue\..+)$`)

// sysctlName is a dotted name, as in sysctl(8).
var sysctlName = strict.Expression(`^[a-zA-Z0-9_-]+([./][a-zA-Z0-9_:-]+)+$`)

func (t *translation) sysctls(n *composefile.Node, s *workload.Service) {
	for _, p := range t.pairsOf(n) {
		key := p.key
		switch {
		case !sysctlName.MatchString(key):
			t.Fault(p.at, "", "%q is no kernel parameter", composefile.Clip(key))
			continue
		case strings.HasPrefix(key, "net.") && s.Namespaces.Network == workload.HostNamespace:
			t.Fault(p.at, "", "%s would be changed on the device itself: the service has its network", key)
			continue
		case ipcSysctls.MatchString(key) && s.Namespaces.IPC == workload.HostNamespace:
			t.Fault(p.at, "", "%s would be changed on the device itself: the service has its IPC", key)
			continue
		case key == "kernel.domainname" && s.Namespaces.UTS == "", strings.HasPrefix(key, "net."), ipcSysctls.MatchString(key):
		default:
			t.Fault(p.at, "set it on the device itself", "%s belongs to the whole device, not to a container", key)
			continue
		}
		if s.Sysctls == nil {
			s.Sysctls = map[string]string{}
		}
		s.Sysctls[key] = p.value
	}
}

// namespaces reads pid, ipc, uts, userns_mode and cgroup; network_mode is with the networks.
func (t *translation) namespaces(n *composefile.Node, s *workload.Service) {
	own := []string{"", "private"}
	s.Namespaces.PID = t.namespace(n.Get("pid"), own, "host")
	s.Namespaces.IPC = t.namespace(n.Get("ipc"), []string{"", "private", "shareable"}, "host", "none")
	s.Namespaces.UTS = t.namespace(n.Get("uts"), own, "host")
	s.Namespaces.Cgroup = t.namespace(n.Get("cgroup"), []string{""}, "host", "private")
	s.Namespaces.User = t.namespace(n.Get("userns_mode"), []string{"", "host"}, "private")
	for _, key := range []string{"uts", "cgroup", "userns_mode"} {
		if _, shared := t.sharedWith(n.Get(key).Text()); shared {
			t.Fault(n.Get(key), "", "this namespace cannot be another service's")
		}
	}
}

// namespace reads one mode: own are the values for a namespace of its own, words those of workload.Namespace.
func (t *translation) namespace(n *composefile.Node, own []string, words ...string) workload.Namespace {
	s := t.Text(n)
	name, shared := t.sharedWith(s)
	switch {
	case slices.Contains(own, s):
		return ""
	case slices.Contains(words, s):
		return workload.Namespace(s)
	case shared && t.root.Get("services", name) != nil:
		return workload.ServiceNamespace(name)
	case shared:
		t.Fault(n, t.inactiveHint(name), "service %q is not defined", composefile.Clip(name))
	case strings.HasPrefix(s, "container:"):
		t.Fault(n, "share it with a service of the project: service:NAME", "no service of the file has container_name %q", composefile.Clip(strings.TrimPrefix(s, "container:")))
	default:
		t.Fault(n, "", "%q is none of %s", composefile.Clip(s), strings.Join(append(words, "service:NAME"), ", "))
	}
	return ""
}

// cdiName is the name of a device of the Container Device Interface.
var cdiName = strict.Expression(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*[a-zA-Z0-9]/[a-zA-Z0-9_.-]+=[a-zA-Z0-9]([a-zA-Z0-9_.:-]*[a-zA-Z0-9])?$`)

func (t *translation) devices(n *composefile.Node, s *workload.Service) {
	for at, item := range t.List(n.Get("devices"), composefile.MaxList) {
		t.device(item, at, s)
	}
	s.DeviceRules = t.matching(n.Get("device_cgroup_rules"), deviceRule.MatchString, "write type, major and minor number, permissions: \"c 189:* rmw\"", "rule for devices")
	if g := n.Get("gpus"); g != nil && g.Kind == composefile.Scalar {
		switch g.Text() {
		case "":
		case "all":
			s.GPUs = append(s.GPUs, workload.DeviceRequest{Count: -1})
		default:
			t.Fault(g, "", "must be \"all\" or a list")
		}
	} else {
		t.deviceRequests(g, s)
	}
	t.deviceRequests(n.Get("deploy", "resources", "reservations", "devices"), s)
}

var deviceRule = strict.Expression(`^[acb] (\d{1,7}|\*):(\d{1,7}|\*) [rwm]{1,3}$`)

func (t *translation) device(n *composefile.Node, at int, s *workload.Service) {
	var source, target, permissions string
	if n.Kind == composefile.Map {
		source, target, permissions = t.Text(n.Get("source")), t.Text(n.Get("target")), t.Text(n.Get("permissions"))
	} else {
		source = t.Text(n)
	}
	if cdiName.MatchString(source) && !strings.HasPrefix(source, "/") {
		if target != "" && target != source || permissions != "" && permissions != "rwm" {
			t.Fault(n, "", "a CDI device has its own path and permissions")
		}
		s.CDI = append(s.CDI, source)
		return
	}
	if n.Kind != composefile.Map {
		parts := strings.Split(source, ":")
		source = parts[0]
		switch {
		case len(parts) > 3:
			t.Fault(n, "write path:path:permissions", "%q is no device", composefile.Clip(n.Text()))
			return
		case len(parts) == 2 && !strings.HasPrefix(parts[1], "/"):
			permissions = parts[1]
		case len(parts) == 2:
			target = parts[1]
		case len(parts) == 3:
			target, permissions = parts[1], parts[2]
		}
	}
	switch {
	case !strings.HasPrefix(source, "/"), target != "" && !strings.HasPrefix(target, "/"):
		t.Fault(n, "write /dev/NAME, or vendor.com/class=name for a CDI device", "%q is no device", composefile.Clip(source))
		return
	case permissions != "" && !devicePermissions.MatchString(permissions):
		t.Fault(n, "", "%q are no permissions: r, w and m are", composefile.Clip(permissions))
		return
	}
	if target == source {
		target = ""
	}
	if permissions == "rwm" {
		permissions = ""
	}
	s.Devices = append(s.Devices, workload.Device{HostPath: source, ContainerPath: target, Permissions: permissions, At: at})
}

var devicePermissions = strict.Expression(`^[rwm]{1,3}$`)

func (t *translation) deviceRequests(n *composefile.Node, s *workload.Service) {
	for _, item := range t.List(n, composefile.MaxList) {
		if item.Kind != composefile.Map {
			t.Fault(item, "", "must be a mapping")
			continue
		}
		r := workload.DeviceRequest{
			Driver: t.Text(item.Get("driver")), IDs: t.texts(item.Get("device_ids")), Capabilities: t.texts(item.Get("capabilities")),
			Options: t.mapping(item.Get("options")),
		}
		switch c := item.Get("count"); {
		case c.IsNull():
			if len(r.IDs) == 0 {
				r.Count = -1
			}
		case len(r.IDs) > 0:
			t.Fault(c, "", "there are device_ids beside it")
		case c.Text() == "all":
			r.Count = -1
		default:
			if v, err := strconv.Atoi(c.Text()); err != nil || v < 1 && v != -1 || v > 1024 {
				t.Fault(c, "", "must be \"all\" or a number")
			} else {
				r.Count = v
			}
		}
		if r.Driver == "cdi" {
			for _, id := range r.IDs {
				if !cdiName.MatchString(id) {
					t.Fault(item.Get("device_ids"), "write vendor.com/class=name", "%q is no CDI device", composefile.Clip(id))
				}
			}
			if len(r.IDs) == 0 {
				t.Fault(item, "name them with device_ids: [vendor.com/class=name]", "a CDI device needs a name")
			}
			s.CDI = append(s.CDI, r.IDs...)
			continue
		}
		s.GPUs = append(s.GPUs, r)
	}
}

// privileges adds notices about settings that a device rejects unless its owner allows them, as far as the file shows.
func (t *translation) privileges(p *workload.Project) {
	if !t.publisher { // a device rejects them instead
		return
	}
	for _, f := range p.Privileges(workload.Guard{}) {
		at := t.root.Nearest(strings.NewReplacer("[", ".", "]", "").Replace(f.Path))
		t.Notice(at, "a device allows %s only where its owner set runtime.allowPrivileged", f.What)
	}
}
