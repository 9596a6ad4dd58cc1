package containerd

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/containerd/tasks"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// defaultGrace is Compose's stop_grace_period.
const defaultGrace = 10 * time.Second

// Stop stops a container's process: its stop signal, then SIGKILL after its grace period, or earlier where the grace period would end
// after ctx. The task keeps the exit code until the next Start. A removed container counts as stopped.
func (r *Runtime) Stop(ctx context.Context, id string) error {
	return r.change(ctx, "stop", id, r.stop)
}

func (r *Runtime) stop(ctx context.Context, id string) error {
	_, rec, err := r.records.Own(ctx, id)
	if errors.Is(err, fault.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	status, err := r.tasks.Status(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case status == task.Status_STOPPED:
		return nil
	case status == task.Status_CREATED: // nothing ran in it
		return r.tasks.End(ctx, id)
	case status == task.Status_PAUSED: // a frozen process does not receive signals
		if err := r.tasks.Resume(ctx, id); err != nil {
			return err
		}
	}
	sig, err := runspec.Signal(rec.StopSignal)
	if err != nil {
		return err
	}
	grace := cmp.Or(rec.Container.Service.StopGrace, defaultGrace)
	if end, ok := ctx.Deadline(); ok { // SIGKILL is sent before the deadline, whatever the service's grace period
		grace = min(grace, end.Sub(r.o.Now())-tasks.KillWait)
	}
	grace -= r.preStop(ctx, rec.Container, grace)
	return r.tasks.Stop(ctx, id, sig, grace)
}
