package workload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Privilege is something that a service or volume asks for and that gives a container control of its device. Only the device's owner can
// allow it.
type Privilege struct {
	Service string // "": of the project
	Path    string // in the Compose file: "services.web.volumes[0]"
	What    string // "a writable mount of /etc/cron.d (configuration of the device)"
	Hint    string // how to do without; "" where there is no way
}

// Guard is what has to be known of a device to find privileges. The zero value judges by what the Compose file says.
type Guard struct {
	Places  func() []Place                   // of this device, beside those that every device has; nil: none
	Real    func(path string) string         // the path without links, as far as it exists; nil: as written
	Node    func(path string) (Node, bool)   // the device node at a path; nil: none is known
	Nodes   func(path string) ([]Node, bool) // the device node at a path, or those below a directory, and whether these are all; nil: none is known
	Drivers func() map[int64]string          // of character devices by major number, as in /proc/devices; nil: the fixed ones
	Looser  func(*Service) (string, bool)    // whether the service's own seccomp profile allows more than the default one, and which call; nil: judged by its default action
}

// Place is a part of a device's file system.
type Place struct {
	Path   string // absolute; each name may be a pattern of path.Match
	Access Access
	Holds  string // for people: "keys of the device"
}

// Access is how a container without privileges may mount a place.
type Access int

// Kinds of access. The zero value is the strictest.
const (
	NoAccess Access = iota
	ReadOnly        // the place itself, without what is mounted below it
	ReadWrite
)

// Node is a device node.
type Node struct {
	Path         string
	Block        bool
	Major, Minor int64
}

// devicePlaces are parts of every device. The entry with the longest path decides; mounting a directory is mounting all
// entries below it. What is not listed may be written: /opt/plant, /srv, /mnt, /data, /var/lib/NAME, /home/NAME/data.
//
// ReadOnly: writing there means running programs as root, or breaking the system. NoAccess: reading is enough to do harm, because
// there are secrets, or sockets, which a read-only mount does not close.
var devicePlaces = slices.Concat(
	places(ReadOnly, "programs of the device",
		"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/snap", "/nix", "/ostree", "/sysroot", "/opt/cni", "/opt/containerd"),
	places(ReadOnly, "what the device boots", "/boot", "/efi"),
	places(ReadOnly, "configuration of the device", "/etc"),
	places(NoAccess, "keys and passwords of the device",
		"/etc/shadow*", "/etc/gshadow*", "/etc/ssh", "/etc/ssl/private", "/etc/pki/*/private", "/etc/wireguard", "/etc/wpa_supplicant",
		"/etc/NetworkManager/system-connections", "/etc/kubernetes", "/etc/rancher", "/etc/cni", "/var/backups"),
	places(NoAccess, "home of root", "/root", "/var/roothome"),
	places(NoAccess, "settings and keys of a user", "/home/*/.*", "/var/home/*/.*"),
	places(NoAccess, "processes and settings of the kernel", "/proc"),
	places(ReadOnly, "figures of the kernel",
		"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/uptime", "/proc/version"),
	places(ReadOnly, "devices and settings of the kernel", "/sys"),
	places(ReadOnly, "device nodes", "/dev"),
	places(ReadWrite, "", "/dev/shm", "/dev/mqueue", "/dev/hugepages"),
	places(NoAccess, "sockets of the device's services", "/run"),
	places(ReadOnly, "", "/run/udev/data", "/run/systemd/resolve/*.conf", "/run/resolvconf/resolv.conf", "/run/NetworkManager/*.conf"),
	places(ReadWrite, "", "/run/lock", "/run/shm", "/run/systemd/journal/dev-log", "/run/systemd/journal/socket", "/run/avahi-daemon/socket",
		"/run/pcscd", "/run/user/*/wayland-*"),
	places(NoAccess, "jobs that the device runs", "/var/spool/cron", "/var/spool/anacron", "/var/spool/at", "/var/lib/cloud"),
	places(ReadOnly, "logs of the device", "/var/log/journal"),
	places(NoAccess, "state of containerd", "/var/lib/containerd", "/run/containerd"),
	places(NoAccess, "state of another container engine",
		"/var/lib/docker", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/rancher", "/var/lib/k0s", "/var/lib/cni", "/var/lib/lxc", "/var/lib/lxd",
		"/var/lib/incus", "/var/lib/libvirt", "/var/lib/machines", "/var/lib/portables", "/run/docker.sock", "/run/podman", "/run/crio"),
	places(NoAccess, "state of the device's system",
		"/var/lib/systemd", "/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman", "/var/lib/snapd", "/var/lib/flatpak", "/var/lib/NetworkManager",
		"/var/lib/iwd", "/var/lib/bluetooth", "/var/lib/polkit-1", "/var/lib/AccountsService"),
	places(NoAccess, "the agent's own", "/etc/longshore", "/var/lib/longshore", "/run/longshore"),
)

// DevicePlaces are the parts of every device that are not open to each container.
func DevicePlaces() []Place { return slices.Clone(devicePlaces) }

func places(a Access, holds string, paths ...string) []Place {
	out := make([]Place, len(paths))
	for n, p := range paths {
		out[n] = Place{p, a, holds}
	}
	return out
}

// strong are capabilities with an effect beyond a container, and that effect.
var strong = map[string]string{
	"SYS_ADMIN":       "mounts file systems",
	"SYS_MODULE":      "loads code into the kernel",
	"SYS_RAWIO":       "writes to memory and disks",
	"SYS_BOOT":        "boots another kernel",
	"DAC_READ_SEARCH": "opens any file of the device",
	"BPF":             "loads programs into the kernel",
	"PERFMON":         "reads the kernel's memory",
	"MAC_ADMIN":       "changes the device's security policy",
	"MAC_OVERRIDE":    "ignores the device's security policy",
}

// rawDrivers are character devices that lead to disks, memory or processor registers, by their names in /proc/devices.
var rawDrivers = []string{"sg", "bsg", "raw", "mtd", "ubi*", "nvme*", "rpmb", "cpu/msr"}

// fixedDrivers have the same major number on every device.
func fixedDrivers() map[int64]string {
	return map[int64]string{21: "sg", 90: "mtd", 162: "raw", 202: "cpu/msr"}
}

// The memory devices' major number, and the minor numbers of mem, kmem and port.
const memoryMajor = 1

func rawMemory(minor int64) bool { return minor == 1 || minor == 2 || minor == 4 }

// ownMounts are the file systems that a volume's driver may mount without privileges: they hold nothing of the device.
var ownMounts = []string{"tmpfs", "nfs", "nfs4", "cifs", "smb3"}

// steering are prefixes of annotations that make OCI runtimes do more on the device than a Compose file can ask for.
var steering = []string{"run.oci.", "org.systemd.property.", "io.katacontainers.", "org.criu."}

// Privileges lists what a project asks for that only the device's owner can allow, in order of services and volumes.
func (p *Project) Privileges(g Guard) []Privilege {
	var out []Privilege
	for i := range p.Services {
		s := &p.Services[i]
		g.service(s, func(key, hint, format string, args ...any) {
			out = append(out, Privilege{s.Name, "services." + s.Name + "." + key, fmt.Sprintf(format, args...), hint})
		})
	}
	for _, v := range p.Volumes {
		if what, hint := g.driver(v); what != "" {
			out = append(out, Privilege{Path: "volumes." + v.Name, What: what, Hint: hint})
		}
	}
	return out
}

// report adds a privilege at a key of a service.
type report func(key, hint, format string, args ...any)

func (g Guard) service(s *Service, add report) {
	sec := cmp.Or(s.Security, &Security{})
	if sec.Privileged {
		add("privileged", "", "privileged containers")
	}
	for n, h := range s.PostStart {
		if h.Privileged {
			add(fmt.Sprintf("post_start[%d].privileged", n), "", "privileged commands")
		}
	}
	for n, h := range s.PreStop {
		if h.Privileged {
			add(fmt.Sprintf("pre_stop[%d].privileged", n), "", "privileged commands")
		}
	}
	g.confinement(s, sec, add)
	for _, k := range slices.Sorted(maps.Keys(s.Annotations)) {
		if slices.ContainsFunc(steering, func(prefix string) bool { return strings.HasPrefix(k, prefix) }) {
			add("annotations", "", "annotation %s, which steers the OCI runtime", k)
		}
	}
	for _, m := range s.Mounts {
		key := fmt.Sprintf("volumes[%d]", m.At)
		if m.Kind != MountBind {
			continue
		}
		if what, hint := g.mount(m.Source, m.ReadOnly); what != "" {
			add(key, hint, "%s", what)
		}
		if strings.HasSuffix(m.Propagation, "shared") {
			add(key, "rslave shows the container what the device mounts", "mounts of a container that appear on the device (propagation %s)", m.Propagation)
		}
	}
	g.devices(s, add)
	for n := range s.PreStart {
		before := fmt.Sprintf("pre_start[%d].", n)
		g.service(&s.PreStart[n].Service, func(key, hint, format string, args ...any) { add(before+key, hint, format, args...) })
	}
}

func (g Guard) confinement(s *Service, sec *Security, add report) {
	for _, c := range slices.Sorted(maps.Keys(strong)) {
		named := slices.Contains(sec.CapAdd, c)
		if named || slices.Contains(sec.CapAdd, "ALL") && !slices.Contains(sec.CapDrop, c) {
			add("cap_add", "", "capability %s, which %s", c, strong[c])
		}
	}
	if s.Namespaces.PID == HostNamespace {
		add("pid", "share the processes of another service with pid: service:NAME", "containers that see the device's processes")
	}
	switch call, looser := g.looser(s); {
	case sec.Seccomp == "unconfined":
		add("security_opt", "", "containers without a system call filter")
	case looser:
		add("security_opt", "leave out what the default profile does not allow", "a system call filter that allows more than the default one (%s)", call)
	}
	if sec.AppArmor == "unconfined" {
		add("security_opt", "", "containers without AppArmor")
	}
	if sec.Unmasked {
		add("security_opt", "", "containers that see and set what the kernel hides from them (systempaths=unconfined)")
	}
	for _, l := range sec.Label {
		kind, value, _ := strings.Cut(l, ":")
		if kind == "user" || kind == "role" || kind == "type" && !slices.Contains([]string{"container_t", "container_init_t", "container_kvm_t"}, value) {
			add("security_opt", "", "SELinux label %s", l)
		}
	}
}

// looser reports whether a service's own seccomp profile allows more than the default one.
func (g Guard) looser(s *Service) (string, bool) {
	if s.Security == nil || s.Security.Seccomp == "" || s.Security.Seccomp == "unconfined" {
		return "", false
	}
	if g.Looser != nil {
		return g.Looser(s)
	}
	var profile struct {
		DefaultAction string `json:"defaultAction"`
	}
	if json.Unmarshal([]byte(s.Security.Seccomp), &profile) != nil {
		return "", false // refused elsewhere
	}
	return "all by default", FilterAllows(profile.DefaultAction)
}

// FilterAllows reports whether a system call happens that a seccomp filter answers with the action.
func FilterAllows(action string) bool {
	return !strings.HasPrefix(action, "SCMP_ACT_KILL") && action != "SCMP_ACT_ERRNO" && action != "SCMP_ACT_TRAP"
}

// driver is what the driver of a volume would mount that needs the owner's permission; "" when nothing.
func (g Guard) driver(v Volume) (what, hint string) {
	if len(v.Options) == 0 {
		return "", ""
	}
	options := strings.Split(v.Options["o"], ",")
	if slices.Contains(options, "bind") || slices.Contains(options, "rbind") {
		return g.mount(v.Options["device"], ReadOnlyOptions(options))
	}
	if kind := v.Options["type"]; !slices.Contains(ownMounts, kind) {
		return fmt.Sprintf("a volume that mounts a file system of type %s", cmp.Or(kind, "none")),
			"mount it on the device, and bind the directory; tmpfs, nfs and cifs need no permission"
	}
	return "", ""
}

// ReadOnlyOptions reports whether a mount with these options is read-only: of ro and rw the last one counts, as for mount(8).
func ReadOnlyOptions(options []string) bool {
	for _, o := range slices.Backward(options) {
		if o == "ro" || o == "rw" {
			return o == "ro"
		}
	}
	return false
}

// mount is what mounting a path of the device would be that needs the owner's permission; "" when nothing.
func (g Guard) mount(source string, readOnly bool) (what, hint string) {
	real := g.real(source)
	if g.Node != nil {
		if node, ok := g.Node(real); ok {
			if raw := g.Raw(node); raw != "" {
				return fmt.Sprintf("a mount of %s (%s)", source, raw), ""
			}
			return "", ""
		}
	}
	at, below := g.Access(real)
	if at.Access == ReadWrite || at.Access == ReadOnly && readOnly {
		return "", ""
	}
	where := source
	if real != path.Clean(source) {
		where += ", which is " + real + ","
	}
	if below {
		where += " with " + at.Path
	}
	if at.Access == ReadOnly {
		return fmt.Sprintf("a writable mount of %s (%s)", where, at.Holds), "mount it read-only: add :ro"
	}
	return fmt.Sprintf("a mount of %s (%s)", where, at.Holds), ""
}

// Access is the strictest place that a mount of a path without links shows, and whether that is below the path.
func (g Guard) Access(real string) (strictest Place, below bool) {
	own := names(real)
	at, length := Place{Path: real, Access: ReadWrite}, -1
	var under []Place
	all := devicePlaces
	if g.Places != nil {
		all = slices.Concat(all, g.Places())
	}
	for _, p := range all {
		pattern := names(p.Path)
		switch {
		case !samePrefix(pattern, own):
		case len(pattern) > len(own):
			under = append(under, p)
		case len(pattern) > length || len(pattern) == length && p.Access < at.Access:
			at, length = p, len(pattern)
		}
	}
	strictest = at
	for _, p := range under {
		if p.Access < strictest.Access {
			strictest, below = p, true
		}
	}
	return strictest, below
}

// samePrefix reports whether one path is equal to the other or above it.
func samePrefix(pattern, own []string) bool {
	for n := range min(len(pattern), len(own)) {
		if ok, err := path.Match(pattern[n], own[n]); err != nil || !ok {
			return false
		}
	}
	return true
}

func names(p string) []string {
	return strings.FieldsFunc(path.Clean(p), func(r rune) bool { return r == '/' })
}

func (g Guard) real(p string) string {
	if g.Real != nil {
		return g.Real(p)
	}
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run"); ok && (rest == "" || rest[0] == '/') {
		return "/run" + rest
	}
	return p
}

func (g Guard) devices(s *Service, add report) {
	for _, d := range s.Devices {
		if what := g.device(d.HostPath); what != "" {
			add(fmt.Sprintf("devices[%d]", d.At), "name the devices that it needs", "%s", what)
		}
	}
	for n, rule := range s.DeviceRules {
		if what := g.rule(rule); what != "" {
			add(fmt.Sprintf("device_cgroup_rules[%d]", n), "name the numbers of the devices that it needs", "device rule %q, which covers %s", rule, what)
		}
	}
}

func (g Guard) device(host string) string {
	real := g.real(host)
	if real == "/" || real == "/dev" {
		return "all devices of " + real
	}
	if g.Nodes == nil {
		return ""
	}
	nodes, all := g.Nodes(real)
	for _, n := range nodes {
		if raw := g.Raw(n); raw != "" {
			return fmt.Sprintf("device %s (%s)", n.Path, raw)
		}
	}
	if !all {
		return fmt.Sprintf("all devices of %s, which are too many to look at", real)
	}
	return ""
}

// Raw is what a device node gives access to when that gives control of the device; "" for others.
func (g Guard) Raw(n Node) string {
	if n.Block {
		return "a disk"
	}
	return g.character(n.Major, n.Minor)
}

// character is Raw for a character device; a minor number of -1 is all of them.
func (g Guard) character(major, minor int64) string {
	if major == memoryMajor && (minor < 0 || rawMemory(minor)) {
		return "the device's memory"
	}
	drivers := fixedDrivers()
	if g.Drivers != nil {
		maps.Copy(drivers, g.Drivers())
	}
	name := drivers[major]
	if slices.ContainsFunc(rawDrivers, func(pattern string) bool { ok, err := path.Match(pattern, name); return ok && err == nil }) {
		return "raw access to hardware: " + name
	}
	return ""
}

// rule is what a device rule covers that needs the owner's permission. The right to create a node opens nothing.
func (g Guard) rule(rule string) string {
	f := strings.Fields(rule)
	if len(f) != 3 || !strings.ContainsAny(f[2], "rw") {
		return ""
	}
	if f[0] != "c" {
		return "disks"
	}
	major, minor, _ := strings.Cut(f[1], ":")
	number := func(s string) int64 {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n
		}
		return -1
	}
	if major == "*" {
		return "all character devices"
	}
	return g.character(number(major), number(minor))
}
