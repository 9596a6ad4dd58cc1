package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// unpackFactor is how many bytes of files are expected of a byte of a compressed layer: 2 to 3 for programs; watch detects
	// larger ones.
	unpackFactor = 3
	// layerOverhead is the space of the folders and metadata of one unpacked layer, in addition to its files.
	layerOverhead = 1 << 20
	// watchEvery is how often free space is checked while an image is unpacked: a fast disk writes 100 MB in this time, for which the
	// reserve must suffice.
	watchEvery = 100 * time.Millisecond
	// expansionLimit is how many bytes of files a byte in a registry may become, and expansionFloor the size that any image may
	// unpack to. Programs and data stay below 10; a sparse file or a bomb reaches 1000.
	expansionLimit = 100
	expansionFloor = 1 << 30
)

// Defaults of [Space]: the smaller of the two.
const (
	DefaultMinFreePercent = 5
	DefaultMinFree        = 512 << 20
)

// Space is a part of a file system. The zero value is the default: the smaller of 5 percent and 512 MiB.
type Space struct {
	Percent int   // of the file system; 0: Bytes count
	Bytes   int64 // 0: Percent counts
}

// Of returns the bytes of a file system of a size.
func (s Space) Of(size int64) int64 {
	switch {
	case s.Bytes > 0:
		return s.Bytes
	case s.Percent > 0:
		return size / 100 * int64(s.Percent)
	}
	return min(size/100*DefaultMinFreePercent, DefaultMinFree)
}

// FullError is a disk without enough free space.
type FullError struct {
	Dir  string
	Need int64 // bytes that were to be written; 0: unknown
	Keep int64 // bytes that must stay free
	Free int64 // bytes
	Size int64 // bytes of the whole file system
}

func (e *FullError) Error() string {
	if e.Need == 0 {
		return fmt.Sprintf("%s has %s free, less than the %s that stay free: no space left on device", e.Dir, mebibytes(e.Free), mebibytes(e.Keep))
	}
	return fmt.Sprintf("%s has %s free, %s are needed beside the %s that stay free: no space left on device",
		e.Dir, mebibytes(e.Free), mebibytes(e.Need), mebibytes(e.Keep))
}

// Short is how many bytes are lacking.
func (e *FullError) Short() int64 { return e.Need + e.Keep - e.Free }

// Unwrap makes it fault.ErrTemporary and the kernel's ENOSPC.
func (e *FullError) Unwrap() []error { return []error{fault.ErrTemporary, syscall.ENOSPC} }

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }

// room checks that dir's file system has need bytes in addition to its reserve. It returns nil also if free space is unknown.
func (r *Store) room(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		r.log.Debug("free space is unknown", "dir", dir, "error", err)
		return nil
	}
	size, free := int64(st.Blocks)*int64(st.Bsize), int64(st.Bavail)*int64(st.Bsize)
	keep := r.o.MinFree.Of(size)
	if free-need >= keep {
		return nil
	}
	return &FullError{Dir: dir, Need: need, Keep: keep, Free: free, Size: size}
}

// makeRoom checks that an image fits before any of its layers is fetched. When it does not, it frees space: first the partial
// downloads of other images, oldest first, then images that are not kept.
func (r *Store) makeRoom(ctx context.Context, i workload.Image, img *Image) error {
	blobRoot, fileRoot, err := r.o.Host.Roots(ctx)
	if err != nil {
		return err
	}
	blobs, files, err := r.missing(ctx, img)
	if err != nil {
		return err
	}
	if blobs+files == 0 {
		return nil // a repair needs only the space that was used before
	}
	fits := func() error {
		if sameDisk(blobRoot, fileRoot) {
			return errors.Join(r.room(fileRoot, blobs+files), r.room(r.o.DataDir, 0))
		}
		return errors.Join(r.room(blobRoot, blobs), r.room(fileRoot, files), r.room(r.o.DataDir, 0))
	}
	err = fits()
	var full *FullError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &full) && full.Need > full.Size-full.Keep:
		return fault.WithHint(err, "it is larger than this device's disk")
	}
	held, lerr := r.client.LeasesService().List(ctx, owned.By(r.o.Device))
	if lerr != nil {
		return failure.Classify(lerr)
	}
	slices.SortFunc(held, func(a, b leases.Lease) int { return a.CreatedAt.Compare(b.CreatedAt) })
	for _, l := range held {
		switch gone, derr := r.dropPartial(ctx, l, i); {
		case derr != nil:
			return derr
		case !gone:
			continue
		}
		if err = fits(); err == nil {
			return nil
		}
	}
	if r.keep.all() != nil {
		r.log.Warn("collecting unused images, for lack of space", "for", i.Name())
		r.keep.add(i.Name())
		if err := r.Collect(ctx); err != nil {
			return err
		}
		err = fits()
	}
	return fault.WithHint(err, "free some space on the device's disk, or lower images.minFree in the agent's configuration; what runs was not touched")
}

// dropPartial deletes the lease of another image whose pull did not finish, and with it the bytes. False: it stays, as that image is
// complete or is being pulled or repaired. The image is locked meanwhile: a pull that starts would continue with this lease.
func (r *Store) dropPartial(ctx context.Context, l leases.Lease, lacks workload.Image) (bool, error) {
	name := l.Labels[labelImage]
	if name == "" {
		return false, nil
	}
	unlock, ok := r.inProgress.Try(name)
	if !ok {
		return false, nil
	}
	defer unlock()
	if whole, err := r.o.Journal.IsDurable(name); err != nil || whole {
		return false, nil // an image whose name has another owner keeps its lease
	}
	r.log.Warn("dropping a partial download, for lack of space", "image", name, "for", lacks.Name())
	if err := r.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
		return false, failure.Classify(err)
	}
	return true, nil
}

// missing returns the bytes that an image still needs: of blobs, and, as an estimate, of files.
func (r *Store) missing(ctx context.Context, img *Image) (blobs, files int64, err error) {
	store := r.client.ContentStore()
	for n, l := range img.manifest.Layers {
		_, err := store.Info(ctx, l.Digest)
		if errdefs.IsNotFound(err) {
			blobs, err = blobs+l.Size, nil
		}
		if err == nil {
			_, err = r.snapshots().Stat(ctx, img.chain[n].String())
		}
		if errdefs.IsNotFound(err) {
			files, err = files+unpacked(ctx, l), nil
		}
		if err != nil {
			return 0, 0, failure.Classify(err)
		}
	}
	return blobs, files, nil
}

// unpacked estimates the size of a layer's files.
func unpacked(ctx context.Context, l ocispec.Descriptor) int64 {
	size := l.Size
	if c, err := images.DiffCompression(ctx, l.MediaType); err != nil || c != "" {
		size *= unpackFactor
	}
	return size + layerOverhead
}

// sameDisk is also true when it is unknown.
func sameDisk(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) != nil || unix.Stat(b, &y) != nil || x.Dev == y.Dev
}

// watch cancels ctx when the disk reaches its reserve, if that is required, or when the image becomes larger than expansionLimit allows.
// stop ends the watch and returns the reason of a cancellation, nil without one.
func (r *Store) watch(ctx context.Context, img *Image, reserve bool) (_ context.Context, stop func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	blobRoot, fileRoot, err := r.o.Host.Roots(ctx)
	if err != nil {
		cancel(err)
		return ctx, func() error { return err }
	}
	var (
		wg      sync.WaitGroup
		done    = make(chan struct{})
		stopped error
		limit   = max(expansionFloor, expansionLimit*img.size())
	)
	begin, known := used(fileRoot)
	wg.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			var err error
			if reserve {
				err = errors.Join(r.room(fileRoot, 0), r.room(blobRoot, 0))
			}
			if now, ok := used(fileRoot); err == nil && ok && known && now-begin > limit {
				err = r.checkExpansion(ctx, img, limit)
			}
			if err != nil {
				stopped = err
				cancel(err)
				return
			}
		}
	})
	return ctx, func() error {
		close(done)
		wg.Wait()
		cancel(nil)
		return stopped
	}
}

// checkExpansion measures the image's own layers, because others write to the disk too.
func (r *Store) checkExpansion(ctx context.Context, img *Image, limit int64) error {
	sum, err := r.unpackedSize(ctx, img)
	if err != nil || sum <= limit {
		return nil // others used the space
	}
	return failure.Permanent(fmt.Errorf("its %s in the registry have become %s of files and were still growing, %s is the limit: %w",
		mebibytes(img.size()), mebibytes(sum), mebibytes(limit), fault.ErrTooLarge))
}

// unpackedSize is the size of the image's layers now, complete and partial.
func (r *Store) unpackedSize(ctx context.Context, img *Image) (sum int64, err error) {
	ours := map[string]bool{}
	for _, id := range img.chain {
		ours[id.String()] = true
	}
	var names []string
	err = r.snapshots().Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		_, id, half := strings.Cut(s.Name, " ")
		if ours[s.Name] || half && ours[id] {
			names = append(names, s.Name)
		}
		return nil
	})
	for _, name := range names {
		u, uerr := r.snapshots().Usage(ctx, name)
		if uerr == nil {
			sum += u.Size
		} else if !errdefs.IsNotFound(uerr) {
			err = errors.Join(err, uerr)
		}
	}
	return sum, failure.Classify(err)
}

// used are a file system's bytes in use.
func used(dir string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Blocks-st.Bfree) * int64(st.Bsize), true
}
