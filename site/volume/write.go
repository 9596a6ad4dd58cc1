// Package volume writes an OCI layout as tar volumes of a given size, and reads it from them.
//
// Every volume is a tar of its own: [HeaderFile] first, then the layout's own documents, then blobs. All volumes extracted into one
// folder give the layout back. A blob that is larger than a volume is in parts, blobs/sha256/HEX.part-OFFSET; every other blob is
// whole in one volume. [Write] also writes [SumsFile] for sha256sum -c, last: without it the volumes are not whole.
package volume

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// HeaderFile is the first file of a volume.
	HeaderFile = "longshore-volume.json"
	// SumsFile has the SHA-256 of every volume, as sha256sum writes them.
	SumsFile = "SHA256SUMS"
	// MinSize is the smallest size of a volume, in bytes.
	MinSize = 1 << 20

	version      = 1
	block        = 512
	maxDocument  = 64 << 20            // of the layout's own documents; index.json is the largest
	maxDocuments = maxDocument + 2<<20 // of one tar together: they are held in memory
	maxVolumes   = 999
	partMark     = ".part-"
	partDigits   = 20
	headerRoom   = 2 * block // a header's document is shorter than a block
	extendedRoom = 4 * block // of a header with a size over 8 GiB
)

// header says which volume of what a file is.
type header struct {
	Version int           `json:"version"` // 1
	Export  digest.Digest `json:"export"`  // of the layout's own documents, which every volume has
	Number  int           `json:"number"`  // from 1
	Of      int           `json:"of"`
}

// Name is the file name of a volume, numbered from 1.
func Name(number int) string { return fmt.Sprintf("longshore-export-%03d.tar", number) }

// Is reports whether a file is named as a volume.
func Is(name string) bool {
	ok, err := path.Match("longshore-export-[0-9][0-9][0-9].tar", name)
	return ok && err == nil
}

// piece is a blob or part of one.
type piece struct {
	name         string // in the layout
	offset, size int64
	whole        bool
}

func (p piece) entry() string {
	if p.whole {
		return p.name
	}
	return fmt.Sprintf("%s%s%0*d", p.name, partMark, partDigits, p.offset)
}

// room is what a file of size bytes takes in a tar.
func room(size int64) int64 {
	head := int64(block)
	if size >= 8<<30 {
		head = extendedRoom
	}
	return head + (size+block-1)/block*block
}

// Write writes the layout in from as volumes of at most size bytes each, 0: one of any size, into the folder dir. documents are the
// names of the layout's own documents. Everything is synced when it returns. Volumes that are in dir are replaced.
func Write(ctx context.Context, from fs.FS, documents []string, dir string, size int64) ([]string, error) {
	w := &writer{from: from, dir: dir}
	head := headerRoom + 2*int64(block)
	for _, name := range documents {
		data, err := bounded.FileIn(from, name, maxDocument)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		w.documents = append(w.documents, document{name, data})
		head += room(int64(len(data)))
	}
	if size != 0 && (size < MinSize || size < 2*head) {
		return nil, fmt.Errorf("volumes of %d bytes: at least %d are needed: %w", size, max(MinSize, 2*head), fault.ErrInvalid)
	}
	blobs, err := list(from)
	if err != nil {
		return nil, err
	}
	volumes := split(blobs, size-head, size == 0)
	if len(volumes) > maxVolumes {
		return nil, fmt.Errorf("%d volumes, %d are allowed: %w", len(volumes), maxVolumes, fault.ErrTooLarge)
	}
	if err := w.clear(); err != nil {
		return nil, err
	}
	var names []string
	var sums bytes.Buffer
	for i, pieces := range volumes {
		sum, err := w.volume(ctx, header{version, exportOf(w.documents), i + 1, len(volumes)}, pieces)
		if err != nil {
			return nil, err
		}
		names = append(names, filepath.Join(dir, Name(i+1)))
		fmt.Fprintf(&sums, "%s  %s\n", sum, Name(i+1))
	}
	return names, WriteFile(filepath.Join(w.dir, SumsFile), func(f io.Writer) error {
		_, err := f.Write(sums.Bytes())
		return err
	})
}

// document is one of the layout's own documents.
type document struct {
	name string
	data []byte
}

// exportOf is what the volumes of one export have in common.
func exportOf(all []document) digest.Digest {
	digester := digest.SHA256.Digester()
	for _, d := range all {
		fmt.Fprintf(digester.Hash(), "%s %d\n", d.name, len(d.data))
		digester.Hash().Write(d.data)
	}
	return digester.Digest()
}

// list finds the blobs of a layout, sorted.
func list(from fs.FS) (out []piece, err error) {
	err = fs.WalkDir(from, ocispec.ImageBlobsDir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if _, ok := blobDigest(name); !ok {
			return nil // an unfinished one
		}
		info, err := e.Info()
		if err == nil {
			out = append(out, piece{name: name, size: info.Size(), whole: true})
		}
		return err
	})
	return out, err
}

// Damaged lists the blobs of a layout that do not match their digest, or that the medium cannot read. It tells how many of them it has read.
func Damaged(ctx context.Context, from fs.FS, tell func(done, all int, bytes int64)) (names []string, err error) {
	all, err := list(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	bytes := int64(0)
	for i, p := range all {
		ok, err := whole(ctx, from, p.name)
		if err != nil {
			return names, err
		}
		if !ok {
			names = append(names, p.name)
		}
		bytes += p.size
		tell(i+1, len(all), bytes)
	}
	return names, err
}

// whole reports whether a blob matches its digest. What is no file is not read: a pipe would wait for a writer.
func whole(ctx context.Context, from fs.FS, name string) (bool, error) {
	if info, err := fs.Lstat(from, name); err != nil || !info.Mode().IsRegular() {
		return err == nil, err
	}
	d, _ := blobDigest(name)
	f, err := from.Open(name)
	if err != nil {
		return false, err
	}
	sum := d.Verifier()
	_, err = io.Copy(sum, &until{ctx, f})
	if err = errors.Join(err, f.Close()); errors.Is(err, syscall.EIO) {
		return false, nil
	}
	return sum.Verified(), err
}

// blobDigest is what a blob's file has to be, by its name in the layout.
func blobDigest(name string) (digest.Digest, bool) {
	rest, ok := strings.CutPrefix(name, ocispec.ImageBlobsDir+"/")
	algorithm, encoded, _ := strings.Cut(rest, "/")
	d := digest.Digest(algorithm + ":" + encoded)
	return d, ok && d.Validate() == nil
}

// split puts pieces into volumes that have room for so many bytes each.
func split(all []piece, each int64, unlimited bool) [][]piece {
	volumes, left := [][]piece{nil}, each
	put := func(p piece) {
		volumes[len(volumes)-1] = append(volumes[len(volumes)-1], p)
		left -= room(p.size)
	}
	for _, p := range all {
		if unlimited || room(p.size) <= left {
			put(p)
			continue
		}
		if volumes[len(volumes)-1] != nil {
			volumes, left = append(volumes, nil), each
		}
		for room(p.size) > left {
			part := piece{name: p.name, offset: p.offset, size: (left - extendedRoom) / block * block}
			put(part)
			p.offset, p.size, p.whole = p.offset+part.size, p.size-part.size, false
			volumes, left = append(volumes, nil), each
		}
		put(p)
	}
	return volumes
}

// writer writes volumes into a folder.
type writer struct {
	from      fs.FS
	documents []document
	dir       string
}

// clear removes what would be taken for volumes of this export.
func (w *writer) clear() error {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".part"); name == SumsFile || Is(name) {
			if err := os.Remove(filepath.Join(w.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// volume writes one volume and returns its SHA-256.
func (w *writer) volume(ctx context.Context, h header, pieces []piece) (string, error) {
	var sum hash.Hash = sha256.New()
	head, err := json.Marshal(h)
	if err != nil {
		return "", err
	}
	err = WriteFile(filepath.Join(w.dir, Name(h.Number)), func(f io.Writer) error {
		t := tar.NewWriter(io.MultiWriter(f, sum))
		for _, d := range slices.Concat([]document{{HeaderFile, head}}, w.documents) {
			if err := put(t, d.name, int64(len(d.data)), bytes.NewReader(d.data)); err != nil {
				return err
			}
		}
		for _, p := range pieces {
			if err := w.piece(ctx, t, p); err != nil {
				return err
			}
		}
		return t.Close()
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

func put(t *tar.Writer, name string, size int64, from io.Reader) error {
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	n, err := io.Copy(t, io.LimitReader(from, size))
	if err == nil && n != size {
		err = fmt.Errorf("%s: %d bytes of %d: %w", name, n, size, fault.ErrDigestMismatch)
	}
	return err
}

func (w *writer) piece(ctx context.Context, t *tar.Writer, p piece) error {
	f, err := w.from.Open(p.name)
	if err != nil {
		return err
	}
	defer f.Close()
	if p.offset > 0 {
		seeker, ok := f.(io.Seeker)
		if !ok {
			return fmt.Errorf("%s: %w: no offset can be read", p.name, fault.ErrUnsupported)
		}
		if _, err := seeker.Seek(p.offset, io.SeekStart); err != nil {
			return err
		}
	}
	return put(t, p.entry(), p.size, &until{ctx, f})
}

// until reads while a context lasts.
type until struct {
	ctx context.Context
	r   io.Reader
}

// Read implements [io.Reader].
func (u *until) Read(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(b)
}

// WriteFile makes a file appear whole, for good, or not at all. The file is new: media that others have written may have a link in its
// place, to any file of this machine.
func WriteFile(name string, write func(io.Writer) error) error {
	part := name + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		_ = os.Remove(part) // the first error counts
		return err
	}
	return SyncFolder(filepath.Dir(name))
}

// SyncFolder makes the names in a folder durable, where the file system can: those of some sticks cannot.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
