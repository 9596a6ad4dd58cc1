package composefile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxPacked bounds the files that a project names.
const maxPacked = 64 << 20 // bytes

// Packed is a Compose project as a device takes it: one file, and the files that it names.
type Packed struct {
	*Project        // its notices are those of merging: the device's own are found by agent/compose
	Compose  []byte // of compose.yaml: the author's own bytes where nothing had to be resolved
	Files    fs.FS  // compose.yaml and exactly the files that it names
}

// Pack reads the project in a directory, resolves extends and include, and adds the files that it names. Nothing outside fsys is
// read; a path that leaves it is refused with its position. Variables are kept for the device. dir names the directory in errors;
// names are the Compose files that are merged, each over the one before; none: those of [ProjectFiles]. The same files give the
// same bytes.
func Pack(dir string, fsys fs.FS, names ...string) (*Packed, error) {
	found := len(names) == 0
	if found {
		if names = ProjectFiles(fsys); names == nil {
			names = []string{Name} // reading it gives the error
		}
	}
	f := &flattening{Report: &Report{File: path.Join(dir, names[0])}, fsys: fsys, dir: dir}
	root := f.project(names)
	if err := f.Err(); err != nil {
		return nil, err
	}
	if found {
		f.noteChoice(names)
	}
	p := &Packed{Project: &Project{Report: f.Report, Root: root}, Compose: f.first}
	if f.changed {
		var err error
		if p.Compose, err = encode(root); err != nil {
			return nil, fmt.Errorf("flatten %s: %w", f.File, err)
		}
	}
	files := f.references(root)
	if err := f.Err(); err != nil {
		return nil, err
	}
	content := contents{data: map[string][]byte{Name: p.Compose}, exec: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := content.add(fsys, name, files[name]); err != nil {
			return nil, fmt.Errorf("read %s: %w", path.Join(dir, name), err)
		}
	}
	p.Files = artifacts.Files(content.data, slices.Sorted(maps.Keys(content.exec))...)
	return p, nil
}

// docker compose looks for these names, in this order; it takes the first project file and the first override that it finds.
var (
	projectFiles  = []string{Name, "compose.yml", "docker-compose.yml", "docker-compose.yaml"}
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
		if _, err := fs.Stat(dir, name); !errors.Is(err, fs.ErrNotExist) { // reading it gives any other error
			out = append(out, name)
		}
	}
	return out
}

// noteChoice adds a notice for an override that was merged without being named, and for each project file and override that was
// not read.
func (f *flattening) noteChoice(names []string) {
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
