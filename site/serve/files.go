package serve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// folder opens the regular files of a folder: no links, which may lead to any file of this machine, and no pipes, which wait for a
// writer. The names are those of the media.
type folder string

// Open implements [fs.FS].
func (d folder) Open(name string) (fs.File, error) {
	root, err := os.OpenRoot(string(d)) // for each file: media may be exchanged, or unmounted
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err == nil {
		err = bounded.Regular(name, info)
	}
	if err != nil {
		return nil, err
	}
	return root.Open(name)
}

// files are the blobs of a layout.
type files struct {
	root fs.FS

	mu      sync.Mutex
	damaged map[digest.Digest]state // blobs whose bytes do not match their digest
}

// state of a file shows whether it was replaced.
type state struct {
	size     int64
	modified time.Time
}

// open opens a blob: fault.ErrNotFound, or fault.ErrDigestMismatch if it is known to be damaged.
func (f *files) open(d digest.Digest) (*blob, error) {
	if err := d.Validate(); err != nil { // it becomes part of a path
		return nil, fmt.Errorf("%w: %w", fault.ErrNotFound, err)
	}
	file, err := f.root.Open(path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", d, fault.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = bounded.Regular(info.Name(), info)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	b := &blob{Reader: file, files: f, file: file, is: state{info.Size(), info.ModTime()}}
	b.desc = ocispec.Descriptor{MediaType: "application/octet-stream", Digest: d, Size: info.Size()}
	f.mu.Lock()
	was, damaged := f.damaged[d]
	f.mu.Unlock()
	if damaged && was == b.is {
		return nil, errors.Join(fmt.Errorf("the file is not what its name says: %w", fault.ErrDigestMismatch), file.Close())
	}
	return b, nil
}

// told is a file that reports read errors to a function.
type told struct {
	fs.File
	tell func(error)
}

// Read implements [io.Reader].
func (t told) Read(p []byte) (int, error) {
	n, err := t.File.Read(p)
	if err != nil && err != io.EOF {
		t.tell(err)
	}
	return n, err
}

// Seek implements [io.Seeker].
func (t told) Seek(offset int64, whence int) (int64, error) {
	s, ok := t.File.(io.Seeker)
	if !ok {
		return 0, fs.ErrInvalid
	}
	return s.Seek(offset, whence)
}

// blob reads a blob. It implements [ociregistry.BlobReader].
type blob struct {
	io.Reader
	files *files
	file  fs.File
	is    state
	desc  ocispec.Descriptor
}

var _ ociregistry.BlobReader = (*blob)(nil)

// Descriptor implements [ociregistry.BlobReader].
func (b *blob) Descriptor() ocispec.Descriptor { return b.desc }

// Close implements [io.Closer].
func (b *blob) Close() error { return b.file.Close() }

// part reads from one offset up to another; to < 0: to the end.
func (b *blob) part(from, to int64) error {
	if to < 0 || to > b.desc.Size {
		to = b.desc.Size
	}
	seeker, ok := b.file.(io.Seeker)
	if from > to || !ok {
		return fmt.Errorf("from byte %d of %d: %w", from, b.desc.Size, fault.ErrNotFound)
	}
	_, err := seeker.Seek(from, io.SeekStart)
	b.Reader = io.LimitReader(b.file, to-from)
	return err
}

// check hashes the read bytes and holds the last one back until the digest has matched; otherwise tell is called.
func (b *blob) check(tell func(error)) {
	verifier := b.desc.Digest.Verifier()
	head := io.TeeReader(io.LimitReader(b.file, max(b.desc.Size-1, 0)), verifier)
	b.Reader = io.MultiReader(head, &last{func() ([]byte, error) {
		tail, err := io.ReadAll(io.LimitReader(b.file, 2))
		if err != nil {
			return nil, err
		}
		if _, _ = verifier.Write(tail); len(tail) > 1 || !verifier.Verified() {
			err := fmt.Errorf("%s: the file is not what its name says: %w", b.desc.Digest, fault.ErrDigestMismatch)
			b.files.mu.Lock()
			b.files.damaged[b.desc.Digest] = b.is
			b.files.mu.Unlock()
			tell(err)
			return nil, err
		}
		return tail, nil
	}})
}

// last reads the result of read, which is called at most once.
type last struct{ read func() ([]byte, error) }

// Read implements [io.Reader].
func (l *last) Read(p []byte) (int, error) {
	if l.read == nil {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	tail, err := l.read()
	l.read = nil
	return copy(p, tail), err
}
