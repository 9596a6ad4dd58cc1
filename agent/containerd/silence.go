package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/longshore-dev/longshore/agent/workload"
)

// asksAtOnce bounds how many tasks are asked for one by one at a time: each may take the two seconds that containerd gives a shim.
const asksAtOnce = 8

// errSilent says that a shim did not tell how its task is. containerd gives it two seconds; a busy machine, or a shim that
// something holds, needs more. Its task may run very well. containerd 1 calls such a state unknown, containerd 2 leaves the task
// out of its list.
var errSilent = errors.New("its shim does not answer")

// silent tells errors of a task whose shim did not answer in time.
func silent(err error) bool { return errdefs.IsDeadlineExceeded(err) || errdefs.IsUnavailable(err) }

// unlisted asks for tasks that containerd did not list: those that it knows, nil where the shim did not answer.
func (r *Runtime) unlisted(ctx context.Context, ids []string) (map[string]*task.Process, error) {
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	out := map[string]*task.Process{}
	places := make(chan struct{}, asksAtOnce)
	for _, id := range ids {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			got, err := r.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
			err = errgrpc.ToNative(err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errdefs.IsNotFound(err):
			case err == nil:
				out[id] = got.Process
			case silent(err) && ctx.Err() == nil:
				out[id] = nil
			default:
				errs = append(errs, fmt.Errorf("ask for the task of container %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// sightings are how containers were when their shims told last.
type sightings struct {
	mu     sync.Mutex
	seen   map[string]workload.Observation
	silent map[string]bool
}

// recall completes an observation of a container whose shim does not answer by what was seen last.
func (s *sightings) recall(o workload.Observation) workload.Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.seen[o.ID]
	if !ok {
		return o
	}
	o.Status, o.PID, o.Run, o.StartedAt, o.Began = last.Status, last.PID, last.Run, last.StartedAt, last.Began
	o.ExitCode, o.End, o.ExitedAt = last.ExitCode, last.End, last.ExitedAt
	return o
}

// note takes over all that is there now, and tells which of the silent ones are so since now.
func (s *sightings) note(all []workload.Observation, silent map[string]bool) (since []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = map[string]workload.Observation{}
	for _, o := range all {
		s.seen[o.ID] = o
	}
	for id := range maps.Keys(silent) {
		if !s.silent[id] {
			since = append(since, id)
		}
	}
	s.silent = silent
	return since
}
