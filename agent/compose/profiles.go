package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// profiles removes services without an active profile, and services without replicas.
func (t *translation) profiles(services *composefile.Node) {
	active := strings.FieldsFunc(t.env[composefile.ProfilesVariable], func(r rune) bool { return r == ',' || r == ' ' })
	all := t.publisher || slices.Contains(active, "*")
	t.inactive = map[string]string{}
	for _, k := range slices.Clone(services.Keys) {
		n := services.Fields[k]
		p := n.Get("profiles")
		names := t.texts(p)
		n.Drop("profiles")
		why := ""
		if len(names) > 0 && !all && !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(active, n) }) {
			why = fmt.Sprintf("its profiles are off (%s)", strings.Join(names, ", "))
		}
		for _, c := range []*composefile.Node{n.Get("scale"), n.Get("deploy", "replicas")} {
			if c.Text() == "0" && !t.publisher {
				why = "it has no replicas"
			}
		}
		if why != "" {
			t.inactive[k] = why
			services.Drop(k)
		}
	}
	if len(services.Keys) == 0 && len(t.inactive) > 0 {
		t.Fault(services, "name active profiles with the deployment's parameter "+composefile.ProfilesVariable, "there are no services left: %s",
			t.inactive[slices.Sorted(maps.Keys(t.inactive))[0]])
	}
}

// inactiveHint is the hint on how to activate a service.
func (t *translation) inactiveHint(name string) string {
	switch {
	case strings.HasPrefix(t.inactive[name], "its profiles"):
		return "name one of its profiles in the deployment's parameter " + composefile.ProfilesVariable + ", or depend on it with required: false"
	case t.inactive[name] != "":
		return "give it a replica, or depend on it with required: false"
	}
	return ""
}

// initContainer is a container of pre_start merged over the keys that it inherits from its service.
func (t *translation) initContainer(service, own *composefile.Node) *composefile.Node {
	base := &composefile.Node{Kind: composefile.Map, Path: own.Path, Line: own.Line, Column: own.Column, Fields: map[string]*composefile.Node{}}
	for _, key := range service.Keys {
		if !slices.Contains(notInPreStart(), key) && key != "networks" && key != "network_mode" && key != "mac_address" && key != "stop_grace_period" {
			base.Keys, base.Fields[key] = append(base.Keys, key), service.Fields[key]
		}
	}
	return t.Merge(base, own, "services.*")
}

// maxHooks bounds the hook commands and init containers of one service.
const maxHooks = 32

// hooks reads init containers, and the commands after a start and before a stop.
func (t *translation) hooks(n *composefile.Node, s *workload.Service) {
	for i, item := range t.List(n.Get("pre_start"), maxHooks) {
		if item.Kind != composefile.Map {
			t.Fault(item, "", "must be a mapping")
			continue
		}
		name := fmt.Sprintf("%s-pre-start-%d", s.Name, i+1)
		t.inits[name] = t.initContainer(n, item)
		c := t.service(name, t.inits[name])
		c.Networks, c.Restart = nil, workload.Restart{}
		s.PreStart = append(s.PreStart, workload.PreStart{Service: c, PerReplica: t.flag(item.Get("per_replica"))})
	}
	s.PostStart, s.PreStop = t.commands(n.Get("post_start")), t.commands(n.Get("pre_stop"))
}

func (t *translation) commands(n *composefile.Node) []workload.Hook {
	var out []workload.Hook
	for _, item := range t.List(n, maxHooks) {
		if item.Kind != composefile.Map {
			t.Fault(item, "", "must be a mapping")
			continue
		}
		h := workload.Hook{
			Command: t.command(item.Get("command")), User: t.Text(item.Get("user")), Privileged: t.flag(item.Get("privileged")),
			WorkingDir: t.Text(item.Get("working_dir")), Environment: t.hookEnvironment(item.Get("environment")),
		}
		switch {
		case len(h.Command) == 0 && !t.isOmitted(n.Path):
			t.Fault(item, "", "command is missing")
		case h.WorkingDir != "" && !strings.HasPrefix(h.WorkingDir, "/"):
			t.Fault(item.Get("working_dir"), "", "%q is not an absolute path", composefile.Clip(h.WorkingDir))
		}
		out = append(out, h)
	}
	return out
}
