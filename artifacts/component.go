package artifacts

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// ComponentOptions say what a Compose component is called.
type ComponentOptions struct {
	Name        string    // component name, lower-case letters, digits, dashes; names the top-level directory too
	Version     string    // the tag: SemVer, "_" for "+"
	Lock        *Lock     // nil: the project's own longshore.lock, if it has one
	Created     time.Time // zero: left out
	Annotations map[string]string
}

// notPacked are names that are never part of a project.
var notPacked = []string{".git", ".DS_Store"}

// PackComponent makes a Compose component of the directory that holds compose.yaml: everything in it but .git and
// .DS_Store. Same files, same options, same digest.
func PackComponent(fsys fs.FS, o ComponentOptions) (*Artifact, error) {
	if !margo.ValidComponentName(o.Name) {
		return nil, fmt.Errorf("pack component: %q is not a component name (lower-case letters, digits, dashes): %w", o.Name, fault.ErrInvalid)
	}
	if !margo.ValidRevision(o.Version) {
		return nil, fault.WithHint(fmt.Errorf("pack component %s: %q is not a version: %w", o.Name, o.Version, fault.ErrInvalid),
			`use SemVer without a leading v, "_" in place of "+": 1.4.0, 1.4.0-rc.1`)
	}
	entries, err := tree(fsys)
	if err != nil {
		return nil, fmt.Errorf("pack component %s: %w", o.Name, err)
	}
	if o.Lock != nil {
		data, err := o.Lock.Encode()
		if err != nil {
			return nil, fmt.Errorf("pack component %s: %w", o.Name, err)
		}
		entries = slices.DeleteFunc(entries, func(e entry) bool { return e.name == LockFile })
		entries = append(entries, entry{name: LockFile, data: data})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for i := range entries {
		entries[i].name = o.Name + "/" + entries[i].name
	}
	data, err := writeTarball(append([]entry{{name: o.Name, dir: true}}, entries...), nil)
	if err != nil {
		return nil, fmt.Errorf("pack component %s: %w", o.Name, err)
	}
	if _, err := ReadArchive(data); err != nil { // what devices would refuse is not pushed
		return nil, fmt.Errorf("pack component %s: %w", o.Name, err)
	}
	archive := layer(TypeComposeArchive, o.Name+".tar.gz", data)
	own := map[string]string{AnnotationComponentType: "compose", AnnotationComponentVersion: o.Version}
	maps.Copy(archive.Descriptor.Annotations, own)
	own[ocispec.AnnotationTitle], own[ocispec.AnnotationVersion] = o.Name, o.Version
	return pack(TypeComponent, []Blob{archive.inline(maxInlineArchive)}, o.Created, own, o.Annotations)
}

// tree reads everything below the root of fsys.
func tree(fsys fs.FS) ([]entry, error) {
	var entries []entry
	size := int64(0)
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == "." {
			return nil
		}
		if slices.Contains(notPacked, path.Base(name)) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if len(entries) >= MaxEntries {
			return fmt.Errorf("more than %d files: %w", MaxEntries, fault.ErrTooLarge)
		}
		e, err := file(fsys, name, d, MaxUnpacked-size)
		if err != nil {
			return err
		}
		size += int64(len(e.data))
		entries = append(entries, e)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", fault.ErrNotFound, err)
	}
	return entries, err
}

func file(fsys fs.FS, name string, d fs.DirEntry, limit int64) (entry, error) {
	switch d.Type() {
	case fs.ModeDir:
		return entry{name: name, dir: true}, nil
	case fs.ModeSymlink:
		target, err := fs.ReadLink(fsys, name)
		return entry{name: name, link: target}, err
	case 0:
	default:
		return entry{}, fmt.Errorf("%s is neither file nor directory nor link: %w", name, fault.ErrInvalid)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return entry{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return entry{}, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return entry{}, err
	}
	if int64(len(data)) > limit {
		return entry{}, fmt.Errorf("more than %d bytes of files: %w", MaxUnpacked, fault.ErrTooLarge)
	}
	return entry{name: name, data: data, exec: info.Mode()&0o111 != 0}, nil
}

// ComponentIndex is what the manifest of a Compose component says.
type ComponentIndex struct {
	Version string             // "" when the publisher left it out
	Archive ocispec.Descriptor // the Compose Archive
}

// OpenComponent checks the manifest of a Compose component. Type and version are looked for on the layer, where the
// specification wants them, and on the manifest, where its own example puts them.
func OpenComponent(manifest []byte) (_ *ComponentIndex, err error) {
	defer during(&err, "open component")
	i, err := open(manifest, TypeComponent)
	if err != nil {
		return nil, err
	}
	if len(i.layers) != 1 || i.layers[0].MediaType != TypeComposeArchive {
		return nil, fmt.Errorf("must have exactly one layer, of type %s: %w", TypeComposeArchive, fault.ErrUnsupported)
	}
	l := i.layers[0]
	if err := bounded(l, MaxArchive); err != nil {
		return nil, err
	}
	kind, err := either(l.Annotations, i.annotations, AnnotationComponentType)
	if err != nil {
		return nil, err
	}
	if kind != "" && kind != "compose" {
		return nil, fmt.Errorf("type %q, want compose: %w", kind, fault.ErrUnsupported)
	}
	version, err := either(l.Annotations, i.annotations, AnnotationComponentVersion)
	if err != nil {
		return nil, err
	}
	return &ComponentIndex{Version: version, Archive: l}, nil
}

// Read fetches the archive, checks it and reads it.
func (x *ComponentIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (*Archive, error) {
	data, err := fetch(blob, x.Archive)
	if err != nil {
		return nil, err
	}
	return ReadArchive(data)
}

func either(a, b map[string]string, key string) (string, error) {
	if a[key] != "" && b[key] != "" && a[key] != b[key] {
		return "", fmt.Errorf("annotation %s is %q on the layer and %q on the manifest: %w", key, a[key], b[key], fault.ErrInvalid)
	}
	return cmp.Or(a[key], b[key]), nil
}
