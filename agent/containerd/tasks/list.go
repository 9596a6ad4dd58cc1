package tasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// maxRequests bounds concurrent requests for single tasks: each may take two seconds, containerd's limit for a shim.
const maxRequests = 8

// ErrShimTimeout: a shim did not return the status of its task. containerd waits two seconds; on a busy machine, or when
// the shim is blocked, it needs more. The task may be running. containerd 1 reports the status unknown, containerd 2 leaves the
// task out of its list.
var ErrShimTimeout = errors.New("its shim does not answer")

// IsShimTimeout reports whether an error is that of a task whose shim did not answer in time.
func IsShimTimeout(err error) bool {
	return errdefs.IsDeadlineExceeded(err) || errdefs.IsUnavailable(err)
}

// List returns containerd's tasks, by container. Tasks of ids that it does not list are requested one by one: nil where the
// shim does not answer.
func (t *Tasks) List(ctx context.Context, ids []string) (map[string]*task.Process, error) {
	list, err := t.client.List(ctx, &api.ListTasksRequest{})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	out := map[string]*task.Process{}
	for _, p := range list.Tasks {
		out[p.ID] = p
	}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return out[id] != nil })
	more, err := t.unlisted(ctx, ids)
	maps.Copy(out, more)
	return out, err
}

// unlisted requests tasks that containerd did not list: those that exist, nil where the shim did not answer.
func (t *Tasks) unlisted(ctx context.Context, ids []string) (map[string]*task.Process, error) {
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	out := map[string]*task.Process{}
	places := make(chan struct{}, maxRequests)
	for _, id := range ids {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			got, err := t.client.Get(ctx, &api.GetRequest{ContainerID: id})
			err = errgrpc.ToNative(err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errdefs.IsNotFound(err):
			case err == nil:
				out[id] = got.Process
			case IsShimTimeout(err) && ctx.Err() == nil:
				out[id] = nil
			default:
				errs = append(errs, fmt.Errorf("ask for the task of container %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}
