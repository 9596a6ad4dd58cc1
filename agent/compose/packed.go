package compose

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/format"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/bounded"
)

// A directory of the project that a service mounts read-only travels in the archive, and is a set of files in memory on
// the device: what a config is, under the names that its author is used to.

// maxPackedDir bounds the files of one directory that is mounted.
const maxPackedDir = 256

// executable is the mode of a packed file that can be run; others have the default of configs.
const executable = 0o555

// packedMount are the files of a relative path that is mounted read-only.
func (t *translation) packedMount(n *node, m workload.Mount) []workload.File {
	name := path.Clean(m.Source)
	file := workload.File{Name: "./" + name, Target: m.Target}
	if t.files == nil {
		return []workload.File{file}
	}
	if !fs.ValidPath(name) || name == "." {
		t.fault(n, wholeHint, "%q is not in the archive", clipped(m.Source))
		return nil
	}
	names, dir, err := filesBelow(t.files, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.fault(n, inArchive, "%q is not in the archive", clipped(m.Source))
		return nil
	case err != nil:
		t.fault(n, "", "%v", err)
		return nil
	}
	var out []workload.File
	for _, at := range names {
		data, ok := t.packedFile(n, at)
		if !ok {
			return nil
		}
		f := file
		f.Content, f.Digest = data, digest.FromBytes(data)
		if info, err := fs.Stat(t.files, at); err == nil && info.Mode()&0o111 != 0 {
			f.Mode = executable
		}
		if dir {
			f.Name, f.Path = "./"+at, strings.TrimPrefix(at, name+"/")
		}
		out = append(out, f)
	}
	return out
}

// packedFile reads a file of the archive, once.
func (t *translation) packedFile(n *node, name string) ([]byte, bool) {
	if data, ok := t.packed[name]; ok {
		return data, true
	}
	data, ok := t.read(n, name, maxFileContent, "what is mounted")
	if !ok {
		return nil, false
	}
	if t.packed == nil {
		t.packed = map[string][]byte{}
	}
	t.packed[name] = data
	t.held(n, len(data))
	return data, true
}

// wholeHint is what to do instead of mounting all there is.
const wholeHint = "mount a file or a directory that is beside compose.yaml"

// filesBelow lists a file alone, or all files of a directory in order.
func filesBelow(fsys fs.FS, name string) (names []string, dir bool, err error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, false, err
	}
	if info.Mode().IsRegular() {
		return []string{name}, false, nil
	}
	if !info.IsDir() {
		return nil, false, fmt.Errorf("%s is neither a file nor a directory", clipped(name))
	}
	err = fs.WalkDir(fsys, name, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := fs.Stat(fsys, at); err != nil || !info.Mode().IsRegular() { // also what a link leads to
			return fmt.Errorf("%s is no file of the directory", clipped(at))
		}
		if names = append(names, at); len(names) > maxPackedDir {
			return fmt.Errorf("%s holds more than %d files: put them into an image", clipped(name), maxPackedDir)
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s holds no file", clipped(name))
	}
	slices.SortFunc(names, strings.Compare)
	return names, true, err
}

// boundKeys are the places where a service mounts a relative path.
func boundKeys(service *node) []fileKey {
	var out []fileKey
	list := service.get("volumes")
	if list.isNull() || list.kind != listKind {
		return nil
	}
	for _, item := range list.items {
		if item.kind == mapKind {
			source := item.get("source")
			if item.get("type").str() == "bind" && relative(source.str()) {
				out = append(out, fileKey{at: source, name: source.str(), bound: true, written: !mayBeTrue(item.get("read_only").str())})
			}
			continue
		}
		text := item.str()
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

func mayBeTrue(s string) bool { return s == "true" || strings.Contains(s, "$") }

// contents are files of a project by their names, and which of them can be run.
type contents struct {
	data map[string][]byte
	exec map[string]bool
	size int
}

// add reads a file; run: whether it can be executed matters.
func (c *contents) add(fsys fs.FS, name string, run bool) error {
	data, err := bounded.FileIn(fsys, name, int64(maxPacked-c.size))
	if err != nil {
		return err
	}
	c.data[name] = data
	c.size += len(data)
	if info, err := fs.Stat(fsys, name); run && err == nil && info.Mode()&0o111 != 0 {
		c.exec[name] = true
	}
	return nil
}

func (c *contents) executable() []string { return slices.Sorted(maps.Keys(c.exec)) }
