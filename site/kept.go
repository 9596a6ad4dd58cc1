package site

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/registry"
)

const (
	maxKept = 1 << 20             // bytes of a blob that is kept
	keptAge = 30 * 24 * time.Hour // since it was last used
)

// kept is a directory of small blobs. The zero value keeps nothing.
type kept struct {
	dir string
	now time.Time
}

// blob reads a small blob from the directory, or from the repository and keeps it. A file whose bytes
// do not have the digest counts as none. Deployments may hold what is not for everybody: the files are for their user alone.
func (k kept) blob(ctx context.Context, repo *registry.Repository, desc ocispec.Descriptor) ([]byte, error) {
	if k.dir == "" || desc.Size > maxKept || desc.Digest.Validate() != nil || desc.Digest.Algorithm() != digest.SHA256 {
		return repo.Blob(ctx, desc, artifacts.MaxArchive)
	}
	file := filepath.Join(k.dir, desc.Digest.Encoded())
	if data, err := bounded.File(os.Open, file, maxKept); err == nil && digest.FromBytes(data) == desc.Digest {
		_ = os.Chtimes(file, k.now, k.now) // a file that looks old is read again
		return data, nil
	}
	data, err := repo.Blob(ctx, desc, artifacts.MaxArchive)
	if err == nil {
		keep(file, data)
	}
	return data, err
}

// keep writes a file for the next run, which does without where that fails.
func keep(file string, data []byte) {
	dir := filepath.Dir(file)
	if os.MkdirAll(dir, 0o700) != nil {
		return
	}
	f, err := os.CreateTemp(dir, "new-*") // for its user alone
	if err != nil {
		return
	}
	_, err = f.Write(data)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // removeKept removes it later
	}
}

// removeKept removes what was not used since a time.
func removeKept(dir string, since time.Time) {
	if dir == "" {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().Before(since) {
			_ = os.Remove(filepath.Join(dir, e.Name())) // the next run tries again
		}
	}
}
