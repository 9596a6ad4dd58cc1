package compose

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// A directory of the project that a service mounts read-only is part of the archive, and files in memory on the device, like configs.

// executable is the mode of an executable packed file; others have the default of configs.
const executable = 0o555

// packedMount are the files of a relative path that is mounted read-only.
func (t *translation) packedMount(n *composefile.Node, m workload.Mount) []workload.File {
	name := path.Clean(m.Source)
	file := workload.File{Name: "./" + name, Target: m.Target}
	if t.files == nil {
		return []workload.File{file}
	}
	if !fs.ValidPath(name) || name == "." {
		t.Fault(n, composefile.WholeDirectoryHint, "%q is not in the archive", composefile.Clip(m.Source))
		return nil
	}
	names, dir, err := composefile.FilesBelow(t.files, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.Fault(n, inArchive, "%q is not in the archive", composefile.Clip(m.Source))
		return nil
	case err != nil:
		t.Fault(n, "", "%v", err)
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
func (t *translation) packedFile(n *composefile.Node, name string) ([]byte, bool) {
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
	t.checkMemory(n, len(data))
	return data, true
}
