// Package release publishes to a registry: components with locked images, deployments with pinned
// components, and the generations of a chain in their order.
//
// [Publish] defines the order in which a registry gets an artifact, its signature and its tags; with a [Precondition] it adds a
// generation to a chain, so that of two publishers at most one succeeds. [Chain] reads a chain: its end, and unacceptable
// generations. [PlanPrune] finds the generations that may be removed. The same input gives the same artifact, byte for byte.
package release

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
)

// lookups at a time, of images or components.
const concurrency = 4

// Images resolves image references in the form of Compose files.
type Images interface {
	LockImage(ctx context.Context, reference string) (artifacts.LockedImage, error)
}

// Components reads components by repository ("host/path").
type Components interface {
	Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error)
	Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error)
}

// Repository is the repository of the states.
type Repository interface {
	Name() string
	Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error)
	Tagged(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error)
	Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error)
	Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error)
	Tags(ctx context.Context) ([]string, error)
	TagsWithPrefix(ctx context.Context, prefix string) ([]string, error)
}

// Pack packs the Compose project in fsys with a lock of its images, in the form of compose.yaml. It sets
// o.Lock. If platforms are given ("linux/arm64"), every image must support each of them, and the lock has no
// others.
func Pack(ctx context.Context, from Images, fsys fs.FS, images []string, o artifacts.ComponentOptions, only ...string) (*artifacts.Artifact, *artifacts.Lock, error) {
	// Errors of the project are reported before any request about images.
	o.Lock = &artifacts.Lock{}
	if _, err := artifacts.PackComponent(fsys, o); err != nil {
		return nil, nil, err
	}
	lock := &artifacts.Lock{Images: make([]artifacts.LockedImage, len(images))}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i, reference := range images {
		g.Go(func() error {
			locked, err := from.LockImage(ctx, reference)
			if err != nil {
				return fmt.Errorf("lock %s: %w", reference, err)
			}
			lock.Images[i] = locked
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	if err := lock.Only(only); err != nil {
		return nil, nil, err
	}
	o.Lock = lock
	a, err := artifacts.PackComponent(fsys, o)
	return a, lock, err
}
