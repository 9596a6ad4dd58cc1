package volume

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxHeader  = 4 << 10
	maxEntries = 1 << 20 // of all volumes
)

// Set is a layout in tar volumes. It implements [fs.FS] for files, not for folders. Close it.
type Set struct {
	Names []string // of the volumes, in their order

	files     []*os.File
	documents map[string][]byte
	blobs     map[string][]span // by name in the layout
	entries   int
	sums      map[string]*sum // of blobs with missing parts
}

// span is part of a file.
type span struct {
	file         io.ReaderAt
	offset, size int64
}

// sum hashes a blob in parts.
type sum struct {
	digest.Verifier
	size int64
}

// Open reads volumes to their end and checks every byte of them. The names may be in any order. A tar without a volume's header counts
// as a complete layout. A missing volume is fault.ErrNotFound, a duplicate one or one of another export
// fault.ErrConflict, and a damaged one fault.ErrDigestMismatch; the error names it.
func Open(ctx context.Context, names []string) (*Set, error) {
	s := &Set{documents: map[string][]byte{}, blobs: map[string][]span{}, sums: map[string]*sum{}}
	if err := s.open(ctx, names); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the files of the volumes.
func (s *Set) Close() (err error) {
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// numbered is a volume with its header.
type numbered struct {
	header
	name string
	file *os.File
}

func (s *Set) open(ctx context.Context, names []string) error {
	var all []numbered
	for _, name := range names {
		info, err := os.Stat(name)
		if err == nil {
			err = bounded.Regular(name, info)
		}
		if err != nil {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		s.files = append(s.files, f)
		h, err := readHeader(f)
		if err != nil {
			return damaged(name, err)
		}
		all = append(all, numbered{h, name, f})
	}
	if err := complete(all); err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b numbered) int { return cmp.Compare(a.Number, b.Number) })
	for _, v := range all {
		s.Names = append(s.Names, v.name)
		if err := s.scan(ctx, v); err != nil {
			return damaged(v.name, err)
		}
	}
	for name, part := range s.sums {
		return fmt.Errorf("%s is not whole: its volumes have %d bytes of it: %w", name, part.size, fault.ErrDigestMismatch)
	}
	return nil
}

// Document reads one of the layout's own documents from a volume, and checks nothing.
func Document(volume, name string) ([]byte, error) {
	info, err := os.Stat(volume)
	if err == nil {
		err = bounded.Regular(volume, info)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(volume)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := tar.NewReader(f)
	for {
		e, err := t.Next()
		if err != nil || path.Clean(e.Name) == name {
			if err != nil {
				return nil, damaged(volume, err)
			}
			return bounded.Read(t, maxDocument)
		}
	}
}

// damaged names the volume that could not be read.
func damaged(name string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, tar.ErrHeader) {
		err = fmt.Errorf("%w: it is cut off, or no tar: %w", fault.ErrDigestMismatch, err)
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) && p.Path == name {
		return err // it contains the name
	}
	return fmt.Errorf("%s: %w", name, err)
}

// readHeader reads the first file of a volume. A tar without one is the only volume of a layout.
func readHeader(f *os.File) (header, error) {
	h := header{Number: 1, Of: 1}
	t := tar.NewReader(f)
	e, err := t.Next()
	if err != nil || path.Clean(e.Name) != HeaderFile {
		return h, err
	}
	data, err := bounded.Read(t, maxHeader)
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fmt.Errorf("%s: %w: %w", HeaderFile, fault.ErrInvalid, err)
	}
	switch {
	case h.Version != version:
		return h, fmt.Errorf("%s: version %d: %w: this program knows version %d", HeaderFile, h.Version, fault.ErrUnsupported, version)
	case h.Number < 1 || h.Number > h.Of || h.Of > maxVolumes || h.Export.Validate() != nil:
		return h, fmt.Errorf("%s: volume %d of %d of %q: %w", HeaderFile, h.Number, h.Of, h.Export, fault.ErrInvalid)
	}
	return h, nil
}

// complete returns an error about a volume that is duplicate, of another export, or missing.
func complete(all []numbered) error {
	there := map[int]string{}
	for _, v := range all {
		if v.header.Export != all[0].Export || v.Of != all[0].Of {
			err := fmt.Errorf("%s and %s are volumes of different exports: %w", all[0].name, v.name, fault.ErrConflict)
			return fault.WithHint(err, "put the volumes of one export into a folder of its own")
		}
		if other := there[v.Number]; other != "" {
			return fmt.Errorf("%s and %s are both volume %d of %d: %w", other, v.name, v.Number, v.Of, fault.ErrConflict)
		}
		there[v.Number] = v.name
	}
	var missing []string
	for n := 1; n <= all[0].Of; n++ {
		if there[n] == "" {
			missing = append(missing, Name(n))
		}
	}
	if len(missing) > 0 {
		err := fmt.Errorf("%d of %d volumes are missing: %s: %w", len(missing), all[0].Of, strings.Join(missing, ", "), fault.ErrNotFound)
		return fault.WithHint(err, "give all volumes at once: folders or files, also from several media")
	}
	return nil
}

// counted counts the bytes that were read of a file.
type counted struct {
	until
	n int64
}

// Read implements [io.Reader].
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.until.Read(b)
	c.n += int64(n)
	return n, err
}

// scan reads a volume to its end.
func (s *Set) scan(ctx context.Context, v numbered) error {
	if _, err := v.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	at := &counted{until: until{ctx, v.file}}
	t := tar.NewReader(at)
	var documents []document
	room := int64(maxDocuments)
	for {
		e, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if s.entries++; s.entries > maxEntries {
			return fmt.Errorf("more than %d files: %w", maxEntries, fault.ErrTooLarge)
		}
		name := path.Clean(e.Name)
		switch {
		case e.Typeflag == tar.TypeDir || name == HeaderFile:
		case isSparse(e): // its bytes are not contiguous
			return fmt.Errorf("%s is a sparse file: %w", e.Name, fault.ErrUnsupported)
		case e.Typeflag != tar.TypeReg:
			return fmt.Errorf("%s is no file: %w", e.Name, fault.ErrInvalid)
		case strings.HasPrefix(name, "blobs/"):
			if err := s.blob(t, name, span{v.file, at.n, e.Size}); err != nil {
				return err
			}
		case strings.Contains(name, "/"): // nothing of a layout
		default:
			data, err := bounded.Read(t, min(maxDocument, room))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			room -= int64(len(data))
			documents = append(documents, document{name, data})
			s.documents[name] = data
		}
	}
	if v.Export != "" && exportOf(documents) != v.Export {
		return fmt.Errorf("its documents are not those of its export: %w", fault.ErrDigestMismatch)
	}
	return nil
}

// isSparse reports whether a tar entry omits holes of its file, in the formats of GNU.
func isSparse(e *tar.Header) bool {
	for key := range e.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return e.Typeflag == tar.TypeGNUSparse
}

// blob checks a blob or a part of one, and records its position.
func (s *Set) blob(r io.Reader, entry string, at span) error {
	name, offset, part := strings.Cut(entry, partMark)
	d, ok := blobDigest(name)
	if !ok {
		return nil // nothing of a layout
	}
	if s.blobs[name] != nil && s.sums[name] == nil {
		return nil // it was complete already
	}
	check := s.sums[name]
	if check == nil {
		check = &sum{Verifier: d.Verifier()}
	}
	if n, err := strconv.ParseInt(offset, 10, 64); part && (err != nil || n != check.size) || !part && check.size > 0 {
		return fmt.Errorf("%s does not follow the %d bytes of it that are known: %w", entry, check.size, fault.ErrDigestMismatch)
	}
	n, err := io.Copy(check, r)
	if err != nil {
		return err
	}
	check.size += n
	s.blobs[name] = append(s.blobs[name], at)
	switch {
	case check.Verified():
		delete(s.sums, name)
	case part:
		s.sums[name] = check // the rest follows
	default:
		return fmt.Errorf("%s: the file is not what its name says: %w", entry, fault.ErrDigestMismatch)
	}
	return nil
}

// Open implements [fs.FS]. Blobs can be sought in.
func (s *Set) Open(name string) (fs.File, error) {
	if data, ok := s.documents[name]; ok {
		return &file{Reader: strings.NewReader(string(data)), info: info{path.Base(name), int64(len(data))}}, nil
	}
	spans, ok := s.blobs[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	var size int64
	for _, p := range spans {
		size += p.size
	}
	return &file{Reader: io.NewSectionReader(joined(spans), 0, size), info: info{path.Base(name), size}}, nil
}

// joined reads spans one after the other.
type joined []span

// ReadAt implements [io.ReaderAt].
func (j joined) ReadAt(b []byte, offset int64) (n int, err error) {
	for _, p := range j {
		if offset >= p.size {
			offset -= p.size
			continue
		}
		want := min(int64(len(b)-n), p.size-offset)
		m, err := p.file.ReadAt(b[n:n+int(want)], p.offset+offset)
		if n += m; err != nil || n == len(b) {
			return n, err
		}
		offset = 0
	}
	return n, io.EOF
}

// file is a file of a set.
type file struct {
	io.Reader
	info
}

// Seek implements [io.Seeker].
func (f *file) Seek(offset int64, whence int) (int64, error) {
	return f.Reader.(io.Seeker).Seek(offset, whence)
}

// Stat implements [fs.File].
func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }

// Close implements [fs.File].
func (f *file) Close() error { return nil }

// info describes a file of a set.
type info struct {
	name string
	size int64
}

// Name implements [fs.FileInfo].
func (i info) Name() string { return i.name }

// Size implements [fs.FileInfo].
func (i info) Size() int64 { return i.size }

// Mode implements [fs.FileInfo].
func (i info) Mode() fs.FileMode { return 0o444 }

// ModTime implements [fs.FileInfo].
func (i info) ModTime() time.Time { return time.Time{} }

// IsDir implements [fs.FileInfo].
func (i info) IsDir() bool { return false }

// Sys implements [fs.FileInfo].
func (i info) Sys() any { return nil }
