package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// receive writes a blob to a partial file, from where an earlier run stopped, and renames it when its digest matches. It reports
// whether there was a partial file; one with another digest is removed.
func (p *layoutPlace) receive(ctx context.Context, desc ocispec.Descriptor, open opener) (resumed bool, err error) {
	file := p.blobPath(desc.Digest)
	part := filepath.Join(p.path, ingestFolder, desc.Digest.Encoded()+".part")
	for _, folder := range []string{filepath.Dir(file), filepath.Dir(part)} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return false, err
		}
	}
	if info, err := os.Lstat(part); err == nil && !info.Mode().IsRegular() { // a link that was put on the media
		if err := os.Remove(part); err != nil {
			return false, err
		}
	}
	f, err := openRegular(part, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return false, err
	}
	defer f.Close()
	hash := desc.Digest.Algorithm().Hash()
	off, err := io.Copy(hash, io.LimitReader(f, desc.Size+1))
	if err != nil {
		return false, err
	}
	if off < desc.Size {
		content, err := open(ctx, off)
		if err != nil {
			return off > 0, err
		}
		n, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(content, desc.Size-off))
		if err = errors.Join(err, content.Close()); err != nil {
			return off > 0, err
		}
		if off+n < desc.Size {
			return off > 0, fmt.Errorf("%d bytes of %d: %w", off+n, desc.Size, fault.ErrTemporary)
		}
	}
	if off > desc.Size || fmt.Sprintf("%x", hash.Sum(nil)) != desc.Digest.Encoded() {
		return off > 0, errors.Join(fmt.Errorf("%d bytes with another digest: %w", desc.Size, fault.ErrDigestMismatch), os.Remove(part))
	}
	if err := errors.Join(f.Chmod(0o444), f.Sync()); err != nil { // as oras-go has its files
		return off > 0, errors.Join(err, os.Remove(part)) // memory may have bytes that the disk does not have, so the next run could accept it
	}
	if err := os.Rename(part, file); err != nil {
		return off > 0, err
	}
	return off > 0, syncFolder(filepath.Dir(file))
}
