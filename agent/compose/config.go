package compose

import (
	"fmt"
	"slices"
	"strings"
)

// typed are the keys of a service whose values compose-go validates and types. The others are read by this package,
// entry by entry, so that a fault has its position and takes nothing else along.
func typed() []string {
	return []string{
		"command", "entrypoint", "environment", "env_file", "labels", "healthcheck", "cpus", "mem_limit", "stop_grace_period", "stop_signal",
		"expose", "working_dir", "user", "hostname", "read_only", "restart", "post_start", "pre_stop",
	}
}

// config is what compose-go types, as the plain values that it takes.
//
// Mappings of the author's own keys, environment and labels, go as lists: compose-go takes keys that begin with "x-" out
// of every mapping, and a label or variable may be called that.
func (d *document) config() map[string]any {
	services := map[string]any{}
	for name, n := range d.root.get("services").fields {
		services[name] = typedFields(n)
	}
	for name, n := range d.before {
		services[name] = typedFields(n)
	}
	return map[string]any{"services": services}
}

func typedFields(n *node) map[string]any {
	out := map[string]any{}
	for _, k := range n.keys {
		if slices.Contains(typed(), k) {
			out[k] = plain(n.fields[k])
		}
	}
	for _, key := range []string{"environment", "labels"} {
		if c := n.get(key); c != nil && c.kind == mapKind {
			out[key] = pairs(c, key == "environment")
		}
	}
	for _, key := range []string{"post_start", "pre_stop"} {
		list := n.get(key)
		if list == nil {
			continue
		}
		for i, item := range list.items {
			if c := item.get("environment"); c != nil && c.kind == mapKind {
				out[key].([]any)[i].(map[string]any)["environment"] = pairs(c, true)
			}
		}
	}
	if limits := n.get("deploy", "resources", "limits"); limits != nil {
		out["deploy"] = map[string]any{"resources": map[string]any{"limits": plain(limits)}}
	}
	return out
}

func plain(n *node) any {
	switch n.kind {
	case mapKind:
		m := make(map[string]any, len(n.keys))
		for _, k := range n.keys {
			m[k] = plain(n.fields[k])
		}
		return m
	case listKind:
		l := make([]any, len(n.items))
		for i, item := range n.items {
			l[i] = plain(item)
		}
		return l
	}
	return n.value
}

// pairs writes a mapping as "key=value"; a variable without a value is the key alone.
func pairs(n *node, variables bool) []any {
	out := make([]any, 0, len(n.keys))
	for _, k := range n.keys {
		v := n.fields[k]
		switch {
		case v.kind != scalarKind:
			out = append(out, plain(v)) // the schema refuses it
		case v.value == nil && variables:
			out = append(out, k)
		case v.value == nil:
			out = append(out, k+"=")
		default:
			out = append(out, k+"="+fmt.Sprint(v.value))
		}
	}
	return out
}

// checkPairs refuses keys that cannot be told apart from their values.
func (d *document) checkPairs(n *node) {
	if n == nil || n.kind != mapKind {
		return
	}
	for _, k := range n.keys {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			d.fault(n.fields[k], "", "%q is no name", k)
		}
	}
}
