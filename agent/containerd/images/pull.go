package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/locks"
)

// labelImage names the image that a lease is for.
const labelImage = owned.LabelPrefix + "image"

// Pull makes an image's content and its unpacked layers present and durable, from the registry's endpoints in order. Partial layers
// survive failures, restarts and kills, and are continued. A durable image needs no request. progress counts compressed
// bytes of this platform; it is called from several goroutines, but not concurrently.
func (r *Store) Pull(ctx context.Context, i workload.Image, progress func(done, total int64)) (workload.ImageInfo, error) {
	img, err := r.pull(ctx, i, progress)
	if err != nil {
		return workload.ImageInfo{}, fmt.Errorf("pull image %s: %w", i.Name(), failure.Classify(err))
	}
	return workload.ImageInfo{Health: img.health, Volumes: slices.Sorted(maps.Keys(img.Config.Config.Volumes))}, nil
}

func (r *Store) pull(ctx context.Context, i workload.Image, progress func(done, total int64)) (*Image, error) {
	if err := i.Digest.Validate(); err != nil {
		return nil, failure.As(fault.ErrInvalid, err)
	}
	if img, err := r.present(ctx, i); err != nil || img != nil {
		return img, err
	}
	if r.o.Endpoints == nil {
		return nil, fmt.Errorf("no registry endpoints are configured: %w", fault.ErrInvalid)
	}
	endpoints, err := r.o.Endpoints(i.Repository)
	if err != nil {
		return nil, err
	}
	if len(endpoints) == 0 {
		return nil, fmt.Errorf("no endpoint serves %s: %w", i.Repository, fault.ErrNotFound)
	}
	unlock, err := r.inProgress.Lock(ctx, i.Name())
	if err != nil {
		return nil, err
	}
	defer unlock()
	return r.complete(ctx, i, endpoints, progress)
}

// Ready returns an image that is safe to run. If it is not durable in the journal, it is repaired from content on the device.
// workload.ErrImageGone: pull it.
func (r *Store) Ready(ctx context.Context, i workload.Image) (*Image, error) {
	if img, err := r.present(ctx, i); err != nil || img != nil {
		return img, err
	}
	img, err := r.repair(ctx, i)
	if errors.Is(err, fault.ErrNotFound) {
		err = failure.As(workload.ErrImageGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Name(), err)
	}
	return img, nil
}

// present returns an image that is durable and complete, else nil.
func (r *Store) present(ctx context.Context, i workload.Image) (*Image, error) {
	durable, err := r.o.Journal.IsDurable(entryOf(i))
	if err != nil || !durable {
		return nil, err
	}
	img, err := r.local(ctx, i)
	if err == nil && img.Top() != "" {
		_, err = r.snapshots().Stat(ctx, img.Top())
		err = failure.Classify(err)
	}
	switch {
	case err == nil:
		return img, nil
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrUnfit), ctx.Err() != nil:
		return nil, err
	}
	// Another program removed or damaged it.
	r.log.Warn("a durable image is not complete any more", "image", i.Name(), "error", err)
	r.cache.Clear()
	return nil, r.o.Journal.Forget(entryOf(i))
}

// complete downloads missing content, verifies content of an earlier process, unpacks, and makes the image durable. The caller holds
// the image's lock of r.inProgress.
func (r *Store) complete(ctx context.Context, i workload.Image, endpoints []Endpoint, progress func(done, total int64)) (*Image, error) {
	if img, err := r.present(ctx, i); err != nil || img != nil { // another call was faster
		return img, err
	}
	var lease leases.Lease
	err := r.exclusively(ctx, func() (err error) { // a collection that started before the lock was taken ends first
		lease, err = r.lease(ctx, i)
		return err
	})
	if err != nil {
		return nil, err
	}
	img, err := r.completeLeased(leases.WithLease(ctx, lease.ID), i, endpoints, progress)
	if failure.DiskFull(err) || r.failed.record(i.Name(), err, r.o.Now()) {
		// Otherwise our lease would keep partial bytes that are useless or do not fit.
		ctx, cancel := deadline.ForCleanup(ctx)
		defer cancel()
		if derr := r.client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete); derr != nil {
			r.log.Warn("drop the partial download of an image", "image", i.Name(), "error", derr)
		}
	}
	return img, err
}

// exclusively runs do without another collection or removal of snapshots. It is never held during requests to a
// registry.
func (r *Store) exclusively(ctx context.Context, do func() error) error {
	unlock, err := r.turn.Lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

func (r *Store) completeLeased(ctx context.Context, i workload.Image, endpoints []Endpoint, progress func(done, total int64)) (*Image, error) {
	if err := r.failed.errorOf(i.Name(), r.o.Now()); err != nil {
		return nil, err
	}
	match, err := platform(i)
	if err != nil {
		return nil, err
	}
	f := &fetcher{r: r, ref: i.Name(), endpoints: endpoints, progress: progress}
	img, err := readImage(ctx, i.Digest, match, f.document)
	if err != nil {
		return nil, err
	}
	repair := endpoints == nil // of an image that is about to run: it may use the reserve
	if !repair {
		if err := r.makeRoom(ctx, i, img); err != nil {
			return nil, err
		}
	}
	disk, err := r.openSnapshotSync(ctx)
	if err != nil {
		return nil, err
	}
	defer disk.close()
	if err := r.o.Journal.Unpacking(entryOf(i)); err != nil {
		return nil, err
	}
	if err := r.dropUnverified(ctx, i, img); err != nil {
		return nil, err
	}
	f.expect(img.size())
	watched, stop := r.watch(ctx, img, !repair)
	synced := syncInBackground(watched, f, disk)
	err = failure.ClassifyUnpack(r.unpack(watched, f, img))
	synced()
	if serr := stop(); serr != nil {
		err = serr
	}
	if err != nil {
		return nil, err
	}
	if err := r.createRecord(ctx, i, img); err != nil {
		return nil, err
	}
	if err := disk.sync(); err != nil {
		return nil, err
	}
	if err := r.o.Journal.Durable(entryOf(i)); err != nil {
		return nil, err
	}
	r.keep.add(i.Name())
	return img, nil
}

// unpack downloads the layers and unpacks them as they arrive.
func (r *Store) unpack(ctx context.Context, f *fetcher, img *Image) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	store := r.client.ContentStore()
	caps, err := r.o.Host.Capabilities(ctx)
	if err != nil {
		return err
	}
	opts := []unpack.UnpackerOpt{
		unpack.WithUnpackPlatform(unpack.Platform{
			SnapshotterKey:          r.o.Snapshotter,
			Snapshotter:             r.snapshots(),
			Applier:                 r.client.DiffService(),
			SnapshotterCapabilities: caps,
		}),
		unpack.WithLimiter(semaphore.NewWeighted(maxDownloads)),
		unpack.WithFetchAllContent(), // a repair needs the blobs; it also makes Wait wait for the downloads
	}
	if len(f.endpoints) > 0 {
		opts = append(opts, unpack.WithDuplicationSuppressor(shared{&r.layers})) // two images may share a layer
	}
	if slices.Contains(caps, snapshots.RebaseCap) {
		opts = append(opts, unpack.WithUnpackLimiter(semaphore.NewWeighted(maxUnpacks)))
	}
	u, err := unpack.NewUnpacker(ctx, store, opts...)
	if err != nil {
		return failure.Classify(err)
	}
	walk := images.Handlers(
		images.HandlerFunc(f.handle),
		images.SetChildrenMappedLabels(store, images.HandlerFunc(img.children), keepChild), // keeps children with their parents
	)
	err = images.Dispatch(ctx, u.Unpack(walk), nil, img.root)
	if err != nil {
		cancel()
	}
	done, werr := u.Wait()
	switch {
	case err != nil:
		return err
	case werr != nil:
		return werr
	case done.Unpacks == 0 && len(img.chain) > 0:
		return fmt.Errorf("containerd has no way to unpack it: %w", fault.ErrUnsupported)
	}
	return nil
}

// createRecord creates the image's record, which keeps its content, and deletes the lease, which also keeps content of failed attempts.
func (r *Store) createRecord(ctx context.Context, i workload.Image, img *Image) error {
	store := r.client.ImageService()
	want := images.Image{Name: i.Name(), Target: img.root, Labels: map[string]string{owned.LabelDevice: r.o.Device}}
	_, err := store.Create(ctx, want)
	if errdefs.IsAlreadyExists(err) {
		have, err := store.Get(ctx, i.Name())
		if err != nil {
			return failure.Classify(err)
		}
		if have.Labels[owned.LabelDevice] != r.o.Device {
			return nil // another program's, which may remove it: our lease stays
		}
	} else if err != nil {
		return failure.Classify(err)
	}
	err = r.client.LeasesService().Delete(ctx, leases.Lease{ID: leaseID(r.o.Device, i.Name())})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return failure.Classify(err)
}

// entryOf is an image's entry in the journal: one index may be present for several platforms. The entries of other platforms than the
// device's are forgotten with it.
func entryOf(i workload.Image) string {
	if i.Platform == "" {
		return i.Name()
	}
	return i.Name() + " " + i.Platform
}

// keepChild names the label by which a document keeps its children. An index that is present for several platforms keeps a manifest
// for each.
func keepChild(d ocispec.Descriptor) []string {
	if images.IsManifestType(d.MediaType) || images.IsIndexType(d.MediaType) {
		return []string{"containerd.io/gc.ref.content.m." + d.Digest.Encoded()[:16]}
	}
	return images.ChildGCLabels(d)
}

// lease returns the lease that keeps the bytes of an incomplete image.
func (r *Store) lease(ctx context.Context, i workload.Image) (leases.Lease, error) {
	id := leaseID(r.o.Device, i.Name())
	l, err := r.client.LeasesService().Create(ctx, leases.WithID(id),
		leases.WithLabels(map[string]string{owned.LabelDevice: r.o.Device, labelImage: i.Name()}))
	if errdefs.IsAlreadyExists(err) {
		return leases.Lease{ID: id}, nil
	}
	return l, failure.Classify(err)
}

func leaseID(device, image string) string {
	h := sha256.Sum256([]byte(device + "\x00" + image))
	return "longshore-pull-" + hex.EncodeToString(h[:16])
}

// shared is a table of locks for containerd's unpacker.
type shared struct{ *locks.Table }

func (s shared) Lock(ctx context.Context, name string) error {
	_, err := s.Table.Lock(ctx, name)
	return err
}
