package compose

import (
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// volumes are the volumes that services mount. Others would be unused and never removed.
func (t *translation) volumes(p *workload.Project) {
	used := map[string]bool{}
	use := func(s *workload.Service) {
		for _, m := range s.Mounts {
			if m.Kind == workload.MountVolume {
				used[m.Source] = true
			}
		}
	}
	for i := range p.Services {
		use(&p.Services[i])
		for j := range p.Services[i].PreStart {
			use(&p.Services[i].PreStart[j].Service)
		}
	}
	for _, name := range t.unnamed {
		p.Volumes = append(p.Volumes, workload.Volume{Name: name})
	}
	composefile.Each(t.root.Get("volumes"), func(k string, n *composefile.Node) {
		if v := t.volume(k, n); used[k] {
			p.Volumes = append(p.Volumes, v)
		}
	})
}

func (t *translation) volume(name string, n *composefile.Node) workload.Volume {
	v := workload.Volume{Name: name, Labels: t.labels(n, t.mapping(n.Get("labels")))}
	shared, ok := t.external(n, name)
	if shared != "" || !ok {
		v.Shared, v.External = shared, true
		for _, k := range []string{"driver", "driver_opts"} {
			if c := n.Get(k); !c.IsNull() {
				t.Fault(c, "", "the site configures an external volume")
			}
		}
		return v
	}
	if c := n.Get("name"); !c.IsNull() {
		if v.Shared = t.Text(c); !sectionName.MatchString(v.Shared) {
			t.Fault(c, "", "%q is no name of a volume", composefile.Clip(v.Shared))
		}
	}
	t.volumeOptions(n.Get("driver_opts"), &v)
	return v
}

// fileSystem is a file system type of mount(8).
var fileSystem = strict.Expression(`^[a-z0-9._]{1,32}$`)

func (t *translation) volumeOptions(n *composefile.Node, v *workload.Volume) {
	if !t.isMapping(n) {
		return
	}
	for _, o := range t.pairsOf(n) {
		switch o.key {
		case "type":
			if !fileSystem.MatchString(o.value) && o.value != "" {
				t.Fault(o.at, "", "%q is no type of a file system", composefile.Clip(o.value))
				continue
			}
		case "device", "o":
		default:
			t.Fault(o.at, "type, device and o are, as for mount(8)", "option %q is not possible on a device", composefile.Clip(o.key))
			continue
		}
		if v.Options == nil {
			v.Options = map[string]string{}
		}
		v.Options[o.key] = o.value
	}
	if v.Options == nil || t.isOmitted(n.Path) {
		return
	}
	if v.Options["device"] == "" && v.Options["type"] != "tmpfs" {
		t.Fault(n, "", "device is missing: what is mounted")
	}
	bound := false
	for option := range strings.SplitSeq(v.Options["o"], ",") {
		bound = bound || option == "bind" || option == "rbind"
	}
	if bound && !strings.HasPrefix(v.Options["device"], "/") {
		t.Fault(n.Get("device"), "", "%q is no absolute path on the device", composefile.Clip(v.Options["device"]))
	}
	if !bound && v.Options["type"] == "" {
		t.Fault(n, "", "type is missing: which file system is mounted")
	}
}
