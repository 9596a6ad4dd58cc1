package images

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
)

// keepList is the names of the images that the device needs: those of the last Collect, and those that were pulled since. Before the first
// Collect it is nil: no image counts as unused.
type keepList struct {
	mu    sync.Mutex
	names map[string]bool
}

func (k *keepList) replace(keep []workload.Image) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names = map[string]bool{}
	for _, i := range keep {
		k.names[i.Name()] = true
	}
}

func (k *keepList) add(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names != nil {
		k.names[name] = true
	}
}

// all is a copy.
func (k *keepList) all() map[string]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.names)
}

// failedFor is the time after which an image with a permanent error is tried again.
const failedFor = time.Hour

// failedImages are images that cannot run here, from any endpoint: their digest names the wrong bytes. By name, they are a failedImage.
type failedImages struct{ sync.Map }

type failedImage struct {
	err   error
	until time.Time // not forever: a faulty disk may be the cause
}

// record remembers a permanent error for a while. It reports whether err is one.
func (v *failedImages) record(name string, err error, now time.Time) bool {
	if !errors.Is(err, failure.ErrPermanent) {
		return false
	}
	v.LoadOrStore(name, failedImage{err, now.Add(failedFor)})
	return true
}

// errorOf is the reason why an image cannot run; nil: none is known.
func (v *failedImages) errorOf(name string, now time.Time) error {
	x, _ := v.Load(name)
	if f, ok := x.(failedImage); ok && !now.After(f.until) {
		return f.err
	}
	v.Delete(name)
	return nil
}

// ours reports whether this device pulled an image. ctr before 2.0 copies our label to images that are tagged after ours.
func ours(i images.Image) bool { return strings.HasSuffix(i.Name, "@"+i.Target.Digest.String()) }

// Keep sets the images that stay, in addition to those that are pulled later.
func (r *Store) Keep(keep []workload.Image) { r.keep.replace(keep) }

// Collect removes images and unpacked layers that are not kept, partial ones too. Layers of existing containers stay.
func (r *Store) Collect(ctx context.Context) error {
	return r.exclusively(ctx, func() error { return r.collectExclusively(ctx) })
}

// collectExclusively is Collect without a concurrent collection. Images that are being pulled or repaired stay.
func (r *Store) collectExclusively(ctx context.Context) error {
	busy := r.inProgress.Names()
	stay := r.keep.all()
	for _, name := range busy {
		stay[name] = true
	}
	have, err := r.client.ImageService().List(ctx, owned.By(r.o.Device))
	if err != nil {
		return err
	}
	held, err := r.client.LeasesService().List(ctx, owned.By(r.o.Device))
	if err != nil {
		return err
	}
	drop := map[string]bool{}
	have = slices.DeleteFunc(have, func(i images.Image) bool { return !ours(i) })
	for _, i := range have {
		drop[i.Name] = !stay[i.Name]
	}
	for _, l := range held {
		drop[l.Labels[labelImage]] = !stay[l.Labels[labelImage]]
	}
	maps.DeleteFunc(drop, func(_ string, yes bool) bool { return !yes })
	for name := range drop {
		if err := r.o.Journal.Forget(name); err != nil {
			return err
		}
	}
	for _, i := range have {
		if drop[i.Name] {
			if err := r.client.ImageService().Delete(ctx, i.Name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
	}
	for _, l := range held {
		if drop[l.Labels[labelImage]] {
			if err := r.client.LeasesService().Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
	}
	if len(drop) == 0 {
		return nil
	}
	r.cache.Clear()
	if len(busy) == 0 {
		r.verified.Clear() // not while an image is unpacked, because unpacking relies on it
	}
	r.failed.Clear()
	return r.collectNow(ctx)
}

// collectNow runs containerd's garbage collection and waits for it: deleting any lease synchronously does that.
func (r *Store) collectNow(ctx context.Context) error {
	l, err := r.client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithLabel(owned.LabelDevice, r.o.Device))
	if err != nil {
		return failure.Classify(err)
	}
	return failure.Classify(r.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete))
}
