package artifacts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// entry is one directory or regular file of an archive, or (packing only) a symbolic link.
type entry struct {
	name string // clean, without a leading "./" or a trailing "/"
	dir  bool
	link string // target of a symbolic link
	exec bool
	data []byte
}

// Compressors are kept from one archive to the next: each needs a megabyte, and who packs ten thousand states would
// spend more time on tidying memory than on packing. The zero value is ready, and safe for concurrent use.
type Compressors struct{ idle sync.Pool }

// get takes a compressor; nil Compressors keep none.
func (c *Compressors) get(out io.Writer) (z *gzip.Writer, done func()) {
	if c == nil {
		return gzip.NewWriter(out), func() {}
	}
	z, ok := c.idle.Get().(*gzip.Writer)
	if !ok {
		z = gzip.NewWriter(out)
	}
	z.Reset(out)
	return z, func() { c.idle.Put(z) }
}

// writeTarball makes a tar+gzip of entries in their order: no times, no owners, two modes, no gzip name. from may be nil.
func writeTarball(entries []entry, from *Compressors) ([]byte, error) {
	var out bytes.Buffer
	z, done := from.get(&out)
	defer done()
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644, Size: int64(len(e.data)), ModTime: time.Unix(0, 0)}
		switch {
		case e.dir:
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, e.name+"/", 0o755
		case e.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		case e.exec:
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", e.name, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, fmt.Errorf("pack %s: %w", e.name, err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return nil, fmt.Errorf("pack archive: %w", err)
	}
	if out.Len() > MaxArchive {
		return nil, fmt.Errorf("pack archive: %d bytes, more than %d: %w", out.Len(), MaxArchive, fault.ErrTooLarge)
	}
	return out.Bytes(), nil
}

// readTarball unpacks a tar+gzip into memory and refuses whatever would not be safe to extract. Links to files become
// copies; the only mode that is kept is "executable".
func readTarball(data []byte) ([]entry, error) {
	if len(data) > MaxArchive {
		return nil, fmt.Errorf("%d bytes, more than %d: %w", len(data), MaxArchive, fault.ErrTooLarge)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("not gzip: %w: %w", fault.ErrInvalid, err)
	}
	// Headers count as well: nothing that leaves the decompressor escapes the limit.
	limited := &io.LimitedReader{R: z, N: MaxUnpacked + MaxEntries*4096}
	u := &unpacker{names: make(map[string]int)}
	r := tar.NewReader(limited)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && limited.N > 0 {
			break
		}
		if err != nil {
			return nil, readFault(err, limited)
		}
		if err := u.add(h, r); err != nil {
			if errors.Is(err, errRead) {
				return nil, readFault(err, limited)
			}
			return nil, err
		}
	}
	if err := onlyPadding(limited); err != nil {
		return nil, readFault(err, limited)
	}
	if err := u.resolve(); err != nil {
		return nil, err
	}
	return u.entries, nil
}

// errRead marks errors of the stream, in contrast to faults of what it says.
var errRead = errors.New("read archive")

func readFault(err error, limited *io.LimitedReader) error {
	if limited.N <= 0 {
		return fmt.Errorf("more than %d bytes unpacked: %w", MaxUnpacked, fault.ErrTooLarge)
	}
	return fmt.Errorf("damaged or truncated: %w: %w", fault.ErrInvalid, err)
}

// onlyPadding reads to the end, which checks gzip's sum, and refuses data that hides behind the archive.
func onlyPadding(r *io.LimitedReader) error {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return errors.New("data after the end of the archive")
		}
		if errors.Is(err, io.EOF) && r.N > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

type unpacker struct {
	entries []entry
	links   []link
	names   map[string]int // index in entries, -1 for links
	size    int64
}

// link is not resolved before all entries are known.
type link struct{ name, target string }

func (u *unpacker) add(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader { // git archive writes one; it names nothing
		return nil
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if name == "." && h.Typeflag == tar.TypeDir {
		return nil
	}
	if len(u.names) >= MaxEntries {
		return fmt.Errorf("more than %d entries: %w", MaxEntries, fault.ErrTooLarge)
	}
	if _, ok := u.names[name]; ok || name == "." {
		return fmt.Errorf("entry %q is there twice: %w", h.Name, fault.ErrInvalid)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		u.names[name] = len(u.entries)
		u.entries = append(u.entries, entry{name: name, dir: true})
	case tar.TypeReg:
		if h.Size > MaxUnpacked-u.size {
			return fmt.Errorf("more than %d bytes unpacked: %w", MaxUnpacked, fault.ErrTooLarge)
		}
		data, err := io.ReadAll(io.LimitReader(r, h.Size)) // grows as bytes come, whatever the header claims
		if err != nil || int64(len(data)) != h.Size {
			return fmt.Errorf("%w: %w", errRead, errors.Join(err, io.ErrUnexpectedEOF))
		}
		u.size += h.Size
		u.names[name] = len(u.entries)
		u.entries = append(u.entries, entry{name: name, data: data, exec: h.Mode&0o111 != 0})
	case tar.TypeSymlink:
		if path.IsAbs(h.Linkname) {
			return fmt.Errorf("entry %q links to %q, an absolute path: %w", h.Name, h.Linkname, fault.ErrInvalid)
		}
		u.names[name] = -1
		u.links = append(u.links, link{name, path.Join(path.Dir(name), h.Linkname)})
	case tar.TypeLink:
		target, err := cleanName(h.Linkname)
		if err != nil {
			return err
		}
		u.names[name] = -1
		u.links = append(u.links, link{name, target})
	default:
		return fmt.Errorf("entry %q is neither file nor directory nor link (tar type %q): %w", h.Name, h.Typeflag, fault.ErrInvalid)
	}
	return nil
}

// cleanName takes "./" off and refuses names that could mean another place.
func cleanName(name string) (string, error) {
	clean := strings.TrimSuffix(name, "/")
	for strings.HasPrefix(clean, "./") {
		clean = strings.TrimPrefix(clean, "./")
	}
	if !fs.ValidPath(clean) || strings.ContainsRune(clean, 0) {
		return "", fmt.Errorf("entry %q is no safe relative path: %w", name, fault.ErrInvalid)
	}
	return clean, nil
}

// resolve turns links into copies of the files that they lead to, and checks that no file is used as a directory.
func (u *unpacker) resolve() error {
	targets := make(map[string]string, len(u.links))
	for _, l := range u.links {
		targets[l.name] = l.target
	}
	for _, l := range u.links {
		at, hops := l.target, 0
		for next, ok := targets[at]; ok && hops < 8; next, ok = targets[at] {
			at, hops = next, hops+1
		}
		i, ok := u.names[at]
		if top, _, _ := strings.Cut(l.name, "/"); !ok || i < 0 || !strings.HasPrefix(at, top+"/") && strings.Contains(l.name, "/") {
			return fmt.Errorf("entry %q links to %q, which is not in the archive's directory: %w", l.name, l.target, fault.ErrInvalid)
		}
		if u.entries[i].dir {
			return fmt.Errorf("entry %q links to the directory %q; only links to files are possible: %w", l.name, l.target, fault.ErrUnsupported)
		}
		e := u.entries[i]
		if u.size += int64(len(e.data)); u.size > MaxUnpacked {
			return fmt.Errorf("more than %d bytes unpacked: %w", MaxUnpacked, fault.ErrTooLarge)
		}
		u.entries = append(u.entries, entry{name: l.name, data: e.data, exec: e.exec})
	}
	for name := range u.names {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if i, ok := u.names[dir]; ok && (i < 0 || !u.entries[i].dir) {
				return fmt.Errorf("entry %q is inside of %q, which is no directory: %w", name, dir, fault.ErrInvalid)
			}
		}
	}
	return nil
}
