package composefile

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

// flattening turns a project of several files into one.
type flattening struct {
	*Report
	fsys    fs.FS
	dir     string
	first   []byte // of the first file
	changed bool   // the result says it in another way than the first file
	reads   int
	size    int
}

// project is the whole project as one tree, with paths from its root.
func (f *flattening) project(names []string) *Node {
	f.changed = len(names) > 1
	root := f.model(names, ".", nil, nil)
	if root == nil || f.Failed() {
		return nil
	}
	Each(root.Get("services"), func(_ string, s *Node) { f.trim(s) })
	left := maxNodes
	root = copyWithin(root, "", &left)
	if left < 0 {
		f.Fault(nil, "", "more than %d values once everything is resolved", maxNodes)
	}
	return root
}

// trim removes what only the developer's machine needs.
func (f *flattening) trim(s *Node) {
	for _, k := range []string{"develop", "attach"} {
		if s.Get(k) != nil {
			s.Drop(k)
			f.changed = true
		}
	}
	if b := s.Get("build"); b != nil && !s.Get("image").IsNull() {
		f.Notice(b, "images are built before they are pushed: image %s is used", Clip(s.Get("image").Text()))
		s.Drop("build")
		f.changed = true
	}
}

// model reads and merges files. base is the directory that their paths are relative to; trail are the files that include this one.
func (f *flattening) model(names []string, base string, trail []string, at *Node) *Node {
	var out *Node
	for _, name := range names {
		if i := slices.Index(trail, name); i >= 0 {
			f.Fault(at, "", "files include each other: %s", strings.Join(append(trail[i:], name), " → "))
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
		if f.Failed() {
			return nil
		}
		if out == nil {
			out = from.root
			continue
		}
		out = f.Merge(removeTagged(out, from.tags), from.root, "")
	}
	return out
}

// layer is one file of a project.
type layer struct {
	name string
	base string // the directory that its paths are relative to
	root *Node  // without tags
	tags *Node  // the file as it was read; nil where it has no tags
}

// load reads one file of the directory.
func (f *flattening) load(name string, at *Node) *layer {
	if f.reads++; f.reads > maxReads || f.size > maxReadBytes {
		f.Fault(at, "", "the project reads more than %d files, or %d bytes", maxReads, maxReadBytes)
		return nil
	}
	data, err := bounded.FileIn(f.fsys, name, maxFile)
	if err != nil {
		hint := ""
		if at == nil {
			hint = "give the directory that holds " + Name + " or docker-compose.yml"
		}
		f.Fault(at, hint, "read %s: %v", name, err)
		return nil
	}
	f.size += len(data)
	if f.first == nil {
		f.first = data
	}
	p := &parser{file: path.Join(f.dir, name), layers: true}
	root, faults := p.parse(data)
	if len(faults) > 0 {
		f.Add(faults...)
		return nil
	}
	out := &layer{name: name, base: path.Dir(name), root: root}
	if root.reset != "" {
		f.Fault(root, "write it at single values", "tag %s of a whole file", root.reset)
		return nil
	}
	if p.layered {
		f.changed = true
		out.root, out.tags = copyOf(root, ""), root
	}
	return out
}

// rebase makes the paths of a file relative to the root of the project.
func rebase(root *Node, base string) {
	if base == "." {
		return
	}
	for _, k := range fileKeys(root) {
		if !path.IsAbs(k.name) {
			text := k.prefix + path.Join(base, k.name) + k.suffix
			if k.bound {
				text = "./" + text // else it would be a volume's name
			}
			k.at.Value, k.at.Raw = text, text
		}
	}
}

// include resolves include; the file's own content is merged over the included files.
func (f *flattening) include(into *layer, trail []string) {
	root := into.root
	list := root.Get("include")
	if list == nil {
		return
	}
	f.changed = true
	root.Drop("include")
	if list.IsNull() {
		return
	}
	if list.Kind != List {
		f.Fault(list, "", "must be a list")
		return
	}
	for _, item := range list.Items {
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
			f.mergeSection(into, from, section)
		}
	}
}

// included reads one entry of include.
func (f *flattening) included(n *Node, base string) (out included, ok bool) {
	paths := n
	if n.Kind == Map {
		paths = n.Get("path")
		if out.env = f.envOf(n.Get("env_file"), base); out.env == nil {
			return out, false
		}
	}
	for _, item := range f.Elements(paths) {
		name := item.Text()
		if strings.Contains(name, "://") || strings.HasPrefix(name, "oci:") || strings.HasPrefix(name, "git@") {
			f.Fault(item, "copy it into the directory", "%s is elsewhere: only files of the directory are packed", Clip(name))
			return out, false
		}
		if name = f.resolvePath(item, base); name == "" {
			return out, false
		}
		out.names = append(out.names, name)
	}
	if len(out.names) == 0 {
		f.Fault(n, "", "path is missing")
		return out, false
	}
	out.project = path.Dir(out.names[0])
	if d := n.Get("project_directory"); !d.IsNull() {
		if out.project = path.Join(base, d.Text()); path.IsAbs(d.Text()) || !fs.ValidPath(out.project) {
			f.Fault(d, "", "%s is outside the directory", Clip(d.Text()))
			return out, false
		}
	}
	return out, true
}

// resolvePath is a path from the root; "" when it leaves it.
func (f *flattening) resolvePath(n *Node, base string) string {
	name := n.Text()
	if !path.IsAbs(name) {
		name = path.Join(base, name)
	}
	if !f.inside(n, name) {
		return ""
	}
	return path.Clean(name)
}

// mergeSection merges a section of the including file over that of an included one.
func (f *flattening) mergeSection(into *layer, from *Node, section string) {
	root, theirs := into.root, from.Get(section)
	if theirs.IsNull() {
		return
	}
	ours := root.Get(section)
	if ours.IsNull() {
		root.Drop(section)
		root.Keys, root.Fields[section] = append(root.Keys, section), theirs
		return
	}
	if ours.Kind != Map || theirs.Kind != Map {
		f.Fault(ours, "", "must be a mapping")
		return
	}
	for _, k := range theirs.Keys {
		c, ok := ours.Fields[k]
		if !ok {
			ours.Keys, ours.Fields[k] = append(ours.Keys, k), theirs.Fields[k]
			continue
		}
		if !reflect.DeepEqual(plain(c), plain(theirs.Fields[k])) {
			ours.Fields[k] = f.Merge(removeTagged(theirs.Fields[k], into.tags.Get(section, k)), c, join(section, "*"))
		}
	}
}

// extendAll resolves extends of every service of a file.
func (f *flattening) extendAll(from *layer) {
	services := from.root.Get("services")
	done := map[string]*Node{}
	Each(services, func(k string, _ *Node) { done[k] = f.extend(from, k, nil, nil) })
	Each(services, func(k string, _ *Node) {
		if done[k] != nil {
			services.Fields[k] = done[k]
		}
	})
}

// extend is a service merged over the one that it extends; nil when there was a fault.
func (f *flattening) extend(in *layer, service string, trail []string, at *Node) *Node {
	s := in.root.Get("services", service)
	if s == nil {
		f.Fault(at, "", "service %q is not in %s", Clip(service), in.name)
		return nil
	}
	e := s.Get("extends")
	if e == nil {
		return s
	}
	f.changed = true
	step := service + " (" + in.name + ")"
	if i := slices.Index(trail, step); i >= 0 {
		f.Fault(e, "", "services extend each other: %s", strings.Join(append(trail[i:], step), " → "))
		return nil
	}
	if trail = append(slices.Clone(trail), step); len(trail) > maxExtends {
		f.Fault(e, "", "more than %d services extend each other", maxExtends)
		return nil
	}
	var other *Node
	ref := e.Text()
	if e.Kind == Map {
		ref, other = f.Text(e.Get("service")), e.Get("file")
	}
	if ref == "" {
		f.Fault(e, "", "service is missing: which one is extended")
		return nil
	}
	of := in
	if !other.IsNull() {
		target := f.resolvePath(other, in.base)
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
	own.Keys, own.Fields = nil, map[string]*Node{}
	for _, k := range s.Keys {
		if k != "extends" {
			own.Keys, own.Fields[k] = append(own.Keys, k), s.Fields[k]
		}
	}
	return f.Merge(removeTagged(from, in.tags.Get("services", service)), &own, "services.*")
}
