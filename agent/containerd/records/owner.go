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

// Mine reports whether a container was made for this device by its agent. The label alone does not say so: ctr gives a container
// the labels of its image's record and of its image's configuration. The record that comes with it is written by nothing else.
func (r *Store) Mine(c containers.Container) bool {
	return c.Labels[owned.LabelDevice] == r.device && c.Extensions[key] != nil
}

// List returns the device's containers that have some labels, given as key, value pairs.
func (r *Store) List(ctx context.Context, pairs ...string) ([]containers.Container, error) {
	all, err := r.boxes.List(ctx, owned.By(r.device, pairs...))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c containers.Container) bool { return !r.Mine(c) }), nil
}

// disowned is the error of a call that would change another owner's container: fault.ErrConflict.
func (r *Store) disowned(c containers.Container) error {
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

// strangers are the containers of others that were reported.
type strangers struct {
	mu   sync.Mutex
	told map[string]bool
}

// note returns those of some containers' ids that were not noted before, and forgets what is not among them.
func (s *strangers) note(ids []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fresh []string
	now := make(map[string]bool, len(ids))
	for _, id := range ids {
		if now[id] = true; !s.told[id] {
			fresh = append(fresh, id)
		}
	}
	s.told = now
	return fresh
}

// Observed returns the device's containers, and reports once each that no agent made: it is left alone.
func (r *Store) Observed(ctx context.Context) ([]containers.Container, error) {
	all, err := r.boxes.List(ctx)
	if err != nil {
		return nil, err
	}
	var own []containers.Container
	var others []string
	for _, c := range all {
		if r.Mine(c) {
			own = append(own, c)
		} else if c.Extensions[key] == nil {
			others = append(others, c.ID)
		}
	}
	for _, id := range r.strangers.note(others) {
		r.log.Warn("a container in the agent's namespace was not made by the agent; it is ignored", "namespace", r.namespace, "container", id)
	}
	return own, nil
}
