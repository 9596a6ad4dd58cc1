package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// hashChunk is how much of a blob is read through containerd's socket at a time.
const hashChunk = 1 << 20

// repair unpacks an image again from content on the device. It continues when ctx ends, so that a repair that takes longer than its
// caller may wait completes: the next call waits for the same one.
func (r *Store) repair(ctx context.Context, i workload.Image) (*Image, error) {
	var img *Image
	var err error
	done := make(chan struct{}) // closed when they are set
	r.background.Go(func() {
		defer close(done)
		var out any
		out, err, _ = r.repairs.Do(entryOf(i), func() (any, error) {
			unlock, ok := r.inProgress.Try(i.Name())
			if !ok {
				return nil, fmt.Errorf("it is being pulled: %w", failure.As(workload.ErrImageGone, fault.ErrTemporary))
			}
			defer unlock()
			return r.complete(r.life, i, nil, nil)
		})
		img, _ = out.(*Image)
	})
	select {
	case <-done:
		return img, err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("it is still being unpacked: %w", fault.ErrTemporary)
	}
}

// isVerified reports whether this process wrote or verified a digest.
func (r *Store) isVerified(digest string) bool {
	_, ok := r.verified.Load(digest)
	return ok
}

// Damaged reports whether a start may have failed because files of its image are missing or unreadable.
func Damaged(err error) bool {
	for _, sign := range []error{unix.EIO, unix.EUCLEAN} {
		if strings.Contains(err.Error(), sign.Error()) {
			return true
		}
	}
	return strings.Contains(err.Error(), "failed to mount rootfs")
}

// Invalidate has an image unpacked again before its next use, from the layers on the device where they are complete. False: this process
// unpacked it, so its files are correct.
func (r *Store) Invalidate(ctx context.Context, i workload.Image) bool {
	img, err := r.local(ctx, i)
	if err != nil || !slices.ContainsFunc(img.chain, func(id digest.Digest) bool { return !r.isVerified(id.String()) }) {
		return false
	}
	r.log.Warn("the unpacked files of an image may be damaged; it will be unpacked again", "image", i.Name())
	return r.o.Journal.Forget(entryOf(i)) == nil
}

// dropDamaged removes a blob whose bytes do not match its digest, so that it is downloaded again.
func (r *Store) dropDamaged(ctx context.Context, d digest.Digest) error {
	unlock, err := r.blobs.Lock(ctx, d.String())
	if err != nil {
		return err
	}
	defer unlock()
	if r.isVerified(d.String()) {
		return nil
	}
	store := r.client.ContentStore()
	info, err := store.Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return failure.Classify(err)
	}
	good, err := r.hashes(ctx, info)
	if err != nil {
		return fmt.Errorf("verify blob %s: %w", d, failure.Classify(err))
	}
	if good {
		r.verified.Store(d.String(), true)
		return nil
	}
	r.log.Warn("dropping a damaged blob", "blob", d)
	if err := store.Delete(ctx, d); err != nil && !errdefs.IsNotFound(err) {
		return failure.Classify(err)
	}
	// containerd's garbage collection removes the file. Until then containerd treats a new copy as a duplicate of the damaged one.
	return r.collectNow(ctx)
}

func (r *Store) hashes(ctx context.Context, info content.Info) (bool, error) {
	if !info.Digest.Algorithm().Available() {
		return false, fmt.Errorf("algorithm of %s: %w", info.Digest, fault.ErrUnsupported)
	}
	ra, err := r.client.ContentStore().ReaderAt(ctx, ocispec.Descriptor{Digest: info.Digest, Size: info.Size})
	if errdefs.IsNotFound(err) {
		return false, nil // recorded, but its file is missing
	}
	if err != nil {
		return false, err
	}
	defer ra.Close()
	v := info.Digest.Verifier()
	_, err = io.CopyBuffer(v, io.NewSectionReader(ra, 0, ra.Size()), make([]byte, hashChunk))
	if errdefs.IsNotFound(err) {
		return false, nil // containerd 1.6 opens the file only now, and does not sync its folder
	}
	if err != nil {
		return false, err
	}
	return v.Verified(), nil
}

// dropUnverified verifies the layers of an image that is not durable in the journal, and removes their unpacked snapshots, except
// those of a durable image or of this process.
func (r *Store) dropUnverified(ctx context.Context, i workload.Image, img *Image) error {
	for _, l := range img.manifest.Layers {
		if err := r.dropDamaged(ctx, l.Digest); err != nil {
			return err
		}
	}
	return r.exclusively(ctx, func() error {
		if err := r.dropUnverifiedLayers(ctx, i, img); err != nil {
			return err
		}
		for _, id := range img.chain {
			r.verified.Store(id.String(), true) // snapshots that appear from now on are created by this process
		}
		return nil
	})
}

// dropUnverifiedLayers removes the snapshots of an image that are neither durable nor verified.
func (r *Store) dropUnverifiedLayers(ctx context.Context, i workload.Image, img *Image) error {
	suspect := map[string]bool{}
	for _, id := range img.chain {
		if r.isVerified(id.String()) {
			continue
		}
		_, err := r.snapshots().Stat(ctx, id.String())
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return failure.Classify(err)
		}
		suspect[id.String()] = true
	}
	if len(suspect) == 0 {
		return nil
	}
	durable, err := r.durableChains(ctx, i)
	if err != nil {
		return err
	}
	for id := range durable {
		delete(suspect, id)
	}
	return r.dropSnapshots(ctx, suspect, durable)
}

// durableChains are the snapshots of all durable images except one.
func (r *Store) durableChains(ctx context.Context, but workload.Image) (map[string]bool, error) {
	chains := map[string]bool{}
	have, err := r.client.ImageService().List(ctx, owned.By(r.o.Device))
	if err != nil {
		return nil, failure.Classify(err)
	}
	for _, h := range have {
		repository, _, ok := strings.Cut(h.Name, "@")
		if !ok {
			continue
		}
		for _, platform := range slices.Compact([]string{"", but.Platform}) {
			other := workload.Image{Repository: repository, Digest: h.Target.Digest, Platform: platform}
			durable, err := r.o.Journal.IsDurable(entryOf(other))
			if err != nil {
				return nil, err
			}
			if !durable || entryOf(other) == entryOf(but) {
				continue
			}
			img, err := r.local(ctx, other)
			if err != nil {
				r.log.Warn("a durable image cannot be read", "image", h.Name, "error", err)
				continue
			}
			for _, id := range img.chain {
				chains[id.String()] = true
			}
		}
	}
	return chains, nil
}

// dropSnapshots removes the suspect snapshots and those on top of them. A snapshot that a container uses stays, with a warning: a
// running container is better proof than a check.
func (r *Store) dropSnapshots(ctx context.Context, suspect, durable map[string]bool) error {
	children := map[string][]snapshots.Info{}
	kinds := map[string]snapshots.Info{}
	err := r.snapshots().Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		children[s.Parent] = append(children[s.Parent], s)
		kinds[s.Name] = s
		return nil
	})
	if err != nil {
		return failure.Classify(err)
	}
	gone := map[string]bool{}
	var drop func(s snapshots.Info) (bool, error)
	drop = func(s snapshots.Info) (bool, error) {
		if gone[s.Name] {
			return true, nil
		}
		half := strings.HasPrefix(s.Name, snapshots.UnpackKeyPrefix+"-") && strings.Contains(s.Name, " ") // a layer that an earlier process was unpacking
		if durable[s.Name] || s.Kind != snapshots.KindCommitted && !half {
			return false, nil
		}
		free := true
		for _, c := range children[s.Name] {
			ok, err := drop(c)
			if err != nil {
				return false, err
			}
			free = free && ok
		}
		if !free {
			r.log.Warn("an unpacked layer is in use and cannot be unpacked again", "snapshot", s.Name)
			return false, nil
		}
		if err := r.snapshots().Remove(ctx, s.Name); err != nil && !errdefs.IsNotFound(err) {
			return false, failure.Classify(err)
		}
		gone[s.Name] = true
		return true, nil
	}
	for name := range suspect {
		if _, err := drop(kinds[name]); err != nil {
			return fmt.Errorf("remove snapshot %s: %w", name, err)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return r.collectNow(ctx) // frees the space before it is needed again
}
