package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxFaults is how many faults, and how many notices, of one project are listed: more do not help.
const maxFaults = 100

// document is one Compose file on its way to a project.
type document struct {
	file    string
	root    *node
	env     map[string]string
	faults  []strict.Fault
	notices []strict.Fault
	filled  bool               // variables are filled in
	unset   map[*node][]string // variables without a value that a value used
	cut     map[string]bool    // paths that were left out because they need values of a device
	merged  int                // values that were handed to the library to be merged
}

// isCut reports whether a value, or what it is part of, was left out because it needs values of a device.
func (d *document) isCut(path string) bool {
	for path != "" {
		if d.cut[path] {
			return true
		}
		path = path[:max(strings.LastIndexByte(path, '.'), 0)]
	}
	return false
}

// undecided reports whether a value or a part of it was left out because it needs values of a device.
func (d *document) undecided(path string) bool {
	for cut := range d.cut {
		if strings.HasPrefix(cut, path+".") {
			return true
		}
	}
	return d.isCut(path)
}

// open reads a file up to interpolated, supported keys.
func open(file string, data []byte, env map[string]string) (*document, error) {
	d := &document{file: file, env: env, cut: map[string]bool{}}
	d.root, d.faults = parse(data)
	if len(d.faults) > 0 {
		return nil, d.err()
	}
	return d, d.prepare(false)
}

// prepare brings a tree up to interpolated, supported keys. assume leaves out what needs unknown variables.
func (d *document) prepare(assume bool) error {
	d.screen(d.root, supported())
	i := &interpolation{env: d.env, assume: assume, open: map[*node]bool{}}
	i.walk(d.root)
	d.faults = append(d.faults, i.faults...)
	if len(i.faults) > 0 {
		return d.err() // what is left would be judged by wrong values
	}
	if len(i.open) > 0 {
		d.prune(i.open)
	}
	d.filled = true
	d.screen(d.root, supported())
	if !d.hasServices() {
		return d.err()
	}
	return nil
}

// hasServices reports whether the file has services; it is a fault when it has none.
func (d *document) hasServices() bool {
	services := d.root.get("services")
	switch {
	case services.isNull() || services.kind == mapKind && len(services.keys) == 0:
		d.fault(d.root, "", "there are no services")
	case services.kind != mapKind:
		d.fault(services, "write each service as a key with its fields below it", "must be a mapping")
	default:
		return true
	}
	return false
}

// prune takes out what cannot be judged: single entries where a key holds a list of independent ones, else the key.
func (d *document) prune(open map[*node]bool) {
	entries := []string{
		"ports", "expose", "volumes", "tmpfs", "environment", "labels", "env_file", "annotations", "cap_add", "cap_drop", "devices", "dns",
		"extra_hosts", "group_add", "security_opt", "sysctls", "configs", "secrets", "profiles",
	}
	for _, section := range []string{"services", "networks", "volumes", "configs", "secrets"} {
		s := d.root.get(section)
		if s == nil {
			continue
		}
		for _, name := range s.keys {
			n := s.fields[name]
			if holds(n, open) && n.kind != mapKind {
				d.cut[n.path] = true
				continue
			}
			for _, key := range slices.Clone(n.keys) {
				child := n.fields[key]
				if !holds(child, open) {
					continue
				}
				d.cut[child.path] = true
				if child.kind == scalarKind || !slices.Contains(entries, key) {
					n.drop(key)
					continue
				}
				child.items = slices.DeleteFunc(child.items, func(item *node) bool { return holds(item, open) })
				for _, k := range slices.Clone(child.keys) {
					if holds(child.fields[k], open) {
						child.drop(k)
					}
				}
			}
		}
	}
}

func holds(n *node, open map[*node]bool) bool {
	if open[n] {
		return true
	}
	for _, item := range n.items {
		if holds(item, open) {
			return true
		}
	}
	for _, k := range n.keys {
		if holds(n.fields[k], open) {
			return true
		}
	}
	return false
}

// err is everything that was found, in order of the file; nil when nothing was.
func (d *document) err() error {
	if len(d.faults) == 0 {
		return nil
	}
	return &strict.Error{File: d.file, Faults: listed(d.faults, "faults")}
}

// listed is what was found in order of the file, each once, with the number of those beyond maxFaults at the end.
func listed(found []strict.Fault, what string) []strict.Fault {
	slices.SortStableFunc(found, func(a, b strict.Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	seen := make(map[strict.Fault]bool, len(found))
	found = slices.DeleteFunc(found, func(f strict.Fault) bool { // an anchor used twice is wrong once
		again := seen[f]
		seen[f] = true
		return again
	})
	if more := len(found) - maxFaults; more > 0 {
		found = append(found[:maxFaults:maxFaults], strict.Fault{Message: fmt.Sprintf("and %d more %s", more, what)})
	}
	return found
}

func faultAt(n *node) strict.Fault {
	if n == nil {
		return strict.Fault{Line: 1, Column: 1}
	}
	return strict.Fault{Line: n.line, Column: n.column, Path: n.path, File: n.file}
}
