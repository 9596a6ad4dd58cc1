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

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxContent bounds the content that Layout reads: the largest artifact that the device keeps here is an archive of 16 MiB.
const maxContent = 64 << 20

// ingestFolder has unfinished files of oras-go and of this package; leftovers of a power cut are removed at the next start.
const ingestFolder = "ingest"

const (
	// reserveFile, in the folder of unfinished writes, reserves disk space for the documents of a state that frees space.
	reserveFile = "reserve"
	// reserveSize is that space in bytes: the documents of a state rarely need a tenth of it.
	reserveSize = 4 << 20
)

// Layout is a device's small content store: an OCI image layout whose writes survive a power cut once they return.
// It is safe for concurrent use by one process.
//
// oras-go's own store does not sync its files, and its index.json grows with every manifest; here the caller has
// the list of needed content, so index.json stays empty.
//
// A Layout reserves 4 MiB of the disk, as far as they are free, and uses them for content that does not fit otherwise.
type Layout struct {
	place *layoutPlace
	mu    sync.RWMutex // Retain excludes Put, because it would remove content that Put has just written
}

// OpenLayout creates the folder if it is missing and removes leftovers of interrupted writes.
func OpenLayout(path string) (*Layout, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, newError("open layout", path, onDisk(err))
	}
	l := &Layout{place: &layoutPlace{path: path}}
	return l, newError("open layout", path, l.prepare())
}

func (l *Layout) prepare() error {
	root := l.place.path
	if err := removeUnfinished(filepath.Join(root, ingestFolder)); err != nil {
		return onDisk(err)
	}
	for _, folder := range []string{root, filepath.Join(root, ingestFolder), filepath.Join(root, ocispec.ImageBlobsDir, digest.SHA256.String())} {
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
		if err := l.write(file, data); err != nil {
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
	data, err := l.place.content(d, maxContent)
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

// Put is durable when it returns, and does nothing if the undamaged content exists.
func (l *Layout) Put(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	return l.put(ctx, desc, data, true)
}

// PutSpare is Put without the reserve.
func (l *Layout) PutSpare(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	return l.put(ctx, desc, data, false)
}

func (l *Layout) put(ctx context.Context, desc ocispec.Descriptor, data []byte, reserve bool) error {
	err := l.check(ctx, desc)
	if err == nil {
		err = checkContent(desc, data)
	}
	if err != nil {
		return newError("put", desc.Digest.String(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.place.blobPath(desc.Digest)
	if _, err := l.place.file(desc.Digest, desc.Size, maxContent); err == nil {
		// A Put may have been killed between its rename and its sync.
		return newError("put", desc.Digest.String(), syncFolder(filepath.Dir(file)))
	}
	err = l.write(file, data)
	if errors.Is(err, fault.ErrFull) && reserve {
		err = l.writeReserved(file, data)
	}
	l.reserve()
	return newError("put", desc.Digest.String(), err)
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
	folder := filepath.Join(l.place.path, ocispec.ImageBlobsDir, digest.SHA256.String())
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

// write creates a file atomically and durably: it syncs the content, renames the file, and syncs its folder.
func (l *Layout) write(file string, data []byte) error {
	f, err := os.CreateTemp(filepath.Join(l.place.path, ingestFolder), "put-*")
	if err != nil {
		return onDisk(err)
	}
	return finish(f, file, data)
}

// writeReserved is write with the space of the reserve.
func (l *Layout) writeReserved(file string, data []byte) error {
	f, err := os.OpenFile(filepath.Join(l.place.path, ingestFolder, reserveFile), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the room that is kept for it was not free: %w", fault.ErrFull)
	}
	if err != nil {
		return onDisk(err)
	}
	return finish(f, file, data)
}

// finish overwrites f with data, closes it, and renames it. An unfinished file is removed.
func finish(f *os.File, file string, data []byte) (err error) {
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error is returned
		}
	}()
	if _, err := f.Write(data); err != nil {
		f.Close()
		return onDisk(err)
	}
	if err := errors.Join(f.Truncate(int64(len(data))), f.Sync()); err != nil {
		f.Close()
		return onDisk(err)
	}
	if err := f.Close(); err != nil {
		return onDisk(err)
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return onDisk(err)
	}
	return syncFolder(filepath.Dir(file))
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

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return onDisk(err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) {
		return onDisk(err)
	}
	return nil
}
