package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// profilesVariable is the parameter that names the active profiles, as Compose has it: "a,b", or "*" for all.
const profilesVariable = "COMPOSE_PROFILES"

// profiles takes out the services that do not exist here: those whose profiles are all off, and those of no replicas.
func (t *translation) profiles(services *node) {
	active := strings.FieldsFunc(t.env[profilesVariable], func(r rune) bool { return r == ',' || r == ' ' })
	all := t.every || slices.Contains(active, "*")
	t.off = map[string]string{}
	for _, k := range slices.Clone(services.keys) {
		n := services.fields[k]
		p := n.get("profiles")
		names := t.texts(p)
		n.drop("profiles")
		why := ""
		if len(names) > 0 && !all && !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(active, n) }) {
			why = fmt.Sprintf("its profiles are off (%s)", strings.Join(names, ", "))
		}
		for _, c := range []*node{n.get("scale"), n.get("deploy", "replicas")} {
			if c.str() == "0" && !t.every {
				why = "it has no replicas"
			}
		}
		if why != "" {
			t.off[k] = why
			services.drop(k)
		}
	}
	if len(services.keys) == 0 && len(t.off) > 0 {
		t.fault(services, "name active profiles with the deployment's parameter "+profilesVariable, "there are no services left: %s",
			t.off[slices.Sorted(maps.Keys(t.off))[0]])
	}
}

// offHint says how a service that does not exist here would.
func (t *translation) offHint(name string) string {
	switch {
	case strings.HasPrefix(t.off[name], "its profiles"):
		return "name one of its profiles in the deployment's parameter " + profilesVariable + ", or depend on it with required: false"
	case t.off[name] != "":
		return "give it a replica, or depend on it with required: false"
	}
	return ""
}

// initContainer is a container of pre_start with what it inherits from its service.
func (t *translation) initContainer(service, own *node) *node {
	base := &node{kind: mapKind, path: own.path, line: own.line, column: own.column, fields: map[string]*node{}}
	for _, key := range service.keys {
		if !slices.Contains(notInPreStart(), key) && key != "networks" && key != "network_mode" && key != "mac_address" && key != "stop_grace_period" {
			base.keys, base.fields[key] = append(base.keys, key), service.fields[key]
		}
	}
	return t.merge(base, own, "services.*")
}

// maxHooks bounds the commands and containers around one service.
const maxHooks = 32

// hooks are what runs around a service: init containers, and commands in its own.
func (t *translation) hooks(n *node, s *workload.Service) {
	for i, item := range t.list(n.get("pre_start"), maxHooks) {
		if item.kind != mapKind {
			t.fault(item, "", "must be a mapping")
			continue
		}
		name := fmt.Sprintf("%s-pre-start-%d", s.Name, i+1)
		t.inits[name] = t.initContainer(n, item)
		c := t.service(name, t.inits[name])
		c.Networks, c.Restart = nil, workload.Restart{}
		s.PreStart = append(s.PreStart, workload.PreStart{Service: c, PerReplica: t.flag(item.get("per_replica"))})
	}
	s.PostStart, s.PreStop = t.commands(n.get("post_start")), t.commands(n.get("pre_stop"))
}

func (t *translation) commands(n *node) []workload.Hook {
	var out []workload.Hook
	for _, item := range t.list(n, maxHooks) {
		if item.kind != mapKind {
			t.fault(item, "", "must be a mapping")
			continue
		}
		h := workload.Hook{
			Command: t.command(item.get("command")), User: t.text(item.get("user")), Privileged: t.flag(item.get("privileged")),
			WorkingDir: t.text(item.get("working_dir")), Environment: t.hookEnvironment(item.get("environment")),
		}
		switch {
		case len(h.Command) == 0 && !t.isCut(n.path):
			t.fault(item, "", "command is missing")
		case h.WorkingDir != "" && !strings.HasPrefix(h.WorkingDir, "/"):
			t.fault(item.get("working_dir"), "", "%q is not an absolute path", clipped(h.WorkingDir))
		}
		out = append(out, h)
	}
	return out
}
