package compose

import (
	"regexp"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// defaultNetwork is what services without networks share.
const defaultNetwork = "default"

// networkName is what Compose allows as a key of "networks:".
var networkName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// attachments are a service's networks in order of the file: the first is the default route.
func (t *translation) attachments(service *node) []workload.Attachment {
	n := service.get("networks")
	var out []workload.Attachment
	add := func(at *node, name string, aliases []string) {
		switch {
		case slices.ContainsFunc(out, func(a workload.Attachment) bool { return a.Network == name }):
			t.fault(at, "", "network %s is named twice", name)
		case name != defaultNetwork && t.root.get("networks", name) == nil:
			t.fault(at, "name it under \"networks:\" of the file", "network %q is not defined", name)
		default:
			out = append(out, workload.Attachment{Network: name, Aliases: aliases})
		}
	}
	switch {
	case n == nil || n.kind == scalarKind:
	case n.kind == listKind:
		for _, item := range n.items {
			add(item, item.str(), nil)
		}
	default:
		for _, k := range n.keys {
			add(n.fields[k], k, t.aliases(n.get(k, "aliases")))
		}
	}
	if len(out) == 0 {
		return []workload.Attachment{{Network: defaultNetwork}}
	}
	return out
}

func (t *translation) aliases(n *node) []string {
	if n == nil {
		return nil
	}
	var out []string
	for _, item := range n.items {
		switch s := item.str(); {
		case !isHostname(s):
			t.fault(item, "", "%q is no host name", s)
		case !slices.Contains(out, s):
			out = append(out, s)
		}
	}
	return out
}

// networks are those that services are on.
func (t *translation) networks(p *workload.Project) {
	used := map[string]bool{}
	for _, s := range p.Services {
		for _, a := range s.Networks {
			used[a.Network] = true
		}
	}
	if used[defaultNetwork] && t.root.get("networks", defaultNetwork) == nil {
		p.Networks = append(p.Networks, workload.Network{Name: defaultNetwork})
	}
	n := t.root.get("networks")
	if n.isNull() {
		return
	}
	for _, k := range n.keys {
		t.checkPairs(n.get(k, "labels"))
		if !networkName.MatchString(k) || strings.HasPrefix(k, "x-") {
			t.fault(n.fields[k], "", "%q is no name for a network", k)
		}
		if used[k] {
			p.Networks = append(p.Networks, workload.Network{Name: k, Labels: t.labels(n.fields[k], t.loaded.Networks[k].Labels)})
		}
	}
}

// volumes are those that services mount. Others would be made for nothing and never removed.
func (t *translation) volumes(p *workload.Project) {
	used := map[string]bool{}
	for _, s := range p.Services {
		for _, m := range s.Mounts {
			if m.Kind == workload.MountVolume {
				used[m.Source] = true
			}
		}
	}
	n := t.root.get("volumes")
	if n.isNull() {
		return
	}
	for _, k := range n.keys {
		t.checkPairs(n.get(k, "labels"))
		if used[k] {
			p.Volumes = append(p.Volumes, workload.Volume{Name: k, Labels: t.labels(n.fields[k], t.loaded.Volumes[k].Labels)})
		}
	}
}

// dependencies reads depends_on and refuses what can never start: a cycle, or waiting for the health of a service
// that has none in the file: what the image may bring is not honoured yet.
func (t *translation) dependencies(p *workload.Project) {
	index := map[string]*workload.Service{}
	for i := range p.Services {
		index[p.Services[i].Name] = &p.Services[i]
	}
	for i := range p.Services {
		s := &p.Services[i]
		n := t.root.get("services", s.Name, "depends_on")
		if n.isNull() {
			continue
		}
		for _, item := range n.items {
			t.dependency(s, item, item.str(), string(workload.Started), index)
		}
		for _, k := range n.keys {
			c := n.get(k, "condition").str()
			if c == "" && !t.cut[n.path] {
				c = string(workload.Started)
			}
			t.dependency(s, n.fields[k], k, c, index)
		}
	}
	t.cycles(p, index)
}

func (t *translation) dependency(s *workload.Service, at *node, name, condition string, index map[string]*workload.Service) {
	on, ok := index[name]
	switch {
	case !ok:
		t.fault(at, "", "service %q is not defined", name)
		return
	case condition == "service_completed_successfully":
		t.fault(at, "", "condition %s is not supported on a device yet", condition)
		return
	case condition != string(workload.Started) && condition != string(workload.Healthy):
		t.fault(at, "", "%q is none of %s, %s", condition, workload.Started, workload.Healthy)
		return
	case condition == string(workload.Healthy) && on.NoHealth:
		t.fault(at, "", "service %s has its healthcheck off and never becomes healthy", name)
		return
	case condition == string(workload.Healthy) && on.Health == nil && !t.cut["services."+name+".healthcheck"]:
		t.fault(at, "write the test as \"healthcheck:\" of service "+name+", also where its image brings one",
			"service %s has no healthcheck in this file and never becomes healthy: a HEALTHCHECK of an image is not asked on a device yet", name)
		return
	case slices.ContainsFunc(s.DependsOn, func(d workload.Dependency) bool { return d.Service == name }):
		t.fault(at, "", "service %s is named twice", name)
		return
	}
	s.DependsOn = append(s.DependsOn, workload.Dependency{Service: name, Condition: workload.Condition(condition)})
}

// cycles tells one cycle, which is enough to see it.
func (t *translation) cycles(p *workload.Project, index map[string]*workload.Service) {
	const visiting, done = 1, 2
	state := map[string]int{}
	var trail []string
	var visit func(name string) bool
	visit = func(name string) bool {
		switch state[name] {
		case done:
			return false
		case visiting:
			loop := append(trail[slices.Index(trail, name):], name)
			t.fault(t.root.get("services", name, "depends_on"), "", "services wait for each other: %s", strings.Join(loop, " → "))
			return true
		}
		state[name] = visiting
		trail = append(trail, name)
		for _, d := range index[name].DependsOn {
			if visit(d.Service) {
				return true
			}
		}
		trail = trail[:len(trail)-1]
		state[name] = done
		return false
	}
	for _, s := range p.Services {
		if visit(s.Name) {
			return
		}
	}
}
