package compose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxPacked bounds the files that a project names.
const maxPacked = 64 << 20 // bytes

// Packed is a Compose project as a device takes it: one file, and what it names.
type Packed struct {
	Compose []byte         // of compose.yaml: the author's own bytes where nothing had to be resolved
	Files   fs.FS          // compose.yaml and exactly the files that it names
	Notices []strict.Fault // what a device honours in another way than the author may expect

	file string
	root *node
}

// Pack reads the project in a directory, resolves extends and include, checks it as [Check] does, and takes along what
// it names. Nothing outside fsys is read; what leaves it is refused with its position. Variables are kept for the
// device. dir names the directory in messages; names are the Compose files that are merged, each over the one before; none:
// those of [ProjectFiles]. The same files give the same bytes.
func Pack(ctx context.Context, dir string, fsys fs.FS, names ...string) (*Packed, error) {
	found := len(names) == 0
	if found {
		if names = ProjectFiles(fsys); names == nil {
			names = []string{File} // not there: reading it says so
		}
	}
	f := &flattening{document: &document{file: path.Join(dir, names[0])}, fsys: fsys, dir: dir}
	root := f.project(names)
	if err := f.err(); err != nil {
		return nil, err
	}
	if found {
		f.tellChoice(names)
	}
	p := &Packed{file: f.file, root: root}
	if p.Compose = f.first; f.changed {
		var err error
		if p.Compose, err = encode(root); err != nil {
			return nil, fmt.Errorf("flatten %s: %w", f.file, err)
		}
	}
	files := f.references(root)
	if err := f.err(); err != nil {
		return nil, err
	}
	content := contents{data: map[string][]byte{File: p.Compose}, exec: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := content.add(fsys, name, files[name]); err != nil {
			return nil, fmt.Errorf("read %s: %w", path.Join(dir, name), err)
		}
	}
	p.Files = artifacts.Files(content.data, content.executable()...)
	d := &document{file: f.file, root: copyOf(root, ""), env: environment(nil, checked), notices: f.notices, cut: map[string]bool{}}
	var err error
	if p.Notices, err = d.check(ctx, p.Files); err != nil { // p.Files and nothing else: a device has no more
		return nil, err
	}
	return p, nil
}

// docker compose looks for these names, in this order; it takes the first project file and the first override that it finds.
var (
	projectFiles  = []string{File, "compose.yml", "docker-compose.yml", "docker-compose.yaml"}
	overrideFiles = []string{"compose.override.yml", "compose.override.yaml", "docker-compose.override.yml", "docker-compose.override.yaml"}
)

// ProjectFiles lists the Compose files of a directory that docker compose reads when none is named: the project file, and the
// override beside it if there is one. It is nil when there is no project file.
func ProjectFiles(dir fs.FS) []string {
	project := existing(dir, projectFiles)
	if len(project) == 0 {
		return nil
	}
	out := project[:1]
	if overrides := existing(dir, overrideFiles); len(overrides) > 0 {
		out = append(out[:1:1], overrides[0])
	}
	return out
}

func existing(dir fs.FS, names []string) []string {
	var out []string
	for _, name := range names {
		if _, err := fs.Stat(dir, name); !errors.Is(err, fs.ErrNotExist) { // any other error is told when it is read
			out = append(out, name)
		}
	}
	return out
}

// tellChoice gives notice of the override that was merged without being named, and of project files and overrides that were
// not read.
func (f *flattening) tellChoice(names []string) {
	for i, all := range [][]string{projectFiles, overrideFiles} {
		for _, name := range existing(f.fsys, all) {
			message := ""
			switch {
			case !slices.Contains(names, name):
				message = "not read: " + names[i] + " is, as docker compose chooses"
			case i > 0:
				message = "merged over " + names[0] + ", as docker compose does; component push --file " + names[0] + " leaves it out"
			default:
				continue
			}
			f.notices = append(f.notices, strict.Fault{File: path.Join(f.dir, name), Line: 1, Column: 1, Message: message})
		}
	}
}

// Images lists the image references of the project as they are written once env is filled in, in order of appearance,
// each once. A reference that needs a variable that env lacks is a fault: what is released names its images.
func (p *Packed) Images(env map[string]string) ([]string, error) {
	return images(&document{file: p.file, root: copyOf(p.root, ""), env: env})
}

// fileKey is a place in the file that names another file.
type fileKey struct {
	at       *node
	name     string
	optional bool
	prefix   string // what stands before the name in the same text
	suffix   string // and after it
	bound    bool   // mounted: may be a directory, and may be run
	written  bool   // mounted without ro: packed where there are files, refused by the check where there are none
}

// fileKeys are all places that name a file of the archive.
func fileKeys(root *node) []fileKey {
	var out []fileKey
	add := func(k fileKey) {
		if k.at != nil && k.at.kind == scalarKind && k.name != "" {
			out = append(out, k)
		}
	}
	each := func(n *node, visit func(*node)) {
		switch {
		case n == nil:
		case n.kind == listKind:
			for _, item := range n.items {
				visit(item)
			}
		default:
			visit(n)
		}
	}
	container := func(c *node) {
		each(c.get("env_file"), func(n *node) {
			if n.kind == mapKind {
				add(fileKey{at: n.get("path"), name: n.get("path").str(), optional: n.get("required").str() == "false"})
				return
			}
			add(fileKey{at: n, name: n.str()})
		})
		for _, k := range boundKeys(c) {
			add(k)
		}
		each(c.get("label_file"), func(n *node) { add(fileKey{at: n, name: n.str()}) })
		each(c.get("security_opt"), func(n *node) {
			for _, prefix := range []string{"seccomp=", "seccomp:"} {
				if name, ok := strings.CutPrefix(n.str(), prefix); ok && name != "unconfined" && name != "builtin" {
					add(fileKey{at: n, name: name, prefix: prefix})
				}
			}
		})
	}
	fields(root.get("services"), func(_ string, s *node) {
		container(s)
		each(s.get("pre_start"), container)
	})
	for _, section := range []string{"configs", "secrets"} {
		fields(root.get(section), func(_ string, c *node) { add(fileKey{at: c.get("file"), name: c.get("file").str()}) })
	}
	return out
}

func fields(n *node, visit func(name string, c *node)) {
	if n == nil || n.kind != mapKind {
		return
	}
	for _, k := range slices.Clone(n.keys) {
		visit(k, n.fields[k])
	}
}

// references are the files that a project names, and whether it may run them; a name that leaves the directory is a
// fault, one that is not there is left to the check.
func (f *flattening) references(root *node) map[string]bool {
	out := map[string]bool{}
	for _, k := range fileKeys(root) {
		if k.written && !f.packable(k.name) {
			continue
		}
		if k.bound && path.Clean(k.name) == "." {
			f.fault(k.at, wholeHint, "the whole directory is mounted")
			continue
		}
		if !f.inside(k.at, k.name) {
			continue
		}
		name := path.Clean(k.name)
		info, err := fs.Stat(f.fsys, name)
		if err != nil {
			continue
		}
		if !info.Mode().IsRegular() && !k.bound {
			f.fault(k.at, "", "%s is no file", clipped(name))
			continue
		}
		names, _, err := filesBelow(f.fsys, name)
		if err != nil {
			f.fault(k.at, "", "%v", err)
			continue
		}
		for _, name := range names {
			if name != File {
				out[name] = out[name] || k.bound
			}
		}
	}
	return out
}

// packable reports whether there are files at a path within the directory.
func (f *flattening) packable(name string) bool {
	clean := path.Clean(name)
	if path.IsAbs(name) || !fs.ValidPath(clean) || clean == "." {
		return false
	}
	names, _, err := filesBelow(f.fsys, clean)
	return err == nil && len(names) > 0
}

// inside reports whether a path can be packed: written out, and within the directory.
func (f *flattening) inside(n *node, name string) bool {
	switch clean := path.Clean(name); {
	case strings.Contains(strings.ReplaceAll(name, "$$", ""), "$"):
		f.fault(n, "write the path out: what is packed must be known", "%s holds a variable", clipped(name))
	case path.IsAbs(name) || !fs.ValidPath(clean) || clean == ".":
		f.fault(n, "put the file into the directory that is packed", "%s is outside the directory", clipped(name))
	default:
		return true
	}
	return false
}
