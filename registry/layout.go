package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxContent bounds the content that Layout reads: the largest artifact that the device keeps here is an archive of 16 MiB.
const maxContent = 64 << 20

// ingestFolder has unfinished files of oras-go and of this package; leftovers are removed at the next start.
const ingestFolder = "ingest"

// syncsAtOnce is how many files are synced beside each other: a file system writes one record for all of them. Each needs a thread, which
// the process keeps.
const syncsAtOnce = 8

const (
	// reserveFile, in the folder of unfinished writes, reserves disk space for the documents of a state that frees space.
	reserveFile = "reserve"
	// reserveSize is that space in bytes: the documents of a state rarely need a tenth of it.
	reserveSize = 4 << 20
)

// Layout is a device's small content store: an OCI image layout whose content survives a power cut once it is synced.
// It is safe for concurrent use by one process.
//
// oras-go's own store does not sync its files, and its index.json grows with every manifest; here the caller has
// the list of needed content, so index.json stays empty.
//
// A Layout reserves 4 MiB of the disk, as far as they are free, and uses them for content that does not fit otherwise.
type Layout struct {
	place  *layoutPlace
	mu     sync.RWMutex           // Retain excludes Put, because it would remove content that Put has just written
	staged map[digest.Digest]bool // content that is not synced yet: it is in the folder of unfinished writes
}

// OpenLayout creates the folder if it is missing and removes leftovers of interrupted writes.
func OpenLayout(path string) (*Layout, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, newError("open layout", path, onDisk(err))
	}
	l := &Layout{place: &layoutPlace{path: path}, staged: map[digest.Digest]bool{}}
	return l, newError("open layout", path, l.prepare())
}

func (l *Layout) prepare() error {
	root := l.place.path
	if err := removeUnfinished(filepath.Join(root, ingestFolder)); err != nil {
		return onDisk(err)
	}
	for _, folder := range []string{root, filepath.Join(root, ingestFolder), l.blobs()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return onDisk(err)
		}
	}
	files := map[string]any{
		ocispec.ImageLayoutFile: ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion},
		ocispec.ImageIndexFile: ocispec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{},
		},
	}
	for name, content := range files {
		file := filepath.Join(root, name)
		if data, err := os.ReadFile(file); err == nil && json.Valid(data) {
			continue
		}
		data, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := l.write(file, data, true); err != nil {
			return err
		}
	}
	for _, folder := range []string{filepath.Join(root, ocispec.ImageBlobsDir), root, filepath.Dir(root)} {
		if err := syncFolder(folder); err != nil {
			return err
		}
	}
	l.reserve()
	return nil
}

// removeUnfinished removes leftovers of interrupted writes, but not the reserve: another program could take its space before this one
// creates it again.
func removeUnfinished(folder string) error {
	entries, err := os.ReadDir(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil: // it is not a folder
		return os.RemoveAll(folder)
	}
	for _, e := range entries {
		if e.Name() == reserveFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Get returns bytes whose digest was checked again; fault.ErrNotFound also if the file is damaged.
func (l *Layout) Get(ctx context.Context, d digest.Digest) ([]byte, error) {
	if err := l.check(ctx, ocispec.Descriptor{Digest: d}); err != nil {
		return nil, newError("get", d.String(), err)
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	data, err := l.content(d, maxContent)
	if errors.Is(err, fault.ErrDigestMismatch) {
		err = fmt.Errorf("the file is damaged: %w", fault.ErrNotFound)
	}
	return data, newError("get", d.String(), err)
}

// Open opens content for serving it to others, of any size that Put accepts: its digest is checked before Open returns.
// fault.ErrNotFound: it is missing or damaged. The caller closes it.
func (l *Layout) Open(ctx context.Context, d digest.Digest) (_ io.ReadSeekCloser, err error) {
	if err := l.check(ctx, ocispec.Descriptor{Digest: d}); err != nil {
		return nil, newError("open", d.String(), err)
	}
	f, err := os.Open(l.place.blobPath(d))
	if err != nil {
		return nil, newError("open", d.String(), onDisk(err))
	}
	sum := d.Algorithm().Hash()
	_, err = io.Copy(sum, io.LimitReader(f, maxContent))
	if err == nil && digest.NewDigest(d.Algorithm(), sum) != d {
		err = fmt.Errorf("the file is damaged: %w", fault.ErrNotFound)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, newError("open", d.String(), onDisk(err))
	}
	return f, nil
}

// content reads content that is durable, or staged.
func (l *Layout) content(d digest.Digest, limit int64) ([]byte, error) {
	if !l.staged[d] {
		return l.place.content(d, limit)
	}
	f, err := os.Open(l.stagedPath(d))
	if err != nil {
		return nil, onDisk(err)
	}
	return readContent(f, d, limit)
}

// Put is durable when it returns, and does nothing if the undamaged content exists.
func (l *Layout) Put(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.stage(ctx, desc, data, true); err != nil {
		return err
	}
	return l.sync(ctx)
}

// Stage is Put without Sync: Get returns the content, but the next OpenLayout removes it unless Sync comes before. A Sync that fails
// drops all that is staged, so content is staged by one caller at a time.
func (l *Layout) Stage(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage(ctx, desc, data, true)
}

// StageSpare is Stage without the reserve.
func (l *Layout) StageSpare(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage(ctx, desc, data, false)
}

func (l *Layout) stage(ctx context.Context, desc ocispec.Descriptor, data []byte, reserve bool) error {
	err := l.check(ctx, desc)
	if err == nil {
		err = checkContent(desc, data)
	}
	if err != nil {
		return newError("put", desc.Digest.String(), err)
	}
	if _, err := l.content(desc.Digest, desc.Size); err == nil {
		return nil
	}
	err = l.write(l.stagedPath(desc.Digest), data, false)
	if errors.Is(err, fault.ErrFull) && reserve {
		err = l.writeReserved(l.stagedPath(desc.Digest), data)
	}
	if err == nil {
		l.staged[desc.Digest] = true
	}
	l.reserve()
	return newError("put", desc.Digest.String(), err)
}

// Sync makes all staged content durable.
func (l *Layout) Sync(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sync(ctx)
}

func (l *Layout) sync(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return newError("sync", l.place.path, err)
	}
	var files errgroup.Group
	files.SetLimit(syncsAtOnce)
	for d := range l.staged {
		files.Go(func() error { return syncFile(l.stagedPath(d)) })
	}
	err := files.Wait()
	for d := range l.staged {
		delete(l.staged, d)
		if err == nil {
			err = os.Rename(l.stagedPath(d), l.place.blobPath(d))
		}
		if err != nil { // the kernel reports once that it could not write
			_ = os.Remove(l.stagedPath(d))
		}
	}
	if err != nil {
		return newError("sync", l.place.path, onDisk(err))
	}
	// Also without staged content: a Sync may have been killed between its rename and this.
	return newError("sync", l.place.path, syncFolder(l.blobs()))
}

// Retain removes everything but keep.
func (l *Layout) Retain(ctx context.Context, keep []digest.Digest) error {
	wanted := map[string]bool{}
	for _, d := range keep {
		if checkDigest(d) == nil && d.Algorithm() == digest.SHA256 {
			wanted[d.Encoded()] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.staged {
		if !wanted[d.Encoded()] {
			delete(l.staged, d)
			_ = os.Remove(l.stagedPath(d)) // else the next start removes it
		}
	}
	folder := l.blobs()
	entries, err := os.ReadDir(folder)
	if err != nil {
		return newError("clean", l.place.path, onDisk(err))
	}
	removed := false
	for _, e := range entries {
		if wanted[e.Name()] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return newError("clean", l.place.path, err)
		}
		if err := os.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			return newError("clean", l.place.path, onDisk(err))
		}
		removed = true
	}
	l.reserve()
	if !removed {
		return nil
	}
	return newError("clean", l.place.path, syncFolder(folder))
}

// Yield calls do and returns its error; meanwhile the space that is reserved for Put is free for do.
func (l *Layout) Yield(do func() error) error {
	l.mu.Lock()
	_ = os.Remove(filepath.Join(l.place.path, ingestFolder, reserveFile)) // after an error the reserve stays
	l.mu.Unlock()
	err := do()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserve()
	return err
}

func (l *Layout) check(ctx context.Context, desc ocispec.Descriptor) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkDescriptor(desc); err != nil {
		return err
	}
	if desc.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest algorithm %s: %w", desc.Digest.Algorithm(), fault.ErrUnsupported)
	}
	if desc.Size > maxContent {
		return fmt.Errorf("%d bytes: %w", desc.Size, fault.ErrTooLarge)
	}
	return nil
}

// stagedPath is the file of content that is staged.
func (l *Layout) stagedPath(d digest.Digest) string {
	return filepath.Join(l.place.path, ingestFolder, "staged-"+d.Encoded())
}

func (l *Layout) blobs() string {
	return filepath.Join(l.place.path, ocispec.ImageBlobsDir, digest.SHA256.String())
}

// write creates a file atomically; durable: its content is synced before it has its name.
func (l *Layout) write(file string, data []byte, durable bool) error {
	f, err := os.CreateTemp(filepath.Join(l.place.path, ingestFolder), "put-*")
	if err != nil {
		return onDisk(err)
	}
	return finish(f, file, data, durable)
}

// writeReserved writes a file into the space of the reserve.
func (l *Layout) writeReserved(file string, data []byte) error {
	f, err := os.OpenFile(filepath.Join(l.place.path, ingestFolder, reserveFile), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the room that is kept for it was not free: %w", fault.ErrFull)
	}
	if err != nil {
		return onDisk(err)
	}
	return finish(f, file, data, false)
}

// finish overwrites f with data, closes it, and renames it. An unfinished file is removed.
func finish(f *os.File, file string, data []byte, durable bool) (err error) {
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error is returned
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	return onDisk(err)
}

// reserve fills the reserve as far as there is space. Written zeros reserve space on file systems that overwrite files in place,
// such as ext4 and XFS.
func (l *Layout) reserve() {
	f, err := os.OpenFile(filepath.Join(l.place.path, ingestFolder, reserveFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return // the Put that needs it returns the error
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() < reserveSize {
		_, _ = f.Write(make([]byte, reserveSize-info.Size())) // only as much as fits
	}
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return onDisk(err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // some file systems cannot
		return onDisk(err)
	}
	return nil
}
