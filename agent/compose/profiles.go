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

// hookName is what compose-go knows a container before a service under.
func hookName(service string, i int) string { return fmt.Sprintf("%s-pre-start-%d", service, i+1) }

// lift makes services of the containers before services, for compose-go to type their values, each with what it
// inherits.
func (t *translation) lift(services *node) {
	t.before = map[string]*node{}
	for _, k := range services.keys {
		n := services.fields[k]
		list := n.get("pre_start")
		if list.isNull() {
			continue
		}
		if list.kind != listKind || len(list.items) > maxHooks {
			t.fault(list, "", "must be a list of %d at most", maxHooks)
			n.drop("pre_start")
			continue
		}
		for i, item := range list.items {
			if item.kind != mapKind {
				t.fault(item, "", "must be a mapping")
				continue
			}
			base := &node{kind: mapKind, path: item.path, line: item.line, column: item.column, fields: map[string]*node{}}
			for _, key := range n.keys {
				if !slices.Contains(notInPreStart(), key) && key != "networks" && key != "network_mode" && key != "mac_address" && key != "stop_grace_period" {
					base.keys, base.fields[key] = append(base.keys, key), n.fields[key]
				}
			}
			m := t.merge(base, item, "services.*")
			m.path = item.path
			t.before[hookName(k, i)] = m
		}
	}
}

// maxHooks bounds the commands and containers around one service.
const maxHooks = 32

// hooks are what runs around a service.
func (t *translation) hooks(n *node, s *workload.Service) {
	c := t.loaded.Services[s.Name]
	if list := n.get("pre_start"); !list.isNull() {
		for i, item := range list.items {
			name := hookName(s.Name, i)
			h, ok := t.before[name]
			if !ok {
				continue
			}
			before := t.service(name, h)
			before.Networks, before.Restart = nil, workload.Restart{}
			s.PreStart = append(s.PreStart, workload.PreStart{Service: before, PerReplica: t.flag(item.get("per_replica"))})
		}
	}
	s.PostStart = t.commands(n.get("post_start"), len(c.PostStart), func(i int) workload.Hook {
		h := c.PostStart[i]
		return workload.Hook{Command: h.Command, User: h.User, Privileged: h.Privileged, WorkingDir: h.WorkingDir, Environment: t.hookEnvironment(h)}
	})
	s.PreStop = t.commands(n.get("pre_stop"), len(c.PreStop), func(i int) workload.Hook {
		h := c.PreStop[i]
		return workload.Hook{Command: h.Command, User: h.User, Privileged: h.Privileged, WorkingDir: h.WorkingDir, Environment: t.hookEnvironment(h)}
	})
}

func (t *translation) commands(n *node, count int, hook func(int) workload.Hook) []workload.Hook {
	if n.isNull() {
		return nil
	}
	if n.kind != listKind || len(n.items) != count || count > maxHooks {
		t.fault(n, "", "must be a list of %d at most", maxHooks)
		return nil
	}
	var out []workload.Hook
	for i, item := range n.items {
		h := hook(i)
		switch {
		case len(h.Command) == 0 && !t.isCut(n.path):
			t.fault(item, "", "command is missing")
		case slices.ContainsFunc(append(slices.Clone(h.Command), h.User, h.WorkingDir), func(a string) bool { return strings.ContainsRune(a, 0) }):
			t.fault(item, "", "holds a zero byte")
		case h.WorkingDir != "" && !strings.HasPrefix(h.WorkingDir, "/"):
			t.fault(item.get("working_dir"), "", "%q is not an absolute path", clipped(h.WorkingDir))
		}
		out = append(out, h)
	}
	return out
}
