package compose

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/format"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	relativeHint = "files beside compose.yaml are packed; for what the service writes name a volume, or mount a directory of the device by its absolute path"
	maxMounts    = 256 // of one service
)

// serviceMounts are a service's mounts, and the files of the archive among them.
func (t *translation) serviceMounts(n *composefile.Node) (out []workload.Mount, packed []workload.File) {
	for at, item := range t.List(n, maxMounts) {
		m, ok := workload.Mount{}, false
		if item.Kind == composefile.Map {
			m, ok = t.longMount(item)
		} else {
			m, ok = t.shortMount(item)
		}
		switch {
		case ok && m.Kind == workload.MountBind && !path.IsAbs(m.Source):
			if !m.ReadOnly && t.files != nil {
				t.Notice(item, "%s travels in the component and is mounted read-only: where the service writes, name a volume, or a directory of the device by its absolute path", composefile.Clip(m.Source))
			}
			packed = append(packed, t.packedMount(item, m)...)
		case ok:
			m.At = at
			out = append(out, m)
		}
	}
	return out, packed
}

// shortMount reads [source:]target[:options]. The library ignores unknown options, so they are checked here.
func (t *translation) shortMount(n *composefile.Node) (workload.Mount, bool) {
	s := n.Text()
	v, err := format.ParseVolume(s)
	if err != nil {
		return workload.Mount{}, t.refuse(n, "", "%v", err)
	}
	m := workload.Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly}
	switch v.Type {
	case types.VolumeTypeVolume:
		m.Kind = workload.MountVolume
	case types.VolumeTypeBind:
		m.Kind, m.Create = workload.MountBind, true
	}
	if parts := strings.Split(s, ":"); len(parts) > 2 {
		for _, option := range strings.Split(parts[len(parts)-1], ",") {
			if !t.mountOption(n, option, &m) {
				return m, false
			}
		}
	}
	return m, t.checkMount(n, &m)
}

func (t *translation) mountOption(n *composefile.Node, option string, m *workload.Mount) bool {
	bind := m.Kind == workload.MountBind
	switch option {
	case "ro", "rw":
	case "z", "Z":
		t.Notice(n, "files are not relabelled: a device's own policy labels them")
	case "cached", "delegated", "consistent":
	case "nocopy":
		if m.NoCopy = true; bind {
			return t.refuse(n, "", "nocopy is for volumes")
		}
	case "private", "rprivate", "shared", "rshared", "slave", "rslave":
		if !bind {
			return t.refuse(n, "", "%s is for directories of the device", option)
		}
		m.Propagation = propagation(option)
	default:
		return t.refuse(n, "ro, rw, z, nocopy and the kinds of propagation are", "option %q is not possible on a device", composefile.Clip(option))
	}
	return true
}

// propagation leaves out the default.
func propagation(s string) string {
	if s == "rprivate" {
		return ""
	}
	return s
}

func (t *translation) longMount(n *composefile.Node) (workload.Mount, bool) {
	m := workload.Mount{Source: t.Text(n.Get("source")), Target: t.Text(n.Get("target")), ReadOnly: t.flag(n.Get("read_only"))}
	kind := t.Text(n.Get("type"))
	for _, section := range []string{"bind", "volume", "tmpfs", "image"} {
		s := n.Get(section)
		if s.IsNull() {
			continue
		}
		if section != kind {
			return m, t.refuse(s, "", "belongs to a mount of another type")
		}
		if s.Kind != composefile.Map {
			return m, t.refuse(s, "", "must be a mapping")
		}
	}
	switch kind {
	case "volume":
		m.Kind = workload.MountVolume
		m.NoCopy, m.Subpath = t.flag(n.Get("volume", "nocopy")), t.subpath(n.Get("volume", "subpath"))
		if m.Subpath != "" && m.Source == "" {
			return m, t.refuse(n.Get("volume", "subpath"), "", "an anonymous volume has no directories yet")
		}
	case "bind":
		m.Kind = workload.MountBind
		m.Create, _ = t.boolean(n.Get("bind", "create_host_path"), true)
		m.Propagation = propagation(t.choice(n.Get("bind", "propagation"), "private", "rprivate", "shared", "rshared", "slave", "rslave"))
		switch r := t.choice(n.Get("bind", "recursive"), "enabled", "disabled", "writable", "readonly"); {
		case r == "readonly" && !m.ReadOnly:
			return m, t.refuse(n.Get("bind", "recursive"), "set read_only: true", "the mount itself is not read-only")
		case r == "disabled" || r == "readonly":
			m.Recursive = r
		}
	case "tmpfs":
		m.Kind = workload.MountTmpfs
		if m.Source != "" {
			return m, t.refuse(n.Get("source"), "", "a tmpfs has no source")
		}
		m.TmpfsMax, m.TmpfsPerm = t.bytes(n.Get("tmpfs", "size")), t.octal(n.Get("tmpfs", "mode"), 0o7777)
	case "image":
		m.Kind, m.ReadOnly, m.Subpath = workload.MountImage, true, t.subpath(n.Get("image", "subpath"))
		image := t.image(n, n.Get("source"))
		m.Image, m.Source = &image, ""
		if image.Repository == "" && !t.omitted[n.Path+".source"] {
			return m, false
		}
	case "":
		return m, t.refuse(n, "", "type is missing")
	default:
		return m, t.refuse(n.Get("type"), "volume, bind, tmpfs and image are", "mounts of type %q are not possible on a device", composefile.Clip(kind))
	}
	return m, t.checkMount(n, &m)
}

// subpath is a directory within a volume or image.
func (t *translation) subpath(n *composefile.Node) string {
	s := path.Clean(t.Text(n))
	if !fs.ValidPath(s) {
		t.Fault(n, "", "%q is no path within it", composefile.Clip(n.Text()))
	}
	if s == "." {
		return ""
	}
	return s
}

// drive is what compose-go reads from a volume whose name is one letter.
var drive = strict.Expression(`^[a-zA-Z]:|^(ro|rw)$`)

func (t *translation) checkMount(n *composefile.Node, m *workload.Mount) bool {
	if strings.ContainsRune(m.Source+m.Target, 0) {
		return t.refuse(n, "", "holds a zero byte")
	}
	if path.IsAbs(m.Target) && path.Clean(m.Target) == "/" {
		return t.refuse(n, "mount it below the root of the image", "nothing can be mounted on / itself")
	}
	if !path.IsAbs(m.Target) {
		hint := ""
		if drive.MatchString(m.Target) {
			hint = "Compose takes one letter before a colon for a drive of Windows: give the volume a longer name"
		}
		return t.refuse(n, hint, "%q is no absolute path in the container", composefile.Clip(m.Target))
	}
	m.Target = path.Clean(m.Target)
	if !t.checkTarget(n, m.Target, m.Kind == workload.MountBind, m.Source) {
		return false
	}
	switch m.Kind {
	case workload.MountBind:
		switch {
		case path.IsAbs(m.Source):
			m.Source = path.Clean(m.Source)
		case strings.HasPrefix(m.Source, "~"), !m.ReadOnly && t.files != nil && !composefile.Packable(t.files, m.Source):
			return t.refuse(n, relativeHint, "%q is no absolute path on the device", composefile.Clip(m.Source))
		case m.Propagation != "" && m.Propagation != "private":
			return t.refuse(n, "", "%s is for directories of the device", m.Propagation)
		}
	case workload.MountVolume:
		if m.Source == "" {
			return true
		}
		if !sectionName.MatchString(m.Source) {
			return t.refuse(n, relativeHint, "%q is no name of a volume", composefile.Clip(m.Source))
		}
		if t.root.Get("volumes", m.Source) == nil {
			return t.refuse(n, "name it under \"volumes:\" of the file", "volume %q is not defined", m.Source)
		}
	}
	return true
}

// procFiles are the only files of /proc that OCI runtimes mount over.
var procFiles = []string{
	"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo", "/proc/slabinfo", "/proc/stat", "/proc/swaps", "/proc/uptime",
	"/proc/sys/crypto/fips_enabled", "/proc/sys/kernel/ns_last_pid",
}

// checkTarget rejects targets that OCI runtimes reject: /proc, except for the device's own, and paths below it, except for a few files.
func (t *translation) checkTarget(n *composefile.Node, target string, file bool, source string) bool {
	if target != "/proc" && !strings.HasPrefix(target, "/proc/") || file && (slices.Contains(procFiles, target) || target == "/proc" && source == "/proc") {
		return true
	}
	return t.refuse(n, "choose another place in the container", "nothing can be mounted on %s: the kernel shows the container's processes there", target)
}

// serviceTmpfs reads the key "tmpfs": path[:options], one or a list.
func (t *translation) serviceTmpfs(n *composefile.Node) []workload.Mount {
	var out []workload.Mount
	for _, item := range t.Elements(n) {
		target, options, _ := strings.Cut(item.Text(), ":")
		m, ok := workload.Mount{Kind: workload.MountTmpfs, Target: target}, true
		for _, option := range strings.FieldsFunc(options, func(r rune) bool { return r == ',' }) {
			ok = ok && t.tmpfsOption(item, option, &m)
		}
		slices.Sort(m.Options)
		if ok && t.checkMount(item, &m) {
			out = append(out, m)
		}
	}
	return out
}

// tmpfsFlag is the other options of mount(8): flags, and numbers of users, groups and inodes.
var tmpfsFlag = strict.Expression(`^(suid|nosuid|dev|nodev|exec|noexec|sync|async|atime|noatime|diratime|nodiratime|relatime|norelatime|strictatime|(uid|gid|nr_inodes|nr_blocks)=\d+k?)$`)

func (t *translation) tmpfsOption(n *composefile.Node, option string, m *workload.Mount) bool {
	key, value, _ := strings.Cut(option, "=")
	switch {
	case key == "size":
		size, err := parseBytes(value)
		if err != nil {
			return t.refuse(n, "", "%q is no size", composefile.Clip(value))
		}
		m.TmpfsMax = size
	case key == "mode":
		perm, err := parseOctal(value)
		if err != nil || perm > 0o7777 {
			return t.refuse(n, "", "%q is no file mode", composefile.Clip(value))
		}
		m.TmpfsPerm = perm
	case option == "ro":
		m.ReadOnly = true
	case option == "rw":
		m.ReadOnly = false
	case tmpfsFlag.MatchString(option):
		m.Options = append(m.Options, option)
	default:
		return t.refuse(n, "size, mode and the flags of mount(8) are", "option %q is not possible on a device", composefile.Clip(option))
	}
	return true
}

// checkMounts rejects two mounts on one target.
func (t *translation) checkMounts(service *composefile.Node, s *workload.Service) {
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		if seen[m.Target] {
			t.Fault(service, "", "two mounts on %q", m.Target)
		}
		seen[m.Target] = true
	}
	for n, f := range s.Files {
		if n > 0 && sameDirectory(s.Files[n-1], f) {
			continue
		}
		if seen[f.Target] {
			t.Fault(service, "", "two files or mounts on %q", f.Target)
		}
		seen[f.Target] = true
	}
}

// sameDirectory reports whether two consecutive files are of one mounted directory.
func sameDirectory(a, b workload.File) bool {
	dir := func(f workload.File) string { return strings.TrimSuffix(f.Name, "/"+f.Path) }
	return a.Path != "" && a.Path < b.Path && a.Target == b.Target && dir(a) == dir(b)
}

// shareMounts gives services the mounts of volumes_from, in order of these dependencies.
func (t *translation) shareMounts(p *workload.Project, index map[string]*workload.Service) {
	done := map[string]bool{}
	var visit func(s *workload.Service)
	visit = func(s *workload.Service) {
		if done[s.Name] {
			return // also for a cycle, which is reported with the dependencies
		}
		done[s.Name] = true
		from := func(n *composefile.Node, to *workload.Service) {
			for _, item := range t.Elements(n.Get("volumes_from")) {
				name, mode, _ := strings.Cut(item.Text(), ":")
				if name == "container" {
					container, rest, _ := strings.Cut(mode, ":")
					if name, mode = "", rest; container != "" {
						name, _ = t.containerNamed(container)
					}
					if name == "" {
						t.Fault(item, "name a service of the project", "no service of the file has container_name %q", composefile.Clip(container))
						continue
					}
				}
				on, ok := index[name]
				switch {
				case !ok:
					t.Fault(item, t.inactiveHint(name), "service %q is not defined", composefile.Clip(name))
				case mode != "" && mode != "ro" && mode != "rw":
					t.Fault(item, "", "%q is neither ro nor rw", composefile.Clip(mode))
				default:
					visit(on)
					t.shareFrom(item, to, on, mode == "ro")
					addDependency(s, name, false)
				}
			}
		}
		from(t.root.Get("services", s.Name), s)
		for i := range s.PreStart {
			c := &s.PreStart[i].Service
			from(t.inits[c.Name], c)
		}
	}
	for i := range p.Services {
		visit(&p.Services[i])
	}
}

// nameVolume names an anonymous volume after its service and target. Names are unique and do not depend on other volumes, because they
// identify the data.
func (t *translation) nameVolume(service, target string) string {
	name := service + strings.ReplaceAll(target, "/", "-")
	if !sectionName.MatchString(name) || strings.Contains(service+target, "-") { // a at /b-c, a at /b/c, a-b at /c
		name = service + "-" + digest.FromString(target).Encoded()[:2*workload.Short]
	}
	for t.root.Get("volumes", name) != nil {
		name += "-"
	}
	if !slices.Contains(t.unnamed, name) {
		t.unnamed = append(t.unnamed, name)
	}
	return name
}

// shareFrom adds the mounts of another service, except tmpfs, configs and secrets.
func (t *translation) shareFrom(n *composefile.Node, s, from *workload.Service, readOnly bool) {
	taken := func(target string) bool {
		return slices.ContainsFunc(s.Mounts, func(o workload.Mount) bool { return o.Target == target }) ||
			slices.ContainsFunc(s.Files, func(o workload.File) bool { return o.Target == target })
	}
	var files []workload.File
	for _, f := range from.Files {
		if f.Mounted() && !taken(f.Target) {
			files = append(files, f)
		}
	}
	s.Files = append(s.Files, files...)
	for i := range from.Mounts {
		m := from.Mounts[i]
		if m.Kind == workload.MountTmpfs || taken(m.Target) {
			continue
		}
		if m.Kind == workload.MountVolume && m.Source == "" { // a shared volume needs a name: it belongs to no single container
			m.Source = t.nameVolume(from.Name, m.Target)
			from.Mounts[i].Source = m.Source
			t.Notice(n, "the volume at %s of service %s has no name: it becomes one of the project, which all replicas share and which stays when the application is removed", m.Target, from.Name)
		}
		m.ReadOnly = m.ReadOnly || readOnly
		s.Mounts = append(s.Mounts, m)
	}
}
