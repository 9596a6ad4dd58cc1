package compose

import (
	"fmt"
	"strings"
)

// config is the tree as the plain values that compose-go takes.
//
// Mappings of the author's own keys, environment and labels, go as lists: compose-go takes keys that begin with "x-" out
// of every mapping, and a label or variable may be called that.
func (d *document) config() map[string]any {
	out, _ := plain(d.root).(map[string]any)
	for _, section := range []string{"services", "networks", "volumes"} {
		entries, _ := out[section].(map[string]any)
		for name, e := range entries {
			fields, ok := e.(map[string]any)
			if !ok {
				continue
			}
			for _, key := range []string{"environment", "labels"} {
				if n := d.root.get(section, name, key); n != nil && n.kind == mapKind {
					fields[key] = pairs(n, key == "environment")
				}
			}
		}
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
