package compose

import (
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// byName finds services; the pointers are valid until the slice grows.
func byName(p *workload.Project) map[string]*workload.Service {
	index := map[string]*workload.Service{}
	for i := range p.Services {
		index[p.Services[i].Name] = &p.Services[i]
	}
	return index
}

// dependencies reads depends_on and the dependencies of links, shared namespaces and volumes_from, and rejects services that can never
// start.
func (t *translation) dependencies(p *workload.Project) {
	index := byName(p)
	for i := range p.Services {
		s := &p.Services[i]
		service := t.root.Get("services", s.Name)
		n := service.Get("depends_on")
		switch {
		case n.IsNull():
		case n.Kind == composefile.Scalar:
			t.Fault(n, "", "must be a list or a mapping")
		case n.Kind == composefile.List:
			for _, item := range t.Elements(n) {
				t.dependency(s, item, item.Text(), nil, index)
			}
		default:
			for _, k := range n.Keys {
				t.dependency(s, n.Fields[k], k, n.Fields[k], index)
			}
		}
		t.links(service.Get("links"), s, index)
		for _, key := range []string{"network_mode", "pid", "ipc"} {
			t.shared(service.Get(key), s)
		}
	}
	t.shareMounts(p, index)
	t.cycles(p, index)
	t.chains(p, index)
}

// chains resolves chains of services that share a network namespace to the service that owns it.
func (t *translation) chains(p *workload.Project, index map[string]*workload.Service) {
	for range p.Services {
		for i := range p.Services {
			ns := &p.Services[i].Namespaces.Network
			if on := index[ns.Service()]; on != nil && on.Namespaces.Network != "" {
				*ns = on.Namespaces.Network
			}
		}
	}
}

func (t *translation) dependency(s *workload.Service, at *composefile.Node, name string, n *composefile.Node, index map[string]*workload.Service) {
	d := workload.Dependency{Service: name, Condition: workload.Started}
	if c := t.choice(n.Get("condition"), string(workload.Started), string(workload.Healthy), string(workload.Completed)); c != "" {
		d.Condition = workload.Condition(c)
	}
	if required, ok := t.boolean(n.Get("required"), true); ok {
		d.Optional = !required
	}
	d.Restart = t.flag(n.Get("restart"))
	on, ok := index[name]
	switch {
	case !ok && t.inactive[name] != "" && d.Optional:
		return
	case !ok && t.inactive[name] != "":
		t.Fault(at, t.inactiveHint(name), "service %s does not exist here: %s", name, t.inactive[name])
		return
	case !ok:
		t.Fault(at, "", "service %q is not defined", composefile.Clip(name))
		return
	case d.Condition == workload.Healthy && on.NoHealth:
		t.Fault(at, "", "service %s has its healthcheck off and never becomes healthy", name)
		return
	case d.Condition == workload.Healthy && on.Health == nil && t.publisher && !t.isOmitted("services."+name+".healthcheck"):
		t.Notice(at, "service %s has no healthcheck here: if its image has none either, it counts as healthy when it has started", name)
	case d.Condition == workload.Completed && (on.Restart.Policy == workload.RestartAlways || on.Restart.Policy == workload.RestartUnlessStopped):
		t.Notice(at, "service %s is restarted whenever it ends: what waits for its end starts after the first time it ended well", name)
	case slices.ContainsFunc(s.DependsOn, func(d workload.Dependency) bool { return d.Service == name }):
		t.Fault(at, "", "service %s is named twice", name)
		return
	}
	s.DependsOn = append(s.DependsOn, d)
}

// addDependency adds an implied dependency, unless it is declared.
func addDependency(s *workload.Service, name string, restart bool) {
	i := slices.IndexFunc(s.DependsOn, func(d workload.Dependency) bool { return d.Service == name })
	if i < 0 {
		s.DependsOn = append(s.DependsOn, workload.Dependency{Service: name, Condition: workload.Started, Restart: restart})
		return
	}
	s.DependsOn[i].Restart = s.DependsOn[i].Restart || restart
	s.DependsOn[i].Optional = false
}

// shared adds a dependency on the service whose namespace a service shares: a new container there has a new namespace.
func (t *translation) shared(n *composefile.Node, s *workload.Service) {
	name, ok := t.sharedWith(n.Text())
	if !ok || t.root.Get("services", name) == nil {
		return
	}
	if name == s.Name {
		t.Fault(n, "", "a service cannot share a namespace with itself")
		return
	}
	addDependency(s, name, true)
}

// links are dependencies with an alias for the other service.
func (t *translation) links(n *composefile.Node, s *workload.Service, index map[string]*workload.Service) {
	for _, item := range t.Elements(n) {
		name, alias, _ := strings.Cut(item.Text(), ":")
		on, ok := index[name]
		if !ok {
			t.Fault(item, t.inactiveHint(name), "service %q is not defined", composefile.Clip(name))
			continue
		}
		addDependency(s, name, false)
		if alias == "" || alias == name {
			continue
		}
		if !isHostname(alias) {
			t.Fault(item, "", "%q is no host name", composefile.Clip(alias))
			continue
		}
		if _, taken := index[alias]; taken {
			t.Fault(item, "", "%s is the name of a service of its own", alias)
			continue
		}
		both := false
		for i := range on.Networks {
			a := &on.Networks[i]
			if !slices.ContainsFunc(s.Networks, func(b workload.Attachment) bool { return b.Network == a.Network }) {
				continue
			}
			both = true
			if !slices.Contains(a.Aliases, alias) {
				a.Aliases = append(a.Aliases, alias)
			}
		}
		if !both {
			t.Fault(item, "put both on one network", "service %s shares no network with it", name)
		}
	}
}

// cycles reports one cycle, not all.
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
			at := t.root.Get("services", name, "depends_on")
			if at == nil {
				at = t.root.Get("services", name)
			}
			t.Fault(at, "", "services wait for each other: %s", strings.Join(loop, " → "))
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
