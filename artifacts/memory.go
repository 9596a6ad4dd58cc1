package artifacts

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// memory is a read-only file tree in memory.
type memory map[string]*memoryFile // "." is always there

type memoryFile struct {
	name     string
	data     []byte
	mode     fs.FileMode
	children []fs.DirEntry
}

// newMemory makes a tree of entries, with the directories that they are in.
func newMemory(entries []entry) memory {
	m := memory{".": {name: ".", mode: fs.ModeDir | 0o755}}
	for _, e := range entries {
		f := &memoryFile{name: path.Base(e.name), data: e.data, mode: 0o644}
		switch {
		case e.dir:
			f.mode = fs.ModeDir | 0o755
		case e.exec:
			f.mode = 0o755
		}
		m.put(e.name, f)
	}
	for _, f := range m {
		slices.SortFunc(f.children, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return m
}

// Files is a read-only file tree in memory, of files by their paths. Those that are named as executable can be run.
func Files(files map[string][]byte, executable ...string) fs.FS {
	entries := make([]entry, 0, len(files))
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, entry{name: name, data: files[name], exec: slices.Contains(executable, name)})
	}
	return newMemory(entries)
}

func (m memory) put(name string, f *memoryFile) {
	if m[name] != nil {
		return // a directory that was made for a file in it
	}
	m[name] = f
	dir := path.Dir(name)
	if m[dir] == nil {
		m.put(dir, &memoryFile{name: path.Base(dir), mode: fs.ModeDir | 0o755})
	}
	m[dir].children = append(m[dir].children, fs.FileInfoToDirEntry(f))
}

// Open implements fs.FS.
func (m memory) Open(name string) (fs.File, error) {
	f := m[name]
	switch {
	case !fs.ValidPath(name):
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	case f == nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case f.IsDir():
		return &openDir{memoryFile: f}, nil
	}
	return &openFile{f, bytes.NewReader(f.data)}, nil
}

func (f *memoryFile) Name() string       { return f.name }
func (f *memoryFile) Size() int64        { return int64(len(f.data)) }
func (f *memoryFile) Mode() fs.FileMode  { return f.mode }
func (f *memoryFile) ModTime() time.Time { return time.Unix(0, 0) }
func (f *memoryFile) IsDir() bool        { return f.mode.IsDir() }
func (f *memoryFile) Sys() any           { return nil }

type openFile struct {
	*memoryFile
	*bytes.Reader
}

func (f *openFile) Size() int64                { return f.memoryFile.Size() }
func (f *openFile) Stat() (fs.FileInfo, error) { return f.memoryFile, nil }
func (f *openFile) Close() error               { return nil }

type openDir struct {
	*memoryFile
	at int
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.memoryFile, nil }
func (d *openDir) Close() error               { return nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: fs.ErrInvalid}
}

// ReadDir implements fs.ReadDirFile.
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	rest := d.children[d.at:]
	if n > 0 {
		if len(rest) == 0 {
			return nil, io.EOF
		}
		rest = rest[:min(n, len(rest))]
	}
	d.at += len(rest)
	return slices.Clone(rest), nil
}
