package registry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// layoutPlace is an OCI image layout on disk as a place like a registry. Changes by other programs are noticed at the
// next call; two programs that write at the same time are not coordinated.
type layoutPlace struct {
	path  string
	files fs.FS // read-only files that are read instead of the folder; nil: the folder is read

	mu      sync.Mutex
	store   *oci.Store
	index   fs.FileInfo                   // of index.json when store read it
	fixed   *oci.ReadOnlyStore            // of files
	entries map[string]ocispec.Descriptor // of index.json, by name, or by digest without one; nil: not read
	unsaved int                           // entries that index.json does not have yet
	held    bool                          // by HoldIndex
}

// layoutIndex has the common methods of oras-go's two stores.
type layoutIndex interface {
	Resolve(ctx context.Context, reference string) (ocispec.Descriptor, error)
	Predecessors(ctx context.Context, node ocispec.Descriptor) ([]ocispec.Descriptor, error)
	Tags(ctx context.Context, last string, fn func(tags []string) error) error
}

// reading returns oras-go's store for reading.
func (p *layoutPlace) reading(ctx context.Context) (layoutIndex, error) {
	if p.files == nil {
		return p.open(ctx, false)
	}
	if p.fixed == nil {
		store, err := oci.NewFromFS(ctx, p.files)
		if err != nil {
			return nil, fmt.Errorf("no OCI layout that can be read: %w", onDisk(err))
		}
		p.fixed = store
	}
	return p.fixed, nil
}

// maxLayoutIndex bounds index.json, which oras-go reads into memory.
const maxLayoutIndex = 64 << 20

// open returns oras-go's store, read again if index.json has changed. Only a writer creates a layout.
func (p *layoutPlace) open(ctx context.Context, write bool) (*oci.Store, error) {
	if p.files != nil {
		return nil, fmt.Errorf("it can only be read: %w", fault.ErrUnsupported)
	}
	if err := checkNames(p.path, write); err != nil {
		return nil, err
	}
	index, err := os.Stat(filepath.Join(p.path, ocispec.ImageIndexFile))
	switch {
	case errors.Is(err, fs.ErrNotExist) && write:
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no OCI layout: %w", fault.ErrNotFound)
	case err != nil:
		return nil, onDisk(err)
	case index.Size() > maxLayoutIndex:
		return nil, fmt.Errorf("%s of %d bytes: %w", ocispec.ImageIndexFile, index.Size(), fault.ErrTooLarge)
	}
	if p.store != nil && (p.unsaved > 0 || index != nil && p.index != nil && index.ModTime().Equal(p.index.ModTime()) && index.Size() == p.index.Size()) {
		return p.store, nil
	}
	if err := checkLayoutFile(p.path, write); err != nil {
		return nil, err
	}
	if err := checkBlobs(p.path); err != nil {
		return nil, err
	}
	store, err := oci.NewWithContext(ctx, p.path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		err = fmt.Errorf("no OCI layout that can be read: %w", onDisk(err))
		switch {
		case errors.Is(err, fault.ErrDigestMismatch):
			err = fault.WithHint(err, hintDamaged)
		case errors.Is(err, fault.ErrInvalid):
			err = fault.WithHint(err, "its index.json or oci-layout is damaged: longshore export to the media again, with --reports for reports, writes them anew")
		}
		return nil, err
	}
	store.AutoSaveIndex = false // setName writes it
	p.store, p.entries = store, nil
	p.remember()
	return store, nil
}

// remember records the state of index.json as this process wrote or read it.
func (p *layoutPlace) remember() {
	p.index, _ = os.Stat(filepath.Join(p.path, ocispec.ImageIndexFile)) // nil makes the next call read it again
}

// checkLayoutFile returns an error for a folder with other content, so that it does not become a layout by accident.
func checkLayoutFile(path string, write bool) error {
	if _, err := os.Stat(filepath.Join(path, ocispec.ImageLayoutFile)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return onDisk(err)
	}
	entries, err := os.ReadDir(path)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return SystemEntry(e.Name()) })
	switch {
	case errors.Is(err, fs.ErrNotExist) && write, err == nil && len(entries) == 0 && write:
		return nil
	case err != nil:
		return onDisk(err)
	}
	return fault.WithHint(fmt.Errorf("a folder that is no OCI layout: %w", fault.ErrInvalid), "name an empty or new folder, or a layout")
}

// SystemEntry reports whether operating systems create an entry of this name on an empty medium.
func SystemEntry(name string) bool {
	return strings.HasPrefix(name, ".") || slices.Contains([]string{"lost+found", "System Volume Information", "$RECYCLE.BIN"}, name)
}

// onDisk adds the sentinel to an error of the file system.
func onDisk(err error) error {
	switch {
	case err == nil || classified(err):
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errdef.ErrNotFound):
		return fmt.Errorf("%w", fault.ErrNotFound)
	case errors.Is(err, content.ErrMismatchedDigest):
		return fmt.Errorf("%w: %w", err, fault.ErrDigestMismatch)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", err, fault.ErrDenied)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", err, fault.ErrFull)
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%w: %w", err, fault.ErrTemporary) // an input/output error
	}
	return fmt.Errorf("%w: %w", err, fault.ErrInvalid)
}

func (p *layoutPlace) resolve(ctx context.Context, target string) (ocispec.Descriptor, error) {
	desc, _, err := p.manifest(ctx, target, MaxForeignManifest)
	return desc, err
}

func (p *layoutPlace) manifest(ctx context.Context, target string, limit int64) (ocispec.Descriptor, []byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	store, err := p.reading(ctx)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return p.read(ctx, store, target, limit)
}

func (p *layoutPlace) read(ctx context.Context, store layoutIndex, target string, limit int64) (ocispec.Descriptor, []byte, error) {
	desc, err := store.Resolve(ctx, target)
	if err != nil {
		return ocispec.Descriptor{}, nil, onDisk(err)
	}
	if err := checkDescriptor(desc); err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	data, err := p.file(desc.Digest, desc.Size, limit)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	media, err := manifestType(data, desc.MediaType)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return ocispec.Descriptor{MediaType: media, Digest: desc.Digest, Size: int64(len(data))}, data, nil
}

func (p *layoutPlace) blobPath(d digest.Digest) string {
	return filepath.Join(p.path, ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// blobFile opens the file of a blob.
func (p *layoutPlace) blobFile(d digest.Digest) (fs.File, error) {
	if p.files == nil {
		return openRegular(p.blobPath(d), os.O_RDONLY, 0)
	}
	return p.files.Open(path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded()))
}

// file reads one blob file and checks it.
func (p *layoutPlace) file(d digest.Digest, size, limit int64) ([]byte, error) {
	if size > limit {
		return nil, fmt.Errorf("%d bytes, %d are allowed: %w", size, limit, fault.ErrTooLarge)
	}
	data, err := p.content(d, size)
	if err == nil && int64(len(data)) != size {
		return nil, errDamagedFile
	}
	return data, err
}

var errDamagedFile = fault.WithHint(fmt.Errorf("the file is not what its name says: %w", fault.ErrDigestMismatch), hintDamaged)

const hintDamaged = "the media are damaged: longshore export --check-media to them replaces damaged files, or use others"

// content reads one blob file of at most limit bytes and checks its digest.
func (p *layoutPlace) content(d digest.Digest, limit int64) ([]byte, error) {
	f, err := p.blobFile(d)
	if err != nil {
		return nil, onDisk(err)
	}
	return readContent(f, d, limit)
}

// readContent reads a file of at most limit bytes, closes it, and checks its digest.
func readContent(f fs.File, d digest.Digest, limit int64) ([]byte, error) {
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, onDisk(err)
	}
	if d.Algorithm().FromBytes(data) != d {
		return nil, errDamagedFile
	}
	return data, nil
}

func (p *layoutPlace) blob(_ context.Context, desc ocispec.Descriptor) ([]byte, error) {
	return p.file(desc.Digest, desc.Size, desc.Size)
}

func (p *layoutPlace) openBlob(ctx context.Context, desc ocispec.Descriptor, off int64, check bool) (io.ReadCloser, error) {
	f, err := p.blobFile(desc.Digest)
	if err != nil {
		return nil, onDisk(err)
	}
	r := &fileReader{ctx: ctx, f: f, left: desc.Size - off}
	if check {
		r.hash = desc.Digest.Verifier()
	}
	if err := skip(f, off); err != nil {
		return nil, onDisk(errors.Join(err, f.Close()))
	}
	return r, nil
}

// skip passes over the first bytes of a file that was just opened.
func skip(f fs.File, n int64) error {
	if s, ok := f.(io.Seeker); ok {
		_, err := s.Seek(n, io.SeekStart)
		return err
	}
	_, err := io.CopyN(io.Discard, f, n)
	return err
}

// verify reads a blob file to its end.
func (p *layoutPlace) verify(ctx context.Context, desc ocispec.Descriptor) error {
	f, err := p.openBlob(ctx, desc, 0, true)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

// fileReader returns io.EOF only if size and digest match.
type fileReader struct {
	ctx  context.Context
	f    fs.File
	left int64
	hash digest.Verifier // nil: the caller checks
}

func (r *fileReader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	n, err := r.f.Read(b)
	if r.hash != nil {
		_, _ = r.hash.Write(b[:n]) // a hash does not fail
	}
	r.left -= int64(n)
	switch {
	case err != nil && err != io.EOF:
		return n, onDisk(err)
	case r.left < 0, err == io.EOF && (r.left != 0 || r.hash != nil && !r.hash.Verified()):
		return n, errDamagedFile
	}
	return n, err
}

func (r *fileReader) Close() error { return r.f.Close() }

func (p *layoutPlace) exists(_ context.Context, desc ocispec.Descriptor) (bool, error) {
	f, err := p.blobFile(desc.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, onDisk(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, onDisk(err)
	}
	return desc.Size == 0 || info.Size() == desc.Size, nil
}

// referrers reads oras-go's graph, and the fallback tag that a tool may have copied.
func (p *layoutPlace) referrers(ctx context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	store, err := p.reading(ctx)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// The graph identifies nodes by media type, digest and size: add values that the caller may have left out.
	if full, _, err := p.read(ctx, store, subject.Digest.String(), MaxForeignManifest); err == nil {
		subject = full
	}
	nodes, err := store.Predecessors(ctx, subject)
	if err != nil {
		return nil, onDisk(err)
	}
	var out []ocispec.Descriptor
	for _, n := range nodes {
		desc, data, err := p.read(ctx, store, n.Digest.String(), MaxForeignManifest)
		if err != nil {
			return nil, err
		}
		if s, err := subjectOf(data); err == nil && s.Digest == subject.Digest {
			out = append(out, listed(desc, data))
		}
	}
	if len(out) == 0 {
		desc, data, err := p.read(ctx, store, fallbackTag(subject.Digest), maxIndex)
		e, err := fallbackEntries(desc, data, err, subject.Digest)
		return e.list, err
	}
	slices.SortFunc(out, func(a, b ocispec.Descriptor) int { return cmp.Compare(a.Digest, b.Digest) })
	return out, nil
}

func (p *layoutPlace) tags(ctx context.Context, _ string) ([]string, error) {
	return p.names(ctx, func(name string) (string, bool) { return name, ValidTag(name) })
}

// names lists the results of choose for the names in the index, sorted.
func (p *layoutPlace) names(ctx context.Context, choose func(name string) (string, bool)) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	store, err := p.reading(ctx)
	if err != nil {
		return nil, err
	}
	out := []string{}
	err = store.Tags(ctx, "", func(names []string) error {
		for _, name := range names {
			if s, ok := choose(name); ok {
				out = append(out, s)
			}
		}
		return nil
	})
	slices.Sort(out)
	return out, onDisk(err)
}

// pushBlob replaces a file of the wrong size, which a full disk or a power cut may leave.
func (p *layoutPlace) pushBlob(ctx context.Context, desc ocispec.Descriptor, data []byte) (bool, error) {
	return p.bring(ctx, desc, func(store *oci.Store) error {
		if desc.MediaType == "" || IsManifest(desc.MediaType) {
			desc.MediaType = "application/octet-stream" // as a blob: no entry in the index
		}
		return store.Push(ctx, desc, bytes.NewReader(data))
	})
}

// bring writes a blob unless an undamaged one exists.
func (p *layoutPlace) bring(ctx context.Context, desc ocispec.Descriptor, write func(*oci.Store) error) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	store, err := p.open(ctx, true)
	if err != nil {
		return false, err
	}
	switch err := p.verify(ctx, desc); {
	case err == nil:
		return false, nil
	case errors.Is(err, fault.ErrDigestMismatch):
		if err := os.Remove(p.blobPath(desc.Digest)); err != nil {
			return false, onDisk(err)
		}
	case !errors.Is(err, fault.ErrNotFound): // it may be valid, and other artifacts may name it
		return false, err
	}
	return true, onDisk(write(store))
}

func (p *layoutPlace) pushBlobFrom(ctx context.Context, desc ocispec.Descriptor, open opener) (bool, error) {
	return p.bring(ctx, desc, func(*oci.Store) error {
		resumed, err := p.receive(ctx, desc, open)
		if resumed && errors.Is(err, fault.ErrDigestMismatch) { // a power cut may have left other bytes than were written
			_, err = p.receive(ctx, desc, open)
		}
		return err
	})
}

func (p *layoutPlace) pushManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string) error {
	return p.put(ctx, desc, data, tag, nil)
}

// put stores a manifest under a name of the index. had are digests that it may name although they are not here; nil: none.
func (p *layoutPlace) put(ctx context.Context, desc ocispec.Descriptor, data []byte, name string, had map[digest.Digest]bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	store, err := p.open(ctx, true)
	if err != nil {
		return err
	}
	defer p.remember()
	if err := p.complete(data, had); err != nil {
		return err
	}
	plain := ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}
	err = store.Push(ctx, plain, bytes.NewReader(data))
	if errors.Is(err, errdef.ErrAlreadyExists) {
		if _, err = p.file(desc.Digest, desc.Size, desc.Size); errors.Is(err, fault.ErrDigestMismatch) {
			if err := os.Remove(p.blobPath(desc.Digest)); err != nil {
				return onDisk(err)
			}
			err = store.Push(ctx, plain, bytes.NewReader(data))
		}
	}
	if err != nil {
		return onDisk(err)
	}
	name = cmp.Or(name, desc.Digest.String())
	if err := store.Tag(ctx, plain, name); err != nil {
		return onDisk(err)
	}
	return onDisk(p.setName(name, plain))
}

// complete rejects a manifest whose content is missing, as registries do: a layout is never incomplete.
func (p *layoutPlace) complete(manifest []byte, had map[digest.Digest]bool) error {
	if _, err := manifestType(manifest, ""); err != nil {
		return err
	}
	blobs, manifests, err := parts(manifest)
	if err != nil {
		return err
	}
	for _, d := range append(blobs, manifests...) {
		if had[d.Digest] {
			continue
		}
		if info, err := os.Stat(p.blobPath(d.Digest)); err != nil || info.Size() != d.Size {
			return fmt.Errorf("it names %s, which is not here: %w", d.Digest, fault.ErrInvalid)
		}
	}
	return nil
}

func (p *layoutPlace) pushReferrer(ctx context.Context, _, desc ocispec.Descriptor, data []byte) error {
	return p.pushManifest(ctx, desc, data, "")
}
