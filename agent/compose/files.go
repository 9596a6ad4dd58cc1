package compose

import (
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// Limits on configs and secrets, which are kept in memory on the device.
const (
	maxFileContent  = 1 << 20 // bytes of one
	maxProjectFiles = 8 << 20 // bytes of all that services mount
)

// Hints for files that are missing or too large.
const (
	inArchive  = "files are read from the archive: put it beside compose.yaml before the component is packed"
	largeFiles = "put large files into an image, or mount a directory of the device by its absolute path"
)

// read reads a file of the archive. It succeeds without data if there is no archive. Errors never contain the file's content: it may be
// a secret.
func (t *translation) read(n *composefile.Node, name string, most int64, what string) ([]byte, bool) {
	if t.files == nil {
		return nil, true
	}
	data, ok, err := t.open(n, name, most, what)
	if ok && err != nil {
		return nil, t.refuse(n, inArchive, "%q is not in the archive", composefile.Clip(name))
	}
	return data, ok
}

// open is read for a file that may be missing: that error is returned.
func (t *translation) open(n *composefile.Node, name string, most int64, what string) (data []byte, ok bool, missing error) {
	clean := path.Clean(name)
	if path.IsAbs(name) || !fs.ValidPath(clean) || clean == "." {
		t.Fault(n, what+" is read from the archive", "%q is not in the archive", composefile.Clip(name))
		return nil, false, nil
	}
	f, err := t.files.Open(clean)
	if err != nil {
		return nil, true, err
	}
	defer f.Close()
	data, err = io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		t.Fault(n, "", "read %s: %v", clean, err)
		return nil, false, nil
	case int64(len(data)) > most:
		t.Fault(n, largeFiles, "%s is larger than %d bytes", clean, most)
		return nil, false, nil
	}
	return data, true, nil
}

// serviceFiles are a service's configs and secrets. One that is mounted twice is two files.
func (t *translation) serviceFiles(n *composefile.Node) []workload.File {
	var out []workload.File
	for _, section := range []string{"configs", "secrets"} {
		for _, item := range t.List(n.Get(section), composefile.MaxList) {
			if f, ok := t.serviceFile(item, section); ok {
				out = append(out, f)
			}
		}
	}
	return out
}

func (t *translation) serviceFile(n *composefile.Node, section string) (workload.File, bool) {
	f := workload.File{Secret: section == "secrets"}
	if n.Kind == composefile.Map {
		f.Name = t.Text(n.Get("source"))
	} else {
		f.Name = t.Text(n)
	}
	if f.Name == "" {
		return f, t.refuse(n, "", "source is missing")
	}
	declared := t.root.Get(section, f.Name)
	if declared == nil {
		return f, t.refuse(n, "name it under \""+section+":\" of the file", "%s %q is not defined", strings.TrimSuffix(section, "s"), composefile.Clip(f.Name))
	}
	f.Target = t.Text(n.Get("target"))
	switch base := map[bool]string{true: "/run/secrets", false: "/"}[f.Secret]; {
	case f.Target == "":
		f.Target = path.Join(base, f.Name)
	case !path.IsAbs(f.Target):
		f.Target = path.Join(base, f.Target)
	default:
		f.Target = path.Clean(f.Target)
	}
	if f.Target == "/" || f.Target == "/run/secrets" {
		return f, t.refuse(n.Get("target"), "", "%q is no path of a file", composefile.Clip(n.Get("target").Text()))
	}
	if !t.checkTarget(n, f.Target, true, "") {
		return f, false
	}
	f.UID = uint32(t.integer(n.Get("uid"), 0, math.MaxUint32-1))
	f.GID = uint32(t.integer(n.Get("gid"), 0, math.MaxUint32-1))
	f.Mode = t.octal(n.Get("mode"), 0o7777)
	var ok bool
	f.Content, ok = t.content(declared, section)
	if ok {
		f.Digest = digest.FromBytes(f.Content)
	}
	return f, ok
}

// content is the content of a config or secret, read once.
func (t *translation) content(n *composefile.Node, section string) ([]byte, bool) {
	if c, ok := t.contents[n]; ok {
		return c, c != nil
	}
	c, ok := t.source(n, section)
	if t.contents == nil {
		t.contents = map[*composefile.Node][]byte{}
	}
	if c == nil && ok {
		c = []byte{}
	}
	t.contents[n] = c
	t.checkMemory(n, len(c))
	return c, ok
}

// checkMemory checks the size of all files that a project keeps in memory; added is the size of the newest.
func (t *translation) checkMemory(n *composefile.Node, added int) {
	total := 0
	for c := range maps.Values(t.contents) {
		total += len(c)
	}
	for c := range maps.Values(t.packed) {
		total += len(c)
	}
	if total > maxProjectFiles && total-added <= maxProjectFiles {
		t.Fault(n, largeFiles, "configs, secrets and mounted files are larger than %d bytes", maxProjectFiles)
	}
}

// source reads one of file, environment and content.
func (t *translation) source(n *composefile.Node, section string) ([]byte, bool) {
	var said []string
	for _, k := range []string{"file", "environment", "content"} {
		if !n.Get(k).IsNull() {
			said = append(said, k)
		}
	}
	switch {
	case len(said) == 0 && (t.isOmitted(n.Path) || slices.ContainsFunc([]string{"file", "environment", "content"}, func(k string) bool { return t.omitted[n.Path+"."+k] })):
		return nil, true
	case len(said) == 0:
		return nil, t.refuse(n, "", "one of file, environment%s must be there", map[string]string{"configs": " and content"}[section])
	case len(said) > 1:
		return nil, t.refuse(n.Get(said[1]), "", "%s is there beside it", said[0])
	}
	at := n.Get(said[0])
	text := t.Text(at)
	switch said[0] {
	case "content":
		return []byte(text), true
	case "file":
		return t.read(at, text, maxFileContent, "the file")
	}
	v, ok := t.env[text]
	switch {
	case ok:
		return []byte(v), true
	case t.publisher: // the values of a device are unknown
		return nil, true
	case text == "":
		t.Fault(at, "", "must be the name of a parameter")
	default:
		t.Fault(at, "set it with a parameter of the deployment whose pointer is "+composefile.Clip(text), "%s has no value", composefile.Clip(text))
	}
	return nil, false
}

// fileLabels merges a service's labels over those of its label files.
func (t *translation) fileLabels(n *composefile.Node, own map[string]string) map[string]string {
	list := n.Get("label_file")
	if list.IsNull() || t.files == nil {
		return own
	}
	out := map[string]string{}
	for _, item := range t.Elements(list) {
		data, ok := t.read(item, item.Text(), composefile.MaxEnvFile, "a label file")
		if !ok {
			continue
		}
		if err := composefile.ParseEnv(item.Text(), data, out, nil, ""); err != nil {
			t.Fault(item, "", "%v", err)
		}
	}
	maps.Copy(out, own)
	return out
}
