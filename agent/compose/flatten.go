package compose

import (
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/bounded"
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
		from := f.load(name, at)
		if from == nil {
			return nil
		}
		from.base = base
		rebase(from.root, base)
		f.include(from, append(slices.Clone(trail), name))
		f.extendAll(from)
		if len(f.faults) > 0 {
			return nil
		}
		if out == nil {
			out = from.root
			continue
		}
		out = f.merge(without(out, from.tags), from.root, "")
	}
	return out
}

// layer is one file of a project.
type layer struct {
	name string
	base string // the directory that its paths start from
	root *node  // without tags
	tags *node  // the file as it was read; nil where it has no tags
}

// load reads one file of the directory.
func (f *flattening) load(name string, at *node) *layer {
	if f.reads++; f.reads > maxReads || f.size > maxReadBytes {
		f.fault(at, "", "the project reads more than %d files, or %d bytes", maxReads, maxReadBytes)
		return nil
	}
	data, err := bounded.FileIn(f.fsys, name, maxFile)
	if err != nil {
		hint := ""
		if at == nil {
			hint = "give the directory that holds " + File + " or docker-compose.yml"
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
	out := &layer{name: name, base: path.Dir(name), root: root}
	if root.reset != "" {
		f.fault(root, "write it at single values", "tag %s of a whole file", root.reset)
		return nil
	}
	if p.layered {
		f.changed = true
		out.root, out.tags = copyOf(root, ""), root
	}
	return out
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
func (f *flattening) include(into *layer, trail []string) {
	root := into.root
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
		of, ok := f.included(item, into.base)
		if !ok {
			continue
		}
		from := f.model(of.names, of.project, trail, item)
		if from == nil {
			continue
		}
		f.defaults(from, of.env)
		for _, section := range []string{"services", "networks", "volumes", "configs", "secrets", "jobs", "models"} {
			f.takeOver(into, from, section)
		}
	}
}

// included reads one entry of include.
func (f *flattening) included(n *node, base string) (out included, ok bool) {
	paths := n
	if n.kind == mapKind {
		paths = n.get("path")
		if out.env = f.envOf(n.get("env_file"), base); out.env == nil {
			return out, false
		}
	}
	for _, item := range f.elements(paths) {
		name := item.str()
		if strings.Contains(name, "://") || strings.HasPrefix(name, "oci:") || strings.HasPrefix(name, "git@") {
			f.fault(item, "copy it into the directory", "%s is elsewhere: only files of the directory are packed", clipped(name))
			return out, false
		}
		if name = f.within(item, base); name == "" {
			return out, false
		}
		out.names = append(out.names, name)
	}
	if len(out.names) == 0 {
		f.fault(n, "", "path is missing")
		return out, false
	}
	out.project = path.Dir(out.names[0])
	if d := n.get("project_directory"); !d.isNull() {
		if out.project = path.Join(base, d.str()); path.IsAbs(d.str()) || !fs.ValidPath(out.project) {
			f.fault(d, "", "%s is outside the directory", clipped(d.str()))
			return out, false
		}
	}
	return out, true
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
func (f *flattening) takeOver(into *layer, from *node, section string) {
	root, theirs := into.root, from.get(section)
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
			ours.fields[k] = f.merge(without(theirs.fields[k], into.tags.get(section, k)), c, join(section, "*"))
		}
	}
}

// extendAll resolves extends of every service of a file.
func (f *flattening) extendAll(from *layer) {
	services := from.root.get("services")
	done := map[string]*node{}
	fields(services, func(k string, _ *node) { done[k] = f.extend(from, k, nil, nil) })
	fields(services, func(k string, _ *node) {
		if done[k] != nil {
			services.fields[k] = done[k]
		}
	})
}

// extend is a service with what it extends under it; nil when there was a fault.
func (f *flattening) extend(in *layer, service string, trail []string, at *node) *node {
	s := in.root.get("services", service)
	if s == nil {
		f.fault(at, "", "service %q is not in %s", clipped(service), in.name)
		return nil
	}
	e := s.get("extends")
	if e == nil {
		return s
	}
	f.changed = true
	step := service + " (" + in.name + ")"
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
	of := in
	if !other.isNull() {
		target := f.within(other, in.base)
		if target == "" {
			return nil
		}
		if target != in.name {
			if of = f.load(target, other); of == nil {
				return nil
			}
			rebase(of.root, of.base)
		}
	}
	from := f.extend(of, ref, trail, e)
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
	return f.merge(without(from, in.tags.get("services", service)), &own, "services.*")
}
