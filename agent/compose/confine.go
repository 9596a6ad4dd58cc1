package compose

import (
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// maxProfile bounds a seccomp profile; Docker's own is 12 KiB.
const maxProfile = 256 << 10

// capability is the name of a capability without CAP_.
var capability = regexp.MustCompile(`^[A-Z][A-Z_]{1,30}$`)

func (t *translation) confine(n *node, s *workload.Service) {
	c := workload.Security{
		Privileged: t.flag(n.get("privileged")),
		CapAdd:     t.capabilities(n.get("cap_add")),
		CapDrop:    t.capabilities(n.get("cap_drop")),
	}
	for _, o := range t.elements(n.get("security_opt")) {
		t.securityOption(o, &c)
	}
	if c.Privileged || c.NoNewPrivileges || c.Unmasked || c.Seccomp != "" || c.AppArmor != "" || len(c.CapAdd)+len(c.CapDrop)+len(c.Label) > 0 {
		s.Security = &c
	}
	s.Ulimits = t.ulimits(n.get("ulimits"))
	t.sysctls(n.get("sysctls"), s)
}

func (t *translation) capabilities(n *node) []string {
	var out []string
	for _, item := range t.elements(n) {
		name := strings.TrimPrefix(strings.ToUpper(item.str()), "CAP_")
		switch {
		case !capability.MatchString(name):
			t.fault(item, "", "%q is no capability", clipped(item.str()))
		case !slices.Contains(out, name):
			out = append(out, name)
		}
	}
	return out
}

// securityOption reads "key=value", or "key:value" as it was written long ago.
func (t *translation) securityOption(n *node, c *workload.Security) {
	key, value, ok := strings.Cut(n.str(), "=")
	if !ok {
		key, value, ok = strings.Cut(n.str(), ":")
	}
	switch {
	case key == "no-new-privileges":
		switch {
		case !ok || value == "true":
			c.NoNewPrivileges = true
		case value != "false":
			t.fault(n, "", "must be true or false")
		}
	case !ok || value == "":
		t.fault(n, "write name=value", "%q is no security option", clipped(n.str()))
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
		t.fault(n, "", "%q is not possible on a device", clipped(n.str()))
	default:
		t.fault(n, "no-new-privileges, seccomp, apparmor, label and systempaths are", "%q is no security option", clipped(key))
	}
}

// profile reads a seccomp profile of the archive.
func (t *translation) profile(n *node, name string) string {
	data, ok := t.read(n, name, maxProfile, "a seccomp profile")
	if !ok || t.files == nil {
		return "unread"
	}
	if !json.Valid(data) || !strings.HasPrefix(strings.TrimSpace(string(data)), "{") {
		t.fault(n, "", "%s is no seccomp profile: it is not JSON", name)
		return ""
	}
	return string(data)
}

// limitName is what setrlimit(2) calls a limit, without RLIMIT_.
var limitName = regexp.MustCompile(`^(as|core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime|sigpending|stack)$`)

func (t *translation) ulimits(n *node) []workload.Ulimit {
	if n.isNull() {
		return nil
	}
	if n.kind != mapKind {
		t.fault(n, "write name: number, or name: {soft: …, hard: …}", "must be a mapping")
		return nil
	}
	var out []workload.Ulimit
	for _, name := range slices.Sorted(slices.Values(n.keys)) {
		v := n.fields[name]
		u := workload.Ulimit{Name: name}
		switch {
		case !limitName.MatchString(name):
			t.fault(v, "", "%q is no limit of the kernel", clipped(name))
			continue
		case v.isNull():
			t.fault(v, "", "there is no value")
			continue
		case v.kind == mapKind && (v.get("soft").isNull() || v.get("hard").isNull()):
			t.fault(v, "", "soft and hard must both be there")
			continue
		case v.kind == mapKind:
			u.Soft, u.Hard = t.integer(v.get("soft"), -1, math.MaxInt64), t.integer(v.get("hard"), -1, math.MaxInt64)
		default:
			u.Soft = t.integer(v, -1, math.MaxInt64)
			u.Hard = u.Soft
		}
		if u.Hard != -1 && (u.Soft > u.Hard || u.Soft == -1) {
			t.fault(v, "", "soft is more than hard")
			continue
		}
		out = append(out, u)
	}
	return out
}

// ipcSysctls belong to an IPC namespace, as fs.mqueue.* does.
var ipcSysctls = regexp.MustCompile(`^(kernel\.(msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|shm_rmid_forced)|fs\.mqueue\..+)$`)

// sysctlName is a dotted name, as sysctl(8) has it.
var sysctlName = regexp.MustCompile(`^[a-zA-Z0-9_-]+([./][a-zA-Z0-9_:-]+)+$`)

func (t *translation) sysctls(n *node, s *workload.Service) {
	for _, p := range t.pairsOf(n) {
		key := p.key
		switch {
		case !sysctlName.MatchString(key):
			t.fault(p.at, "", "%q is no kernel parameter", clipped(key))
			continue
		case strings.HasPrefix(key, "net.") && s.Namespaces.Network == workload.HostNamespace:
			t.fault(p.at, "", "%s would be changed on the device itself: the service has its network", key)
			continue
		case ipcSysctls.MatchString(key) && s.Namespaces.IPC == workload.HostNamespace:
			t.fault(p.at, "", "%s would be changed on the device itself: the service has its IPC", key)
			continue
		case key == "kernel.domainname" && s.Namespaces.UTS == "", strings.HasPrefix(key, "net."), ipcSysctls.MatchString(key):
		default:
			t.fault(p.at, "set it on the device itself", "%s belongs to the whole device, not to a container", key)
			continue
		}
		if s.Sysctls == nil {
			s.Sysctls = map[string]string{}
		}
		s.Sysctls[key] = p.value
	}
}

// namespaces reads pid, ipc, uts, userns_mode and cgroup; network_mode is with the networks.
func (t *translation) namespaces(n *node, s *workload.Service) {
	own := []string{"", "private"}
	s.Namespaces.PID = t.namespace(n.get("pid"), own, "host")
	s.Namespaces.IPC = t.namespace(n.get("ipc"), []string{"", "private", "shareable"}, "host", "none")
	s.Namespaces.UTS = t.namespace(n.get("uts"), own, "host")
	s.Namespaces.Cgroup = t.namespace(n.get("cgroup"), []string{""}, "host", "private")
	s.Namespaces.User = t.namespace(n.get("userns_mode"), []string{"", "host"}, "private")
	for _, key := range []string{"uts", "cgroup", "userns_mode"} {
		if _, shared := t.sharedWith(n.get(key).str()); shared {
			t.fault(n.get(key), "", "this namespace cannot be another service's")
		}
	}
}

// namespace reads one mode: words that mean its own, and words that workload has too.
func (t *translation) namespace(n *node, own []string, words ...string) workload.Namespace {
	s := t.text(n)
	name, shared := t.sharedWith(s)
	switch {
	case slices.Contains(own, s):
		return ""
	case slices.Contains(words, s):
		return workload.Namespace(s)
	case shared && t.root.get("services", name) != nil:
		return workload.ServiceNamespace(name)
	case shared:
		t.fault(n, t.offHint(name), "service %q is not defined", clipped(name))
	case strings.HasPrefix(s, "container:"):
		t.fault(n, "share it with a service of the project: service:NAME", "no service of the file has container_name %q", clipped(strings.TrimPrefix(s, "container:")))
	default:
		t.fault(n, "", "%q is none of %s", clipped(s), strings.Join(append(words, "service:NAME"), ", "))
	}
	return ""
}

// cdiName is the name of a device of the Container Device Interface.
var cdiName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*[a-zA-Z0-9]/[a-zA-Z0-9_.-]+=[a-zA-Z0-9]([a-zA-Z0-9_.:-]*[a-zA-Z0-9])?$`)

func (t *translation) devices(n *node, s *workload.Service) {
	for _, item := range t.list(n.get("devices"), maxList) {
		t.device(item, s)
	}
	for _, r := range t.elements(n.get("device_cgroup_rules")) {
		if !deviceRule.MatchString(r.str()) {
			t.fault(r, "write type, major and minor number, permissions: \"c 189:* rmw\"", "%q is no rule for devices", clipped(r.str()))
			continue
		}
		s.DeviceRules = append(s.DeviceRules, r.str())
	}
	if g := n.get("gpus"); g != nil && g.kind == scalarKind {
		switch g.str() {
		case "":
		case "all":
			s.GPUs = append(s.GPUs, workload.DeviceRequest{Count: -1})
		default:
			t.fault(g, "", "must be \"all\" or a list")
		}
	} else {
		t.deviceRequests(g, s)
	}
	t.deviceRequests(n.get("deploy", "resources", "reservations", "devices"), s)
}

var deviceRule = regexp.MustCompile(`^[acb] (\d+|\*):(\d+|\*) [rwm]{1,3}$`)

func (t *translation) device(n *node, s *workload.Service) {
	var source, target, permissions string
	if n.kind == mapKind {
		source, target, permissions = t.text(n.get("source")), t.text(n.get("target")), t.text(n.get("permissions"))
	} else {
		source = t.text(n)
	}
	if cdiName.MatchString(source) && !strings.HasPrefix(source, "/") {
		if target != "" && target != source || permissions != "" && permissions != "rwm" {
			t.fault(n, "", "a CDI device says itself where and how it is")
		}
		s.CDI = append(s.CDI, source)
		return
	}
	if n.kind != mapKind {
		parts := strings.Split(source, ":")
		source = parts[0]
		switch {
		case len(parts) > 3:
			t.fault(n, "write path:path:permissions", "%q is no device", clipped(n.str()))
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
		t.fault(n, "write /dev/NAME, or vendor.com/class=name for a CDI device", "%q is no device", clipped(source))
		return
	case permissions != "" && !devicePermissions.MatchString(permissions):
		t.fault(n, "", "%q are no permissions: r, w and m are", clipped(permissions))
		return
	}
	if target == source {
		target = ""
	}
	if permissions == "rwm" {
		permissions = ""
	}
	s.Devices = append(s.Devices, workload.Device{HostPath: source, ContainerPath: target, Permissions: permissions})
}

var devicePermissions = regexp.MustCompile(`^[rwm]{1,3}$`)

func (t *translation) deviceRequests(n *node, s *workload.Service) {
	for _, item := range t.list(n, maxList) {
		if item.kind != mapKind {
			t.fault(item, "", "must be a mapping")
			continue
		}
		r := workload.DeviceRequest{
			Driver: t.text(item.get("driver")), IDs: t.texts(item.get("device_ids")), Capabilities: t.texts(item.get("capabilities")),
			Options: t.mapping(item.get("options")),
		}
		switch c := item.get("count"); {
		case c.isNull():
			if len(r.IDs) == 0 {
				r.Count = -1
			}
		case len(r.IDs) > 0:
			t.fault(c, "", "there are device_ids beside it")
		case c.str() == "all":
			r.Count = -1
		default:
			if v, err := strconv.Atoi(c.str()); err != nil || v < 1 && v != -1 || v > 1024 {
				t.fault(c, "", "must be \"all\" or a number")
			} else {
				r.Count = v
			}
		}
		if r.Driver == "cdi" {
			for _, id := range r.IDs {
				if !cdiName.MatchString(id) {
					t.fault(item.get("device_ids"), "write vendor.com/class=name", "%q is no CDI device", clipped(id))
				}
			}
			if len(r.IDs) == 0 {
				t.fault(item, "name them with device_ids: [vendor.com/class=name]", "CDI devices have names")
			}
			s.CDI = append(s.CDI, r.IDs...)
			continue
		}
		s.GPUs = append(s.GPUs, r)
	}
}

// privileges gives notice of what a device refuses unless its owner allows it, as far as the file alone says it.
func (t *translation) privileges(p *workload.Project) {
	if !t.every { // a device says it by refusing
		return
	}
	for _, f := range p.Privileges(workload.Guard{}) {
		at := t.root.nearest(strings.NewReplacer("[", ".", "]", "").Replace(f.Path))
		t.notice(at, "a device allows %s only where its owner set runtime.allowPrivileged", f.What)
	}
}
