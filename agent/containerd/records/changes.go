package records

import (
	"context"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
)

// Create adds a container's record.
func (r *Store) Create(ctx context.Context, ctr containers.Container, rec Record) (err error) {
	if ctr.Extensions, err = rec.Extension(); err != nil {
		return err
	}
	return r.expecting("/containers/create", ctr.ID, func() error {
		_, err := r.store.Create(ctx, ctr)
		return err
	})
}

// Update writes a container's specification and its record anew.
func (r *Store) Update(ctx context.Context, ctr containers.Container, rec Record) (err error) {
	if ctr.Extensions, err = rec.Extension(); err != nil {
		return err
	}
	return r.expecting("/containers/update", ctr.ID, func() error {
		_, err := r.store.Update(ctx, ctr, "spec", "extensions."+key)
		return err
	})
}

// Delete removes a container's record. A missing one is not an error.
func (r *Store) Delete(ctx context.Context, id string) error {
	err := r.expecting("/containers/delete", id, func() error { return r.store.Delete(ctx, id) })
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// OwnChange reports whether an event is about a change by this process, once for each change.
func (r *Store) OwnChange(topic, id string) bool { return r.own.done(topic, id) }

// expecting makes a change that will cause an event.
func (r *Store) expecting(topic, id string, change func() error) error {
	r.own.expect(topic, id)
	err := change()
	if err != nil {
		r.own.done(topic, id)
	}
	return err
}

// maxOwnChanges bounds the remembered changes while events are not read.
const maxOwnChanges = 1000

// ownChanges are changes by this process whose events have not arrived yet, to distinguish them from changes by others. A missing
// one only causes an unneeded observation.
type ownChanges struct {
	mu sync.Mutex
	n  map[string]int
}

// expect records a change before it is made. done removes one that failed.
func (d *ownChanges) expect(topic, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == nil || len(d.n) >= maxOwnChanges {
		d.n = map[string]int{}
	}
	d.n[topic+" "+id]++
}

// done reports whether a change was expected, and removes it.
func (d *ownChanges) done(topic, id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := topic + " " + id
	if d.n[k] == 0 {
		return false
	}
	if d.n[k]--; d.n[k] == 0 {
		delete(d.n, k)
	}
	return true
}
