package composefile

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/format"
	"github.com/compose-spec/compose-go/v2/types"
)

// maxPackedDir bounds the files of one directory that is mounted.
const maxPackedDir = 256

// fileKey is a value that names another file.
type fileKey struct {
	at      *Node
	name    string
	prefix  string // text before the name in the value
	suffix  string // text after it
	bound   bool   // mounted: may be a directory, and may be run
	written bool   // mounted without ro: packed where there are files, refused by the check where there are none
}

// fileKeys are all values that name a file of the archive.
func fileKeys(root *Node) []fileKey {
	var out []fileKey
	add := func(k fileKey) {
		if k.at != nil && k.at.Kind == Scalar && k.name != "" {
			out = append(out, k)
		}
	}
	each := func(n *Node, visit func(*Node)) {
		switch {
		case n == nil:
		case n.Kind == List:
			for _, item := range n.Items {
				visit(item)
			}
		default:
			visit(n)
		}
	}
	container := func(c *Node) {
		each(c.Get("env_file"), func(n *Node) {
			if n.Kind == Map {
				add(fileKey{at: n.Get("path"), name: n.Get("path").Text()})
				return
			}
			add(fileKey{at: n, name: n.Text()})
		})
		for _, k := range boundKeys(c) {
			add(k)
		}
		each(c.Get("label_file"), func(n *Node) { add(fileKey{at: n, name: n.Text()}) })
		each(c.Get("security_opt"), func(n *Node) {
			for _, prefix := range []string{"seccomp=", "seccomp:"} {
				if name, ok := strings.CutPrefix(n.Text(), prefix); ok && name != "unconfined" && name != "builtin" {
					add(fileKey{at: n, name: name, prefix: prefix})
				}
			}
		})
	}
	Each(root.Get("services"), func(_ string, s *Node) {
		container(s)
		each(s.Get("pre_start"), container)
	})
	for _, section := range []string{"configs", "secrets"} {
		Each(root.Get(section), func(_ string, c *Node) { add(fileKey{at: c.Get("file"), name: c.Get("file").Text()}) })
	}
	return out
}

func Each(n *Node, visit func(name string, c *Node)) {
	if n == nil || n.Kind != Map {
		return
	}
	for _, k := range slices.Clone(n.Keys) {
		visit(k, n.Fields[k])
	}
}

// references are the files that a project names, and whether their executable bit matters. A name that leaves the directory is a fault; a
// missing file is found by the check.
func (f *flattening) references(root *Node) map[string]bool {
	out := map[string]bool{}
	for _, k := range fileKeys(root) {
		if k.written && !Packable(f.fsys, k.name) {
			continue
		}
		if k.bound && path.Clean(k.name) == "." {
			f.Fault(k.at, WholeDirectoryHint, "the whole directory is mounted")
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
			f.Fault(k.at, "", "%s is no file", Clip(name))
			continue
		}
		names, _, err := FilesBelow(f.fsys, name)
		if err != nil {
			f.Fault(k.at, "", "%v", err)
			continue
		}
		for _, name := range names {
			if name != Name {
				out[name] = out[name] || k.bound
			}
		}
	}
	return out
}

// Packable reports whether a path is that of a file of the project, or of a directory with files.
func Packable(fsys fs.FS, name string) bool {
	clean := path.Clean(name)
	if !fs.ValidPath(clean) || clean == "." {
		return false
	}
	_, _, err := FilesBelow(fsys, clean)
	return err == nil
}

// inside reports whether a path can be packed: without variables, and within the directory.
func (f *flattening) inside(n *Node, name string) bool {
	switch clean := path.Clean(name); {
	case strings.Contains(strings.ReplaceAll(name, "$$", ""), "$"):
		f.Fault(n, "write the path out: what is packed must be known", "%s holds a variable", Clip(name))
	case path.IsAbs(name) || !fs.ValidPath(clean) || clean == ".":
		f.Fault(n, "put the file into the directory that is packed", "%s is outside the directory", Clip(name))
	default:
		return true
	}
	return false
}

// WholeDirectoryHint is what to do instead of mounting all there is.
const WholeDirectoryHint = "mount a file or a directory that is beside compose.yaml"

// FilesBelow lists a file alone, or all files of a directory in order.
func FilesBelow(fsys fs.FS, name string) (names []string, dir bool, err error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, false, err
	}
	if info.Mode().IsRegular() {
		return []string{name}, false, nil
	}
	if !info.IsDir() {
		return nil, false, fmt.Errorf("%s is neither a file nor a directory", Clip(name))
	}
	err = fs.WalkDir(fsys, name, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := fs.Stat(fsys, at); err != nil || !info.Mode().IsRegular() { // also what a link leads to
			return fmt.Errorf("%s is no file of the directory", Clip(at))
		}
		if names = append(names, at); len(names) > maxPackedDir {
			return fmt.Errorf("%s holds more than %d files: put them into an image", Clip(name), maxPackedDir)
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s holds no file", Clip(name))
	}
	slices.SortFunc(names, strings.Compare)
	return names, true, err
}

// boundKeys are the values by which a service mounts a relative path.
func boundKeys(service *Node) []fileKey {
	var out []fileKey
	list := service.Get("volumes")
	if list.IsNull() || list.Kind != List {
		return nil
	}
	for _, item := range list.Items {
		if item.Kind == Map {
			source := item.Get("source")
			if item.Get("type").Text() == "bind" && relative(source.Text()) {
				out = append(out, fileKey{at: source, name: source.Text(), bound: true, written: !maybeTrue(item.Get("read_only").Text())})
			}
			continue
		}
		text := item.Text()
		v, err := format.ParseVolume(text)
		if err != nil || v.Type != types.VolumeTypeBind || !relative(v.Source) {
			continue
		}
		rest := strings.TrimPrefix(text, v.Source)
		written := !v.ReadOnly && !strings.Contains(strings.TrimPrefix(rest, ":"+v.Target), "$")
		out = append(out, fileKey{at: item, name: v.Source, suffix: rest, bound: true, written: written})
	}
	return out
}

func relative(source string) bool {
	return source != "" && !path.IsAbs(source) && !strings.HasPrefix(source, "~") && !strings.HasPrefix(source, "$")
}

func maybeTrue(s string) bool { return s == "true" || strings.Contains(s, "$") }
