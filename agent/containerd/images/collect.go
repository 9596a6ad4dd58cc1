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

// kept are the names of the images that the device needs: those that the last Collect was to keep, and those that were
// asked for since. Without a Collect nothing is known to be unused.
type kept struct {
	mu    sync.Mutex
	names map[string]bool
	asked bool // Collect has told
}

func (k *kept) replace(keep []workload.Image) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names, k.asked = map[string]bool{}, true
	for _, i := range keep {
		k.names[i.Name()] = true
	}
}

func (k *kept) add(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil {
		k.names = map[string]bool{}
	}
	k.names[name] = true
}

func (k *kept) known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

func (k *kept) all() map[string]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make(map[string]bool, len(k.names))
	for name := range k.names {
		all[name] = true
	}
	return all
}

// failedLasts is how long an image that cannot be right is not tried again.
const failedLasts = time.Hour

// failedImages are those that can never run here, whoever serves them: their digest names the very bytes that are wrong.
type failedImages struct {
	mu sync.Mutex
	m  map[string]failedImage
}

type failedImage struct {
	err   error
	until time.Time // a disk that reads wrong may be behind it
}

// judge remembers, for a while, an error that a second try would only pay for again. It tells whether this is one.
func (v *failedImages) judge(name string, err error, now time.Time) bool {
	if !errors.Is(err, failure.ErrHopeless) {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.m == nil {
		v.m = map[string]failedImage{}
	}
	if _, ok := v.m[name]; !ok {
		v.m[name] = failedImage{err, now.Add(failedLasts)}
	}
	return true
}

// of is why an image cannot be had; nil: nothing is known against it.
func (v *failedImages) of(name string, now time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	x, ok := v.m[name]
	if ok && now.After(x.until) {
		delete(v.m, name)
		return nil
	}
	return x.err
}

func (v *failedImages) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.m)
}

// ours tells an image that this device pulled from one that somebody tagged after it, with our label: ctr before 2.0
// copies labels.
func ours(i images.Image) bool { return strings.HasSuffix(i.Name, "@"+i.Target.Digest.String()) }

// Keep names the images that stay from now on, beside those that are pulled later.
func (r *Store) Keep(keep []workload.Image) { r.kept.replace(keep) }

// Collect drops images and unpacked layers that are not kept, partial ones too. Containers that exist keep the layers they stand on.
func (r *Store) Collect(ctx context.Context) error {
	return r.alone(ctx, func() error { return r.collectAlone(ctx) })
}

// collectAlone is Collect with the turn taken. Images that are being pulled or repaired stay.
func (r *Store) collectAlone(ctx context.Context) error {
	busy := r.settling.Names()
	stay := r.kept.all()
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
	r.cache.clear()
	if len(busy) == 0 {
		r.verified.clear() // else it vouches for what is being unpacked
	}
	r.failed.clear()
	return r.collectNow(ctx)
}

// collectNow runs containerd's collector to its end: deleting any lease synchronously does.
func (r *Store) collectNow(ctx context.Context) error {
	l, err := r.client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithLabel(owned.LabelDevice, r.o.Device))
	if err != nil {
		return failure.Classify(err)
	}
	return failure.Classify(r.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete))
}
