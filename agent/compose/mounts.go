package compose

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	units "github.com/docker/go-units"

	"github.com/compose-spec/compose-go/v2/format"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/agent/workload"
)

const (
	relativeHint = "put the file into the image, or mount a directory of the device by its absolute path"
	maxMounts    = 256 // of one service
)

func (t *translation) serviceMounts(n *node) []workload.Mount {
	if n.isNull() {
		return nil
	}
	if n.kind != listKind {
		t.fault(n, "", "must be a list")
		return nil
	}
	if len(n.items) > maxMounts {
		t.fault(n, "", "more than %d volumes", maxMounts)
		return nil
	}
	var out []workload.Mount
	for _, item := range n.items {
		m, ok := workload.Mount{}, false
		if item.kind == mapKind {
			m, ok = t.longMount(item)
		} else {
			m, ok = t.shortMount(item)
		}
		if ok {
			out = append(out, m)
		}
	}
	return out
}

// shortMount reads [source:]target[:options]. The library ignores options that it does not know, so they are looked at
// here.
func (t *translation) shortMount(n *node) (workload.Mount, bool) {
	s := n.str()
	v, err := format.ParseVolume(s)
	if err != nil {
		t.fault(n, "", "%v", err)
		return workload.Mount{}, false
	}
	if parts := strings.Split(s, ":"); len(parts) > 2 {
		for _, option := range strings.Split(parts[len(parts)-1], ",") {
			if option != "ro" && option != "rw" {
				t.fault(n, "ro and rw are supported", "option %q is not supported on a device yet", option)
				return workload.Mount{}, false
			}
		}
	}
	m := workload.Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly}
	switch v.Type {
	case types.VolumeTypeVolume:
		m.Kind = workload.MountVolume
	case types.VolumeTypeBind:
		m.Kind, m.Create = workload.MountBind, true
	}
	return m, t.checkMount(n, &m)
}

func (t *translation) longMount(n *node) (workload.Mount, bool) {
	m := workload.Mount{Source: n.get("source").str(), Target: n.get("target").str()}
	var ok bool
	if m.ReadOnly, ok = t.truth(n.get("read_only"), false); !ok {
		return m, false
	}
	kind := n.get("type").str()
	for _, section := range []string{"bind", "volume", "tmpfs"} {
		if s := n.get(section); s != nil && section != kind {
			t.fault(s, "", "belongs to a mount of another type")
			return m, false
		}
	}
	switch kind {
	case "volume":
		m.Kind = workload.MountVolume
	case "bind":
		m.Kind = workload.MountBind
		if m.Create, ok = t.truth(n.get("bind", "create_host_path"), true); !ok {
			return m, false
		}
	case "tmpfs":
		m.Kind = workload.MountTmpfs
		if m.Source != "" {
			t.fault(n.get("source"), "", "a tmpfs has no source")
			return m, false
		}
		if !t.tmpfsOption(n.get("tmpfs", "size"), "size", n.get("tmpfs", "size").str(), &m) ||
			!t.tmpfsOption(n.get("tmpfs", "mode"), "mode", mode(n.get("tmpfs", "mode")), &m) {
			return m, false
		}
	case "":
		t.fault(n, "", "type is missing")
		return m, false
	default:
		t.fault(n.get("type"), "", "mounts of type %s are not supported on a device yet", clipped(kind))
		return m, false
	}
	return m, t.checkMount(n, &m)
}

// mode is a YAML number as octal digits: 0o1777 and 1023 both are "1777".
func mode(n *node) string {
	if n != nil {
		if v, ok := n.value.(int); ok {
			return strconv.FormatInt(int64(v), 8)
		}
	}
	return n.str()
}

func (t *translation) truth(n *node, otherwise bool) (value, ok bool) {
	switch {
	case n.isNull():
		return otherwise, true
	case n.str() == "true":
		return true, true
	case n.str() == "false":
		return false, true
	}
	t.fault(n, "", "must be true or false")
	return false, false
}

// volumeName is what Compose allows as a key of "volumes:".
var volumeName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

func (t *translation) checkMount(n *node, m *workload.Mount) bool {
	if strings.ContainsRune(m.Source+m.Target, 0) {
		t.fault(n, "", "holds a zero byte")
		return false
	}
	if !path.IsAbs(m.Target) || path.Clean(m.Target) == "/" {
		t.fault(n, "", "%q is no absolute path in the container", m.Target)
		return false
	}
	m.Target = path.Clean(m.Target)
	switch m.Kind {
	case workload.MountBind:
		if !path.IsAbs(m.Source) {
			t.fault(n, relativeHint, "%q is no absolute path on the device", m.Source)
			return false
		}
		m.Source = path.Clean(m.Source)
	case workload.MountVolume:
		if m.Source == "" {
			return true
		}
		if !volumeName.MatchString(m.Source) {
			t.fault(n, relativeHint, "%q is no name of a volume", m.Source)
			return false
		}
		if t.root.get("volumes", m.Source) == nil {
			t.fault(n, "name it under \"volumes:\" of the file", "volume %q is not defined", m.Source)
			return false
		}
	}
	return true
}

// serviceTmpfs reads the key "tmpfs": path[:size=…,mode=…], one or a list.
func (t *translation) serviceTmpfs(n *node) []workload.Mount {
	if n.isNull() {
		return nil
	}
	items := n.items
	if n.kind != listKind {
		items = []*node{n}
	}
	var out []workload.Mount
	for _, item := range items {
		target, options, _ := strings.Cut(item.str(), ":")
		m, ok := workload.Mount{Kind: workload.MountTmpfs, Target: target}, true
		for _, option := range strings.FieldsFunc(options, func(r rune) bool { return r == ',' }) {
			key, value, _ := strings.Cut(option, "=")
			ok = ok && t.tmpfsOption(item, key, value, &m)
		}
		if ok && t.checkMount(item, &m) {
			out = append(out, m)
		}
	}
	return out
}

func (t *translation) tmpfsOption(n *node, key, value string, m *workload.Mount) bool {
	if n == nil || value == "" && n.isNull() {
		return true
	}
	switch key {
	case "size":
		size, err := units.RAMInBytes(value)
		if err != nil || size < 0 {
			t.fault(n, "", "%q is no size", value)
			return false
		}
		m.TmpfsMax = size
	case "mode":
		perm, err := strconv.ParseUint(value, 8, 32)
		if err != nil || perm > 0o7777 {
			t.fault(n, "", "%q is no file mode", value)
			return false
		}
		m.TmpfsPerm = uint32(perm)
	default:
		t.fault(n, "size and mode are supported", "option %q is not supported on a device yet", clipped(key))
		return false
	}
	return true
}

// checkMounts refuses two mounts on one place.
func (t *translation) checkMounts(service *node, mounts []workload.Mount) {
	seen := map[string]bool{}
	for _, m := range mounts {
		if seen[m.Target] {
			t.fault(service, "", "two mounts on %s", fmt.Sprintf("%q", m.Target))
		}
		seen[m.Target] = true
	}
}
