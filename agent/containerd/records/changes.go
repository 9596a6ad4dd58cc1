package records

import (
	"context"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
)

// Create adds a container's record.
func (r *Store) Create(ctx context.Context, box containers.Container, rec Record) (err error) {
	if box.Extensions, err = rec.Extension(); err != nil {
		return err
	}
	return r.doing("/containers/create", box.ID, func() error {
		_, err := r.boxes.Create(ctx, box)
		return err
	})
}

// Update writes a container's specification and its record anew.
func (r *Store) Update(ctx context.Context, box containers.Container, rec Record) (err error) {
	if box.Extensions, err = rec.Extension(); err != nil {
		return err
	}
	return r.doing("/containers/update", box.ID, func() error {
		_, err := r.boxes.Update(ctx, box, "spec", "extensions."+key)
		return err
	})
}

// Delete removes a container's record. None is no error.
func (r *Store) Delete(ctx context.Context, id string) error {
	err := r.doing("/containers/delete", id, func() error { return r.boxes.Delete(ctx, id) })
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Expected tells whether an event is of a change that this process made, once for each change.
func (r *Store) Expected(topic, id string) bool { return r.doings.done(topic, id) }

// doing makes a change that containerd will tell of.
func (r *Store) doing(topic, id string, change func() error) error {
	r.doings.expect(topic, id)
	err := change()
	if err != nil {
		r.doings.done(topic, id)
	}
	return err
}

// maxDoings bounds what is remembered while nobody reads events.
const maxDoings = 1000

// doings are changes of this process that containerd will tell of, so that what others do stands out. One that is not
// known causes a look too many.
type doings struct {
	mu sync.Mutex
	n  map[string]int
}

// expect says that a change follows. One that fails is taken back by done.
func (d *doings) expect(topic, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == nil || len(d.n) >= maxDoings {
		d.n = map[string]int{}
	}
	d.n[topic+" "+id]++
}

// done tells whether a change was expected, and expects it no longer.
func (d *doings) done(topic, id string) bool {
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
