package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/site/volume"
)

// ExportFile, beside the OCI layout of an export, describes it. It is written last: an export without it is incomplete.
const ExportFile = "longshore-export.json"

const (
	documentVersion = 1
	maxExport       = 1 << 20
	maxTorn         = 64 << 20
)

// Inventory lists the content for a site's devices that the site has.
type Inventory struct {
	Version int    `json:"version"` // 1
	States  string `json:"states"`  // repository of the devices' states, "host/path", by its name at the source
	Site    string `json:"site,omitempty"`
	Taken   string `json:"taken,omitempty"` // when, RFC 3339 in UTC
	// Content lists manifests and blobs, also of what refers to others, sorted, by the name of their repository at the source:
	// registries separate the content of repositories.
	Content map[string][]digest.Digest `json:"content"`
}

// Take lists the content of a site for a closure of the site itself: from opens the site's repositories by their
// names at the source.
func Take(ctx context.Context, from Source, states string, c *Closure) (*Inventory, error) {
	var mu sync.Mutex
	i := &Inventory{Version: documentVersion, States: states, Content: map[string][]digest.Digest{}}
	names := map[string]uint64{} // generations that the devices' tags name
	for _, n := range c.Needs {
		if n.current != "" {
			names[n.current] = n.number
		}
	}
	err := each(ctx, 8, c.Needs, func(ctx context.Context, n *Need) error {
		repo, err := from.OpenName(ctx, n.Repository)
		if err != nil {
			return err
		}
		content, err := repo.Everything(ctx, n.Digest)
		if errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrTemporary) {
			return nil // it is exported again
		}
		if err != nil {
			return err
		}
		// A state that came without its device's tag, as before the last step of an import, is exported again, to set the tag.
		ahead := n.Kind == artifacts.KindState && slices.ContainsFunc(n.Devices, func(device string) bool { return n.number > names[device] })
		for _, d := range content {
			if ahead && d.Digest == n.Digest {
				continue
			}
			there, err := repo.Exists(ctx, d)
			if err != nil {
				return err
			}
			if there {
				mu.Lock()
				i.Content[n.Repository] = append(i.Content[n.Repository], d.Digest)
				mu.Unlock()
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for name, all := range i.Content {
		slices.Sort(all)
		i.Content[name] = slices.Compact(all)
	}
	return i, nil
}

// MaxInventory bounds an inventory in bytes: enough for a million digests.
const MaxInventory = 64 << 20

// ParseInventory reads an inventory of Take. states is the expected repository: an inventory for another one is
// fault.ErrConflict.
func ParseInventory(file string, data []byte, states string) (*Inventory, error) {
	i := &Inventory{}
	if err := json.Unmarshal(data, i); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, fault.ErrInvalid, err)
	}
	for name, all := range i.Content {
		for _, d := range all {
			if err := d.Validate(); err != nil {
				return nil, fmt.Errorf("%s: %s: %q: %w: %w", file, name, d, fault.ErrInvalid, err)
			}
		}
	}
	switch {
	case i.Version != documentVersion:
		return nil, fmt.Errorf("%s: version %d: %w: this program knows version %d", file, i.Version, fault.ErrUnsupported, documentVersion)
	case i.States != states:
		return nil, fmt.Errorf("%s is the inventory for %s, not for %s: %w", file, i.States, states, fault.ErrConflict)
	}
	return i, nil
}

// Parts is the site's content in each repository, without the artifacts of a closure, which are exported or left out as a whole. A nil
// inventory has none.
func (i *Inventory) Parts(c *Closure) map[string]map[digest.Digest]bool {
	out := i.sets()
	for _, n := range c.Needs {
		delete(out[n.Repository], n.Digest)
	}
	return out
}

func (i *Inventory) sets() map[string]map[digest.Digest]bool {
	out := map[string]map[digest.Digest]bool{}
	if i == nil {
		return out
	}
	for name, all := range i.Content {
		out[name] = make(map[digest.Digest]bool, len(all))
		for _, d := range all {
			out[name][d] = true
		}
	}
	return out
}

// Export describes the content of an OCI layout.
type Export struct {
	Version    int      `json:"version"` // 1
	States     string   `json:"states"`  // repository, "host/path"
	Trust      []string `json:"trust,omitempty"`
	Platforms  []string `json:"platforms,omitempty"`  // of images; empty: all
	Difference bool     `json:"difference,omitempty"` // it lacks the content of the site's inventory
	Site       string   `json:"site,omitempty"`       // of that inventory
	Taken      string   `json:"taken,omitempty"`      // when that was, RFC 3339 in UTC
	// History is how many generations before the current one of a device the export has; media may have more of them, of earlier exports.
	// nil: an earlier version of this program did not write it.
	History *int `json:"history,omitempty"`

	digest digest.Digest // of the document that was read
}

// Write completes an export in a folder: first all files are synced to the disk, then the document is written.
func (e Export) Write(dir string) error {
	for _, name := range []string{ocispec.ImageBlobsDir, ocispec.ImageLayoutFile, ocispec.ImageIndexFile} {
		if err := syncAll(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return e.write(dir)
}

func (e Export) write(dir string) error {
	e.Version = documentVersion
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return volume.WriteFile(filepath.Join(dir, ExportFile), func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
}

// syncAll makes a file durable, or every file below a folder with its name.
func syncAll(dir string) error {
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			if err == nil {
				err = volume.SyncFolder(name)
			}
			return err
		}
		if !e.Type().IsRegular() {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

// layoutFolder, in the folder of an export in volumes, is the layout until they are written.
const layoutFolder = "layout.part"

// unfinished, in a layout, are blobs that are being written: at the end of an export only those that are no longer needed.
const unfinished = "ingest"

// Draft is an export that is being written.
type Draft struct {
	Layout string // folder of the layout

	dir     string
	volumes bool
	size    int64
}

// Form says what an export is.
type Form struct {
	States  string   // repository, "host/path"
	Volumes bool     // tar files
	Size    int64    // bytes of each at most; 0: one of any size
	Check   Checking //  nil: the blobs that are there are not read
}

// Checking is told how many of the blobs on media have been read, of all, and their bytes. Those that are damaged are removed, so that the
// export writes them again.
type Checking func(done, all int, bytes int64)

// Begin begins an export into the folder dir, or continues it. An existing export is incomplete from then on. fault.ErrConflict: the folder
// has an export of another repository, or volumes, which [OpenMedia] would read in place of this one.
func Begin(ctx context.Context, dir string, f Form) (*Draft, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fault.WithHint(fmt.Errorf("%s is a file: %w", dir, fault.ErrInvalid), "name a folder, which may be new")
	}
	d := &Draft{Layout: dir, dir: dir, volumes: f.Volumes, size: f.Size}
	if f.Volumes {
		d.Layout = filepath.Join(dir, layoutFolder)
	}
	if err := alone(dir, f); err != nil {
		return nil, err
	}
	if err := prepare(ctx, d.Layout, f.Check); err != nil {
		return nil, err
	}
	for _, name := range []string{filepath.Join(d.Layout, ExportFile), filepath.Join(dir, volume.SumsFile)} {
		if err := os.RemoveAll(name); err != nil {
			return nil, err
		}
	}
	return d, os.MkdirAll(d.Layout, 0o755)
}

// alone rejects a folder with an export of another repository, or one that an import would read in place of the new one.
func alone(dir string, f Form) error {
	volumes, err := volumesIn(dir)
	if err != nil {
		return err
	}
	if len(volumes) > 0 && !f.Volumes {
		err := fmt.Errorf("%s is of an export in volumes, which an import would read in place of this one: %w", volumes[0], fault.ErrConflict)
		return fault.WithHint(err, "remove the volumes, name another folder, or export with --tar or --volume-size, which replaces them")
	}
	var e *Export
	if len(volumes) > 0 {
		var data []byte
		if data, err = volume.Document(volumes[0], ExportFile); err == nil {
			e, err = parseExport(volumes[0], data)
		}
	} else {
		e, err = ReadExport(dir)
	}
	if err == nil && e != nil && e.States != f.States { // what cannot be read is no complete export
		err := fmt.Errorf("%s has an export of %s: %w", dir, e.States, fault.ErrConflict)
		return fault.WithHint(err, "name another folder, which may be on the same media: an import reads one repository of states")
	}
	return nil
}

// prepare makes a folder a layout if it has nothing but files of exports and reports, and replaces documents of a layout that were cut off
// while they were written: the export writes their content again. What else is wrong with the folder, the first write reports.
func prepare(ctx context.Context, layout string, check Checking) error {
	file := filepath.Join(layout, ocispec.ImageLayoutFile)
	if _, err := os.Lstat(file); torn(file) || errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(layout)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !ours(e.Name()) }) {
			return err
		}
		if err := encode(file, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}); err != nil {
			return err
		}
	}
	index := filepath.Join(layout, ocispec.ImageIndexFile) // of a layout: in another folder it may be of another program
	if torn(index) {
		if err := encode(index, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{}}); err != nil {
			return err
		}
	}
	if check == nil {
		return nil
	}
	return removeDamaged(ctx, layout, check)
}

func encode(file string, v any) error {
	return volume.WriteFile(file, func(w io.Writer) error { return json.NewEncoder(w).Encode(v) })
}

// ours reports whether a name in the folder of an export is one that our commands or operating systems write there.
func ours(name string) bool {
	names := []string{
		ReportsDir, ExportFile, ocispec.ImageLayoutFile, ocispec.ImageIndexFile, ocispec.ImageBlobsDir, unfinished, layoutFolder,
	}
	return registry.SystemEntry(name) || slices.Contains(names, name) || strings.HasPrefix(name, ReceiptFile)
}

// torn reports whether a document is no JSON.
func torn(file string) bool {
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxTorn {
		return false
	}
	data, err := os.ReadFile(file)
	return err == nil && !json.Valid(data)
}

// removeDamaged removes the blobs of a layout that do not match their digest.
func removeDamaged(ctx context.Context, layout string, tell Checking) error {
	if info, err := os.Lstat(filepath.Join(layout, ocispec.ImageBlobsDir)); err != nil || !info.IsDir() {
		return nil //nolint:nilerr // there is none, or a link, which no writer follows
	}
	damaged, err := volume.Damaged(ctx, os.DirFS(layout), tell)
	for _, name := range damaged {
		err = errors.Join(err, os.Remove(filepath.Join(layout, name)))
	}
	return err
}

// Written describes a complete export.
type Written struct {
	Volumes []string // names, in their order; nil: it is a folder
	Bytes   int64
}

// End completes the export.
func (d *Draft) End(ctx context.Context, e Export) (*Written, error) {
	out := &Written{}
	if !d.volumes {
		if err := os.RemoveAll(filepath.Join(d.dir, unfinished)); err != nil {
			return nil, err
		}
		if err := e.Write(d.dir); err != nil {
			return nil, err
		}
		for _, name := range []string{ocispec.ImageBlobsDir, ocispec.ImageLayoutFile, ocispec.ImageIndexFile, ExportFile} {
			if err := out.add(filepath.Join(d.dir, name)); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	if err := e.write(d.Layout); err != nil {
		return nil, err
	}
	documents := []string{ExportFile, ocispec.ImageLayoutFile, ocispec.ImageIndexFile}
	var err error
	if out.Volumes, err = volume.Write(ctx, os.DirFS(d.Layout), documents, d.dir, d.size); err != nil {
		return nil, err
	}
	for _, name := range out.Volumes {
		if err := out.add(name); err != nil {
			return nil, err
		}
	}
	return out, os.RemoveAll(d.Layout)
}

// add counts a file, or the files below a folder.
func (w *Written) add(name string) error {
	return filepath.WalkDir(name, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			w.Bytes += info.Size()
		}
		return err
	})
}

// Media is an export that is opened for reading. Close it.
type Media struct {
	*Export
	Path  string // of the layout, or of the first volume
	Files fs.FS  // of an export in volumes; nil: it is a folder

	set *volume.Set
}

// OpenMedia opens an export: a folder with a layout, folders with volumes, or volumes themselves. Volumes are read and checked
// first; errors are those of [volume.Open]. fault.ErrNotFound if there is no export, or an incomplete one.
func OpenMedia(ctx context.Context, paths []string) (*Media, error) {
	var names []string
	for _, name := range paths {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			names = append(names, name)
			continue
		}
		inside, err := volumesIn(name)
		if err != nil {
			return nil, err
		}
		if len(paths) == 1 && len(inside) == 0 {
			e, err := ReadExport(name)
			return &Media{Export: e, Path: name}, err
		}
		if len(inside) == 0 {
			return nil, fmt.Errorf("%s: no volume is there: %w", name, fault.ErrNotFound)
		}
		names = append(names, inside...)
	}
	set, err := volume.Open(ctx, names)
	if err != nil {
		return nil, err
	}
	e, err := readExport(set, set.Names[0])
	if err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return &Media{Export: e, Path: set.Names[0], Files: set, set: set}, nil
}

// There returns an error if the media were removed: their folder may still exist, empty.
func (m *Media) There() error {
	name := m.Path
	if m.set == nil {
		name = filepath.Join(name, ExportFile)
	}
	_, err := os.Stat(name)
	return err
}

// volumesIn lists the volumes in a folder.
func volumesIn(dir string) ([]string, error) {
	inside, err := filepath.Glob(filepath.Join(escaped(dir), "*.tar"))
	return slices.DeleteFunc(inside, func(s string) bool { return !volume.Is(filepath.Base(s)) }), err
}

// escaped is a path without special characters for [filepath.Glob].
func escaped(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

// Close closes the volumes.
func (m *Media) Close() error {
	if m.set == nil {
		return nil
	}
	return m.set.Close()
}

// ReadExport reads the document of Write. fault.ErrNotFound if there is no export, or an incomplete one.
func ReadExport(dir string) (*Export, error) { return readExport(os.DirFS(dir), dir) }

func readExport(files fs.FS, dir string) (*Export, error) {
	var data []byte
	info, err := fs.Stat(files, ExportFile)
	if err == nil {
		err = bounded.Regular(ExportFile, info)
	}
	if err == nil {
		data, err = bounded.FileIn(files, ExportFile, maxExport)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%s has no %s: it is no export, or one that was not finished: %w", dir, ExportFile, fault.ErrNotFound),
			"run the same longshore export again: it goes on where it stopped")
	}
	file := filepath.Join(dir, ExportFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return parseExport(file, data)
}

func parseExport(file string, data []byte) (*Export, error) {
	e := &Export{digest: digest.FromBytes(data)}
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, fault.ErrInvalid, err)
	}
	if e.Version != documentVersion {
		return nil, fmt.Errorf("%s: version %d: %w: this program knows version %d", file, e.Version, fault.ErrUnsupported, documentVersion)
	}
	if err := artifacts.ValidPlatforms(e.Platforms); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return e, nil
}

// Mapped is a Source that opens the site's repositories by their names at the source.
type Mapped func(ctx context.Context, repository string) (*registry.Repository, error)

// OpenName implements [Source].
func (m Mapped) OpenName(ctx context.Context, name string) (*registry.Repository, error) {
	return m(ctx, name)
}
