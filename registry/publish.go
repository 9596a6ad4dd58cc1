package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// PushOptions configure a push.
type PushOptions struct {
	MountFrom []string        // repositories of the same registry (path without host) that may have blobs already
	Held      []digest.Digest // blobs of a manifest of this repository that was read a moment ago: their existence is not checked
	// Absent also checks whether the manifest existed before.
	Absent    bool
	BlobsOnly bool // the manifest is put later, under a tag
}

// Push pushes blobs and manifest of an artifact without a tag. It may be repeated after any interruption; existing
// content is not sent again, except blobs so small that a check costs as much. absent reports whether the manifest is known
// not to have existed; only with o.Absent.
func (r *Repository) Push(ctx context.Context, a *artifacts.Artifact, o PushOptions) (desc ocispec.Descriptor, absent bool, err error) {
	desc = ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	if err := checkArtifact(a); err != nil {
		return desc, false, r.fail(opPush, desc.Digest.String(), err)
	}
	absent, err = r.pushAll(ctx, desc, a, o)
	return desc, absent && o.Absent, err
}

func checkArtifact(a *artifacts.Artifact) error {
	if err := checkContent(a.Descriptor, a.Manifest); err != nil {
		return err
	}
	if len(a.Manifest) > MaxManifest {
		return fmt.Errorf("a manifest of %d bytes, %d are allowed: %w", len(a.Manifest), MaxManifest, fault.ErrTooLarge)
	}
	for _, b := range a.Blobs {
		if err := checkContent(b.Descriptor, b.Data); err != nil {
			return err
		}
	}
	return nil
}

// pushAll pushes blobs and manifest, and reports whether the manifest is known not to have existed, because one of its blobs
// did not. If the registry has lost a blob that was expected to exist, all of them are sent.
func (r *Repository) pushAll(ctx context.Context, desc ocispec.Descriptor, a *artifacts.Artifact, o PushOptions) (fresh bool, err error) {
	blobs := slices.DeleteFunc(slices.Clone(a.Blobs), func(b artifacts.Blob) bool { return slices.Contains(o.Held, b.Descriptor.Digest) })
	p, remote := r.place.(*remotePlace)
	tells := !remote || p.tellsMissing()
	if fresh, err = r.pushBlobs(ctx, blobs, o.MountFrom); err != nil || o.BlobsOnly {
		return false, err
	}
	if o.Absent && !tells {
		there, err := p.existsAt(p.reading(ctx, p.upstream()), p.upstream(), desc)
		if fresh = !there; err != nil {
			return false, r.fail("look for", desc.Digest.String(), err)
		}
	}
	err = r.PushManifest(ctx, desc, a.Manifest, "")
	if remote && (errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrInvalid)) {
		p.forgetExisting()
		if _, err := r.pushBlobs(ctx, a.Blobs, o.MountFrom); err != nil {
			return false, err
		}
		err = r.PushManifest(ctx, desc, a.Manifest, "")
	}
	return fresh, err
}

// pushBlobs reports whether one of the blobs did not exist.
func (r *Repository) pushBlobs(ctx context.Context, blobs []artifacts.Blob, from []string) (absent bool, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(r.concurrency, 1))
	var lacked atomic.Bool
	for _, b := range blobs {
		group.Go(func() error {
			lacks, err := r.bring(ctx, b, from)
			if lacks {
				lacked.Store(true)
			}
			return r.fail(opPushBlob, b.Descriptor.Digest.String(), err)
		})
	}
	err = group.Wait()
	return lacked.Load(), err
}

// bring pushes a blob in the cheapest way: it exists, it is mounted from another repository, or it is sent. It reports whether
// it did not exist.
func (r *Repository) bring(ctx context.Context, b artifacts.Blob, from []string) (absent bool, err error) {
	p, remote := r.place.(*remotePlace)
	if !remote || len(from) == 0 {
		return r.pushBlob(ctx, b.Descriptor, b.Data)
	}
	there, err := r.Upstream().exists(ctx, b.Descriptor) // a mirror may have a blob that the registry has lost
	if err != nil || there {
		return false, err
	}
	last := len(from) - 1
	i := slices.IndexFunc(from[:last], func(repository string) bool { return p.holds(ctx, repository, b.Descriptor) })
	if i < 0 {
		i = last
	}
	_, err = p.mount(ctx, b.Descriptor, from[i], func() ([]byte, error) { return b.Data, nil })
	return err == nil, err
}
