package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// syncStep is how many bytes arrive between two syncs of a pull in progress.
	syncStep = 24 << 20
	// syncEvery is how often they are counted.
	syncEvery = 20 * time.Millisecond
)

// labelImage names the image that a lease is for.
const labelImage = labelPrefix + "image"

// Pull makes an image's content and its unpacked layers present and durable, from the registry's endpoints in order.
// Partial layers survive failures, restarts and kills, and are continued. An image that is durable already costs no
// request at all. progress counts compressed bytes of this platform; it is called from several goroutines, never at once.
func (r *Runtime) Pull(ctx context.Context, i workload.Image, progress func(done, total int64)) error {
	ctx = r.in(ctx)
	err := func() error {
		if err := i.Digest.Validate(); err != nil {
			return as(fault.ErrInvalid, err)
		}
		if img, err := r.present(ctx, i); err != nil || img != nil {
			return err
		}
		if r.o.Endpoints == nil {
			return fmt.Errorf("no registry endpoints are configured: %w", fault.ErrInvalid)
		}
		host, _, _ := strings.Cut(i.Repository, "/")
		endpoints, err := r.o.Endpoints(host)
		if err != nil {
			return err
		}
		if len(endpoints) == 0 {
			return fmt.Errorf("no endpoint serves %s: %w", host, fault.ErrNotFound)
		}
		_, err = r.settle(ctx, i, endpoints, progress)
		return err
	}()
	if err != nil {
		return fmt.Errorf("pull image %s: %w", i.Name(), classify(err))
	}
	return nil
}

// ready returns an image that is safe to run, repairing it from what is on the device when the journal does not call it
// durable. fault.ErrNotFound: pull it.
func (r *Runtime) ready(ctx context.Context, i workload.Image) (*image, error) {
	if img, err := r.present(ctx, i); err != nil || img != nil {
		return img, err
	}
	img, err := r.settle(ctx, i, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Name(), err)
	}
	return img, nil
}

// Image tells what an image says about itself.
func (r *Runtime) Image(ctx context.Context, i workload.Image) (workload.ImageInfo, error) {
	ctx = r.in(ctx)
	img, err := r.ready(ctx, i)
	if err != nil {
		return workload.ImageInfo{}, classify(err)
	}
	return workload.ImageInfo{
		Health: img.health, Volumes: slices.Sorted(maps.Keys(img.config.Config.Volumes)), Unpacked: r.unpacked(ctx, img),
	}, nil
}

// present returns an image that is durable and complete, else nil.
func (r *Runtime) present(ctx context.Context, i workload.Image) (*image, error) {
	durable, err := r.o.Journal.IsDurable(entryOf(i))
	if err != nil || !durable {
		return nil, err
	}
	img, err := r.local(ctx, i)
	if err == nil && img.top() != "" {
		_, err = r.snapshots().Stat(ctx, img.top())
		err = classify(err)
	}
	switch {
	case err == nil:
		return img, nil
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrUnfit), ctx.Err() != nil:
		return nil, err
	}
	// Somebody removed or damaged it behind our back.
	r.log.Warn("a durable image is not complete any more", "image", i.Name(), "error", err)
	r.images.clear()
	return nil, r.o.Journal.Forget(entryOf(i))
}

// settle fetches what is missing, verifies what an earlier process left, unpacks, and makes it durable.
func (r *Runtime) settle(ctx context.Context, i workload.Image, endpoints []Endpoint, progress func(done, total int64)) (*image, error) {
	select {
	case r.pulling <- struct{}{}:
		defer func() { <-r.pulling }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if img, err := r.present(ctx, i); err != nil || img != nil { // another call was faster
		return img, err
	}
	lease, err := r.lease(ctx, i)
	if err != nil {
		return nil, err
	}
	img, err := r.settleLeased(leases.WithLease(ctx, lease.ID), i, endpoints, progress)
	if diskFull(err) || r.condemned.judge(i.Name(), err, r.o.Now()) {
		// Our lease would keep the partial bytes for ever on a disk that has no room for the rest, or for nothing.
		ctx, cancel := after(ctx)
		defer cancel()
		if derr := r.client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete); derr != nil {
			r.log.Warn("drop the bytes of an image that cannot be had", "image", i.Name(), "error", derr)
		}
	}
	return img, err
}

func (r *Runtime) settleLeased(ctx context.Context, i workload.Image, endpoints []Endpoint, progress func(done, total int64)) (*image, error) {
	if err := r.condemned.of(i.Name(), r.o.Now()); err != nil {
		return nil, err
	}
	match, err := platform(i)
	if err != nil {
		return nil, err
	}
	f, err := r.newFetcher(ctx, i.Name(), endpoints, progress)
	if err != nil {
		return nil, err
	}
	img, err := readImage(ctx, i.Digest, match, f.document)
	if err != nil {
		return nil, err
	}
	repair := endpoints == nil // of what is to run: it may have the reserve
	if !repair {
		if err := r.makeRoom(ctx, i, img); err != nil {
			return nil, err
		}
	}
	if err := r.o.Journal.Unpacking(entryOf(i)); err != nil {
		return nil, err
	}
	if err := r.distrust(ctx, i, img); err != nil {
		return nil, err
	}
	f.expect(img.size())
	watched, stop := r.watch(ctx, img, !repair)
	synced := r.syncAlong(watched, f)
	err = classifyUnpack(r.unpack(watched, f, img))
	synced()
	if serr := stop(); serr != nil {
		err = serr
	}
	if err != nil {
		return nil, err
	}
	if err := r.pin(ctx, i, img); err != nil {
		return nil, err
	}
	if err := r.syncSnapshots(ctx); err != nil {
		return nil, err
	}
	if err := r.o.Journal.Durable(entryOf(i)); err != nil {
		return nil, err
	}
	r.kept.add(i.Name())
	r.verified(i) // what is on the disk is what was just unpacked
	return img, nil
}

// unpack fetches the layers and unpacks them as they arrive.
func (r *Runtime) unpack(ctx context.Context, f *fetcher, img *image) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	store := r.client.ContentStore()
	host, err := r.features(ctx)
	if err != nil {
		return err
	}
	opts := []unpack.UnpackerOpt{
		unpack.WithUnpackPlatform(unpack.Platform{
			SnapshotterKey:          r.o.Snapshotter,
			Snapshotter:             r.snapshots(),
			Applier:                 r.client.DiffService(),
			SnapshotterCapabilities: host.caps,
		}),
		unpack.WithLimiter(semaphore.NewWeighted(int64(r.o.Downloads))),
		unpack.WithFetchAllContent(), // a repair needs the blobs; it also makes Wait wait for the downloads
	}
	if host.ParallelUnpack {
		opts = append(opts, unpack.WithUnpackLimiter(semaphore.NewWeighted(int64(r.o.Unpacks))))
	}
	u, err := unpack.NewUnpacker(ctx, store, opts...)
	if err != nil {
		return classify(err)
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

// pin lets the image's name keep its content, and lets go of the lease, which also keeps what failed attempts left.
func (r *Runtime) pin(ctx context.Context, i workload.Image, img *image) error {
	store := r.client.ImageService()
	want := images.Image{Name: i.Name(), Target: img.root, Labels: map[string]string{labelDevice: r.o.Device}}
	_, err := store.Create(ctx, want)
	if errdefs.IsAlreadyExists(err) {
		have, err := store.Get(ctx, i.Name())
		if err != nil {
			return classify(err)
		}
		if have.Labels[labelDevice] != r.o.Device {
			return nil // somebody else's, who may remove it: our lease stays
		}
	} else if err != nil {
		return classify(err)
	}
	err = r.client.LeasesService().Delete(ctx, leases.Lease{ID: leaseID(r.o.Device, i.Name())})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return classify(err)
}

// entryOf is an image's entry in the journal: one index may be here for several platforms. Those that are not the device's own
// are forgotten with it.
func entryOf(i workload.Image) string {
	if i.Platform == "" {
		return i.Name()
	}
	return i.Name() + " " + i.Platform
}

// keepChild names the label by which a document keeps what it names. An index that is here for several platforms keeps a
// manifest for each.
func keepChild(d ocispec.Descriptor) []string {
	if images.IsManifestType(d.MediaType) || images.IsIndexType(d.MediaType) {
		return []string{"containerd.io/gc.ref.content.m." + d.Digest.Encoded()[:16]}
	}
	return images.ChildGCLabels(d)
}

// lease is what keeps the bytes of an image that is not complete yet.
func (r *Runtime) lease(ctx context.Context, i workload.Image) (leases.Lease, error) {
	id := leaseID(r.o.Device, i.Name())
	l, err := r.client.LeasesService().Create(ctx, leases.WithID(id),
		leases.WithLabels(map[string]string{labelDevice: r.o.Device, labelImage: i.Name()}))
	if errdefs.IsAlreadyExists(err) {
		return leases.Lease{ID: id}, nil
	}
	return l, classify(err)
}

func leaseID(device, image string) string {
	h := sha256.Sum256([]byte(device + "\x00" + image))
	return "longshore-pull-" + hex.EncodeToString(h[:16])
}

// syncAlong has the disk take what arrives and what is unpacked while more comes, so that little is left to wait for in the
// end. It syncs once for every syncStep bytes, however slowly they come. The function that it returns ends it.
func (r *Runtime) syncAlong(ctx context.Context, f *fetcher) (stop func()) {
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(syncEvery)
		defer tick.Stop()
		for last := int64(0); ; {
			select {
			case <-tick.C:
			case <-done:
				return
			case <-ctx.Done():
				return
			}
			if now := f.arrived(); now-last >= syncStep {
				last = now
				if err := r.syncSnapshots(ctx); err != nil {
					return // the last one tells
				}
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// syncSnapshots writes everything unpacked to the disk: containerd syncs blobs, but not what it unpacks from them.
func (r *Runtime) syncSnapshots(ctx context.Context) error {
	dir, err := r.snapshotterRoot(ctx)
	if err != nil {
		return err
	}
	if dir == "" {
		unix.Sync() // this snapshotter does not say where it lives
		return nil
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s to sync it: %w", dir, err)
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("sync the filesystem of %s: %w", dir, classify(err))
	}
	return nil
}
