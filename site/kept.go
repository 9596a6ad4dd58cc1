package site

import (
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/registry/cache"
)

const (
	maxKept = 1 << 20             // bytes of a blob that is kept
	keptAge = 30 * 24 * time.Hour // since it was last used
)

// kept are small blobs of earlier runs. The zero value stores nothing.
type kept struct {
	dir cache.Folder
	now time.Time
}

// blob reads a small blob from the directory, or with read, and then stores it. A file whose bytes
// do not match the digest is ignored. Deployments may contain confidential values: only their user can read the files.
func (k kept) blob(desc ocispec.Descriptor, read func() ([]byte, error)) ([]byte, error) {
	if k.dir == "" || desc.Size > maxKept || desc.Digest.Validate() != nil || desc.Digest.Algorithm() != digest.SHA256 {
		return read()
	}
	name := desc.Digest.Encoded()
	if data, err := k.dir.Read(name, maxKept); err == nil && digest.FromBytes(data) == desc.Digest {
		k.dir.Use(name, k.now)
		return data, nil
	}
	data, err := read()
	if err == nil {
		k.dir.Keep(name, data)
	}
	return data, err
}
