package compose

import (
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"
)

// Limits on what one project may be made of.
const (
	maxReads     = 256      // files read, each time that one is named
	maxReadBytes = 16 << 20 // of all of them
	maxExtends   = 32       // services in one chain
)

// flattening makes one file of a project that is written in several.
type flattening struct {
	*document
	fsys    fs.FS
	dir     string
	first   []byte // of the first file
	changed bool   // the result says it in another way than the first file
	reads   int
	size    int
}

// project is the whole project as one tree, with paths from its root.
func (f *flattening) project(names []string) *node {
	f.changed = len(names) > 1
	root := f.model(names, ".", nil, nil)
	if root == nil || len(f.faults) > 0 {
		return nil
	}
	fields(root.get("services"), func(_ string, s *node) { f.trim(s) })
	left := maxNodes
	root = copyWithin(root, "", &left)
	if left < 0 {
		f.fault(nil, "", "more than %d values once everything is resolved", maxNodes)
	}
	return root
}

// trim takes out what only the developer's machine needs.
func (f *flattening) trim(s *node) {
	for _, k := range []string{"develop", "attach"} {
		if s.get(k) != nil {
			s.drop(k)
			f.changed = true
		}
	}
	if b := s.get("build"); b != nil && !s.get("image").isNull() {
		f.notice(b, "images are built before they are pushed: what is there as %s is taken", clipped(s.get("image").str()))
		s.drop("build")
		f.changed = true
	}
}

// model reads files that are laid over each other. base is the directory that their paths start from; trail are the
// files that include this one.
func (f *flattening) model(names []string, base string, trail []string, at *node) *node {
	var out *node
	for _, name := range names {
		if i := slices.Index(trail, name); i >= 0 {
			f.fault(at, "", "files include each other: %s", strings.Join(append(trail[i:], name), " → "))
			return nil
		}
		tree := f.load(name, at)
		if tree == nil {
			return nil
		}
		rebase(tree, base)
		f.include(tree, base, append(slices.Clone(trail), name))
		f.extendAll(tree, name, base)
		if len(f.faults) > 0 {
			return nil
		}
		if out == nil {
			out = tree
			continue
		}
		out = f.merge(out, tree, "")
	}
	return out
}

// load reads one file of the directory.
func (f *flattening) load(name string, at *node) *node {
	if f.reads++; f.reads > maxReads || f.size > maxReadBytes {
		f.fault(at, "", "the project reads more than %d files, or %d bytes", maxReads, maxReadBytes)
		return nil
	}
	data, err := readIn(f.fsys, name, maxFile)
	if err != nil {
		hint := ""
		if at == nil {
			hint = "give the directory that holds compose.yaml; no other name is valid"
		}
		f.fault(at, hint, "read %s: %v", name, err)
		return nil
	}
	f.size += len(data)
	if f.first == nil {
		f.first = data
	}
	p := &parser{file: path.Join(f.dir, name), layers: true}
	root, faults := p.parse(data)
	if len(faults) > 0 {
		f.faults = append(f.faults, faults...)
		return nil
	}
	f.changed = f.changed || p.layered
	return root
}

// rebase writes the paths of a file from the root of the project.
func rebase(root *node, base string) {
	if base == "." {
		return
	}
	for _, k := range fileKeys(root) {
		if !path.IsAbs(k.name) {
			text := k.prefix + path.Join(base, k.name) + k.suffix
			if k.bound {
				text = "./" + text // else it would be a volume's name
			}
			k.at.value, k.at.text = text, text
		}
	}
}

// include resolves what a file takes over from others; what it says itself is laid over that.
func (f *flattening) include(root *node, base string, trail []string) {
	list := root.get("include")
	if list == nil {
		return
	}
	f.changed = true
	root.drop("include")
	if list.isNull() {
		return
	}
	if list.kind != listKind {
		f.fault(list, "", "must be a list")
		return
	}
	for _, item := range list.items {
		names, project := f.included(item, base)
		if names == nil {
			continue
		}
		from := f.model(names, project, trail, item)
		if from == nil {
			continue
		}
		for _, section := range []string{"services", "networks", "volumes", "configs", "secrets", "jobs", "models"} {
			f.takeOver(root, from, section)
		}
	}
}

// included reads one entry of include: its files from the root, and the directory that their paths start from.
func (f *flattening) included(n *node, base string) (names []string, project string) {
	paths := n
	if n.kind == mapKind {
		paths = n.get("path")
		if e := n.get("env_file"); !e.isNull() {
			f.fault(e, "give defaults in the file, ${NAME:-default}, or values as parameters of the deployment", "variables have their values from the device")
			return nil, ""
		}
	}
	for _, item := range f.elements(paths) {
		name := item.str()
		if strings.Contains(name, "://") || strings.HasPrefix(name, "oci:") || strings.HasPrefix(name, "git@") {
			f.fault(item, "copy it into the directory", "%s is elsewhere: only files of the directory are packed", clipped(name))
			return nil, ""
		}
		if name = f.within(item, base); name == "" {
			return nil, ""
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		f.fault(n, "", "path is missing")
		return nil, ""
	}
	project = path.Dir(names[0])
	if d := n.get("project_directory"); !d.isNull() {
		if project = path.Join(base, d.str()); path.IsAbs(d.str()) || !fs.ValidPath(project) {
			f.fault(d, "", "%s is outside the directory", clipped(d.str()))
			return nil, ""
		}
	}
	return names, project
}

// within is a path from the root; "" when it leaves it.
func (f *flattening) within(n *node, base string) string {
	name := n.str()
	if !path.IsAbs(name) {
		name = path.Join(base, name)
	}
	if !f.inside(n, name) {
		return ""
	}
	return path.Clean(name)
}

// takeOver puts a section of an included file under what the including one says.
func (f *flattening) takeOver(root, from *node, section string) {
	theirs := from.get(section)
	if theirs.isNull() {
		return
	}
	ours := root.get(section)
	if ours.isNull() {
		root.drop(section)
		root.keys, root.fields[section] = append(root.keys, section), theirs
		return
	}
	if ours.kind != mapKind || theirs.kind != mapKind {
		f.fault(ours, "", "must be a mapping")
		return
	}
	for _, k := range theirs.keys {
		c, ok := ours.fields[k]
		if !ok {
			ours.keys, ours.fields[k] = append(ours.keys, k), theirs.fields[k]
			continue
		}
		if !reflect.DeepEqual(plain(c), plain(theirs.fields[k])) {
			ours.fields[k] = f.merge(theirs.fields[k], c, join(section, "*"))
		}
	}
}

// extendAll resolves extends of every service of a file.
func (f *flattening) extendAll(root *node, name, base string) {
	done := map[string]*node{}
	fields(root.get("services"), func(k string, _ *node) { done[k] = f.extend(root, name, base, k, nil, nil) })
	fields(root.get("services"), func(k string, _ *node) {
		if done[k] != nil {
			root.get("services").fields[k] = done[k]
		}
	})
}

// extend is a service with what it extends under it; nil when there was a fault.
func (f *flattening) extend(root *node, file, base, service string, trail []string, at *node) *node {
	s := root.get("services", service)
	if s == nil {
		f.fault(at, "", "service %q is not in %s", clipped(service), file)
		return nil
	}
	e := s.get("extends")
	if e == nil {
		return s
	}
	f.changed = true
	step := service + " (" + file + ")"
	if i := slices.Index(trail, step); i >= 0 {
		f.fault(e, "", "services extend each other: %s", strings.Join(append(trail[i:], step), " → "))
		return nil
	}
	if trail = append(slices.Clone(trail), step); len(trail) > maxExtends {
		f.fault(e, "", "more than %d services extend each other", maxExtends)
		return nil
	}
	var other *node
	ref := e.str()
	if e.kind == mapKind {
		ref, other = f.text(e.get("service")), e.get("file")
	}
	if ref == "" {
		f.fault(e, "", "service is missing: which one is extended")
		return nil
	}
	if !other.isNull() {
		target := f.within(other, base)
		if target == "" {
			return nil
		}
		if target != file {
			tree := f.load(target, other)
			if tree == nil {
				return nil
			}
			rebase(tree, path.Dir(target))
			root, file, base = tree, target, path.Dir(target)
		}
	}
	from := f.extend(root, file, base, ref, trail, e)
	if from == nil {
		return nil
	}
	own := *s
	own.keys, own.fields = nil, map[string]*node{}
	for _, k := range s.keys {
		if k != "extends" {
			own.keys, own.fields[k] = append(own.keys, k), s.fields[k]
		}
	}
	return f.merge(from, &own, "services.*")
}
