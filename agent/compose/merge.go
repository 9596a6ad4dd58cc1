package compose

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/format"
)

// The ways in which a value is laid over another of the same key, as the Compose Specification has them for several
// files, extends and the containers before a service.
type way int

const (
	byKind    way = iota // mappings key by key, lists one after the other, else the later
	replace              // the later
	variables            // KEY=value, the later of one name
	asMapping            // a list is a mapping without values
	asList               // a scalar is a list of one
	sameKind             // mappings key by key, else the later
	byDriver             // key by key when both name one driver, else the later
	bySubnet             // lists of mappings, those of one subnet key by key
)

// wayOf says how values at a pattern are merged.
func wayOf(pattern string) way {
	at := strings.TrimPrefix(pattern, "services.*.")
	if at == pattern {
		switch {
		case pattern == "networks.*.ipam.config":
			return bySubnet
		case strings.HasSuffix(pattern, ".*.labels"):
			return variables
		}
		return byKind
	}
	switch at {
	case "command", "entrypoint", "healthcheck.test":
		return replace
	case "environment", "labels", "annotations", "sysctls", "deploy.labels":
		return variables
	case "depends_on", "networks", "models":
		return asMapping
	case "dns", "dns_opt", "dns_search", "env_file", "label_file", "extra_hosts", "tmpfs":
		return asList
	case "ulimits.*":
		return sameKind
	case "logging":
		return byDriver
	}
	return byKind
}

// identity of a list's element, where a later one takes the place of an earlier; "" for none.
func identity(pattern string, n *node) string {
	field := func(key string) string { return n.get(key).str() }
	mapped := n.kind == mapKind
	switch strings.TrimPrefix(pattern, "services.*.") {
	case "volumes", "devices":
		if mapped {
			return field("target")
		}
		if strings.HasSuffix(pattern, "volumes") {
			if v, err := format.ParseVolume(n.str()); err == nil {
				return v.Target
			}
			return n.str()
		}
		parts := strings.Split(n.str(), ":")
		return parts[min(1, len(parts)-1)]
	case "ports":
		if mapped {
			return strings.Join([]string{field("host_ip"), field("published"), field("target"), field("protocol")}, " ")
		}
		return n.str()
	case "configs", "secrets":
		if mapped && field("target") != "" {
			return field("target")
		} else if mapped {
			return field("source")
		}
		return n.str()
	case "env_file":
		if mapped {
			return field("path")
		}
		return n.str()
	case "cap_add", "cap_drop", "dns", "dns_opt", "dns_search", "expose", "links", "networks.*.aliases", "profiles", "tmpfs":
		return n.str()
	}
	return ""
}

// merge lays over on base. It changes neither; the result shares what it takes whole.
func (d *document) merge(base, over *node, pattern string) *node {
	switch {
	case over.reset == resetTag:
		return nil
	case base == nil || over.reset == overrideTag:
		return over
	case over.isNull():
		return base
	case base.isNull():
		return over
	}
	how := wayOf(pattern)
	switch how {
	case replace:
		return over
	case variables:
		return d.mergeVariables(base, over, pattern)
	case asMapping:
		base, over = keysOnly(base), keysOnly(over)
	case asList:
		base, over = listed(base), listed(over)
	case sameKind:
		if base.kind != mapKind || over.kind != mapKind {
			return over
		}
	case byDriver:
		a, b := base.get("driver").str(), over.get("driver").str()
		if a != b && a != "" && b != "" {
			return over
		}
	case bySubnet:
		return d.mergeSubnets(base, over, pattern)
	}
	switch {
	case base.kind != over.kind:
		d.fault(over, "", "cannot be laid over %s, which has another form", base.path)
		return over
	case over.kind == mapKind:
		return d.mergeFields(base, over, pattern)
	case over.kind == listKind:
		return concat(base, over, pattern)
	}
	return over
}

func (d *document) mergeFields(base, over *node, pattern string) *node {
	out := *over
	out.keys, out.fields = nil, map[string]*node{}
	set := func(k string, n *node) {
		if _, ok := out.fields[k]; !ok {
			out.keys = append(out.keys, k)
		}
		out.fields[k] = n
	}
	for _, k := range base.keys {
		set(k, base.fields[k])
	}
	for _, k := range over.keys {
		next := join(pattern, k)
		if authors(pattern) {
			next = join(pattern, "*")
		}
		m := d.merge(base.fields[k], over.fields[k], next)
		if m == nil {
			out.drop(k)
			continue
		}
		set(k, m)
	}
	return &out
}

// authors tells the mappings whose keys are names of the author's choice.
func authors(pattern string) bool {
	switch pattern {
	case "services", "networks", "volumes", "configs", "secrets", "services.*.networks", "services.*.depends_on", "services.*.ulimits":
		return true
	}
	return false
}

// concat puts one list behind the other; what is there already is not there twice.
func concat(base, over *node, pattern string) *node {
	out := *over
	out.items = nil
	at := map[string]int{}
	for _, item := range slices.Concat(base.items, over.items) {
		if id := identity(pattern, item); id != "" {
			if i, ok := at[id]; ok {
				out.items[i] = item
				continue
			}
			at[id] = len(out.items)
		} else if slices.ContainsFunc(out.items, func(o *node) bool { return reflect.DeepEqual(plain(o), plain(item)) }) {
			continue
		}
		out.items = append(out.items, item)
	}
	return &out
}

// mergeVariables keeps mappings where both are; else both become lists, for the names in a list may hold variables.
func (d *document) mergeVariables(base, over *node, pattern string) *node {
	if base.kind == mapKind && over.kind == mapKind {
		return d.mergeFields(base, over, pattern+".of")
	}
	if base.kind == scalarKind || over.kind == scalarKind {
		d.fault(over, "", "must be a list or a mapping")
		return over
	}
	out := *over
	out.kind, out.keys, out.fields, out.items = listKind, nil, nil, nil
	at := map[string]int{}
	for _, item := range slices.Concat(entries(base), entries(over)) {
		name, _, _ := strings.Cut(item.str(), "=")
		if i, ok := at[name]; ok {
			out.items[i] = item
			continue
		}
		at[name] = len(out.items)
		out.items = append(out.items, item)
	}
	return &out
}

// entries are a mapping's as KEY=value. In a list the names are filled in too, so their dollar signs are written twice.
func entries(n *node) []*node {
	if n.kind != mapKind {
		return n.items
	}
	out := make([]*node, 0, len(n.keys))
	for _, k := range n.keys {
		v := n.fields[k]
		text := strings.ReplaceAll(k, "$", "$$")
		switch {
		case v.kind != scalarKind:
			out = append(out, v) // refused where it is read
			continue
		case v.value != nil:
			text += "=" + fmt.Sprint(v.value)
		case strings.HasSuffix(n.path, "labels"):
			text += "="
		}
		e := *v
		e.value, e.text = text, text
		out = append(out, &e)
	}
	return out
}

// keysOnly makes a mapping of a list of names.
func keysOnly(n *node) *node {
	if n.kind != listKind {
		return n
	}
	out := *n
	out.kind, out.items, out.keys, out.fields = mapKind, nil, nil, map[string]*node{}
	for _, item := range n.items {
		k := item.str()
		if _, ok := out.fields[k]; ok || item.kind != scalarKind {
			continue
		}
		empty := *item
		empty.value, empty.text = nil, ""
		out.keys, out.fields[k] = append(out.keys, k), &empty
	}
	return &out
}

// listed makes a list of one value, or of a mapping's entries.
func listed(n *node) *node {
	if n.kind == listKind {
		return n
	}
	out := *n
	out.kind, out.keys, out.fields, out.items = listKind, nil, nil, []*node{n}
	if n.kind == mapKind {
		out.items = entries(n)
	}
	return &out
}

// mergeSubnets lays descriptions of one subnet over each other.
func (d *document) mergeSubnets(base, over *node, pattern string) *node {
	if base.kind != listKind || over.kind != listKind {
		d.fault(over, "", "must be a list")
		return over
	}
	out := *over
	out.items = slices.Clone(base.items)
	for _, item := range over.items {
		i := slices.IndexFunc(out.items, func(o *node) bool { return o.get("subnet").str() == item.get("subnet").str() })
		if i < 0 || item.kind != mapKind || out.items[i].kind != mapKind {
			out.items = append(out.items, item)
			continue
		}
		out.items[i] = d.mergeFields(out.items[i], item, pattern+".of")
	}
	return &out
}
