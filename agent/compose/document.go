package compose

import (
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// document is one Compose file that is translated.
type document struct {
	*composefile.Report
	root    *composefile.Node
	env     map[string]string
	filled  bool            // variables are filled in
	omitted map[string]bool // paths that were left out because they need values of a device
}

// isOmitted reports whether a value, or one that contains it, was left out because it needs values of a device.
func (d *document) isOmitted(path string) bool {
	for path != "" {
		if d.omitted[path] {
			return true
		}
		path = path[:max(strings.LastIndexByte(path, '.'), 0)]
	}
	return false
}

// undecided reports whether a value or a part of it was left out because it needs values of a device.
func (d *document) undecided(path string) bool {
	for cut := range d.omitted {
		if strings.HasPrefix(cut, path+".") {
			return true
		}
	}
	return d.isOmitted(path)
}

// open reads a file and returns its tree with variables filled in and supported keys only.
func open(file string, data []byte, env map[string]string) (*document, error) {
	p, err := composefile.Parse(file, data)
	if err != nil {
		return nil, err
	}
	d := documentOf(p, env)
	return d, d.prepare(false)
}

func documentOf(p *composefile.Project, env map[string]string) *document {
	return &document{Report: p.Report, root: p.Root, env: env, omitted: map[string]bool{}}
}

// prepare fills variables into a tree and removes unsupported keys. assume leaves out values that need unknown variables.
func (d *document) prepare(assume bool) error {
	known := supported()
	d.screen(d.root, known)
	i := &composefile.Interpolation{Env: d.env, Assume: assume, Open: map[*composefile.Node]bool{}}
	i.Walk(d.root)
	d.Add(i.Faults...)
	if len(i.Faults) > 0 {
		return d.Err() // the remaining checks would use wrong values
	}
	if len(i.Open) > 0 {
		d.prune(i.Open)
	}
	d.filled = true
	d.screen(d.root, known)
	if p := (&composefile.Project{Report: d.Report, Root: d.root}); !p.HasServices() {
		return d.Err()
	}
	return nil
}

// prune removes values that cannot be checked: single entries if a key has a list of independent ones, otherwise the key.
func (d *document) prune(open map[*composefile.Node]bool) {
	entries := []string{
		"ports", "expose", "volumes", "tmpfs", "environment", "labels", "env_file", "annotations", "cap_add", "cap_drop", "devices", "dns",
		"extra_hosts", "group_add", "security_opt", "sysctls", "configs", "secrets", "profiles",
	}
	for _, section := range []string{"services", "networks", "volumes", "configs", "secrets"} {
		s := d.root.Get(section)
		if s == nil {
			continue
		}
		for _, name := range s.Keys {
			n := s.Fields[name]
			if containsAny(n, open) && n.Kind != composefile.Map {
				d.omitted[n.Path] = true
				continue
			}
			for _, key := range slices.Clone(n.Keys) {
				child := n.Fields[key]
				if !containsAny(child, open) {
					continue
				}
				d.omitted[child.Path] = true
				if child.Kind == composefile.Scalar || !slices.Contains(entries, key) {
					n.Drop(key)
					continue
				}
				child.Items = slices.DeleteFunc(child.Items, func(item *composefile.Node) bool { return containsAny(item, open) })
				for _, k := range slices.Clone(child.Keys) {
					if containsAny(child.Fields[k], open) {
						child.Drop(k)
					}
				}
			}
		}
	}
}

func containsAny(n *composefile.Node, open map[*composefile.Node]bool) bool {
	if open[n] {
		return true
	}
	for _, item := range n.Items {
		if containsAny(item, open) {
			return true
		}
	}
	for _, k := range n.Keys {
		if containsAny(n.Fields[k], open) {
			return true
		}
	}
	return false
}
