package records

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Ours reports whether a container was made for this device by its agent. The label alone does not prove it: ctr gives a container
// the labels of its image's record and of its image's configuration. Only the agent writes the extension of the record.
func (r *Store) Ours(c containers.Container) bool {
	return c.Labels[owned.LabelDevice] == r.device && c.Extensions[key] != nil
}

// List returns the device's containers that have some labels, given as key, value pairs.
func (r *Store) List(ctx context.Context, pairs ...string) ([]containers.Container, error) {
	all, err := r.store.List(ctx, owned.By(r.device, pairs...))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c containers.Container) bool { return !r.Ours(c) }), nil
}

// notOurs is the error of a call that would change another owner's container: fault.ErrConflict.
func (r *Store) notOurs(c containers.Container) error {
	if d := c.Labels[owned.LabelDevice]; d != "" && d != r.device && c.Extensions[key] != nil {
		return fmt.Errorf("container %s belongs to device %s, not %s: %w", c.ID, d, r.device, fault.ErrConflict)
	}
	from := ""
	if c.Image != "" {
		from = ", from image " + strconv.Quote(c.Image) + ","
	}
	return fault.WithHint(fmt.Errorf("container %s%s was not made by this agent: %w", c.ID, from, fault.ErrConflict),
		fmt.Sprintf("remove it: ctr -n %s tasks kill -s SIGKILL %s; ctr -n %[1]s containers delete %[2]s", r.namespace, c.ID))
}

// foreign are the containers of others that were reported.
type foreign struct {
	mu       sync.Mutex
	reported map[string]bool
}

// note returns the ids that were not noted before, and forgets noted ones that are not in ids.
func (s *foreign) note(ids []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fresh []string
	now := make(map[string]bool, len(ids))
	for _, id := range ids {
		if now[id] = true; !s.reported[id] {
			fresh = append(fresh, id)
		}
	}
	s.reported = now
	return fresh
}

// Observed returns the device's containers. Each container that no agent created is ignored, and logged once.
func (r *Store) Observed(ctx context.Context) ([]containers.Container, error) {
	all, err := r.store.List(ctx)
	if err != nil {
		return nil, err
	}
	var own []containers.Container
	var others []string
	for _, c := range all {
		if r.Ours(c) {
			own = append(own, c)
		} else if c.Extensions[key] == nil {
			others = append(others, c.ID)
		}
	}
	for _, id := range r.foreign.note(others) {
		r.log.Warn("ignoring a container in the agent's namespace that the agent did not create", "namespace", r.namespace, "container", id)
	}
	return own, nil
}
