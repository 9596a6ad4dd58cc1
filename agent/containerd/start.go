package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/containerd/tasks"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Start starts a created or exited container: first its networks, also after a reboot; then its mounts and its init containers; then
// a new task in place of the one that ended, and the post_start commands.
func (r *Runtime) Start(ctx context.Context, p *workload.Project, c workload.Container) error {
	return r.change(ctx, "start", c.ID, func(ctx context.Context, _ string) error { return r.start(ctx, p, c) })
}

func (r *Runtime) start(ctx context.Context, p *workload.Project, c workload.Container) error {
	ctr, rec, err := r.records.Own(ctx, c.ID)
	if err != nil {
		return err
	}
	if c.Hash != rec.Container.Hash { // the id contains only a part of the hash
		c = rec.Container
	}
	status, err := r.tasks.Status(ctx, c.ID)
	if early := r.early.take(c.ID); early != nil && err == nil && status == task.Status_CREATED && r.startEarly(ctx, c, ctr.Labels, *early) {
		return r.postStart(ctx, c)
	}
	switch {
	case errdefs.IsNotFound(err): // no task
	case err != nil && tasks.IsShimTimeout(err) && ctx.Err() == nil, err == nil && status == task.Status_UNKNOWN: // it may be running
		return failure.As(fault.ErrTemporary, errors.Join(tasks.ErrShimTimeout, err))
	case err != nil:
		return err
	case status == task.Status_RUNNING, status == task.Status_PAUSING:
		return nil
	case status == task.Status_PAUSED:
		return r.tasks.Resume(ctx, c.ID)
	default:
		if err := r.tasks.End(ctx, c.ID); err != nil {
			return err
		}
	}
	before, cancel := context.WithTimeout(ctx, r.startLimit)
	defer cancel()
	layer, err := r.snapshots().Mounts(before, ctr.SnapshotKey)
	if errdefs.IsNotFound(err) {
		return r.removeBroken(ctx, c.ID, err)
	}
	if err != nil {
		return err
	}
	at, err := r.attach(before, ctr.Labels[owned.LabelProject], c)
	if err != nil {
		return err
	}
	if err := r.refresh(before, p, c, at, layer, ctr, rec); err != nil {
		return err
	}
	if err := r.preStart(ctx, p, c, at, ctr.Labels); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, r.startLimit) // init containers are limited only by the caller's context
	defer cancel()
	streams, err := r.taskIO(c.Service, c.ID, ctr.Labels)
	if err != nil {
		return err
	}
	pid, err := r.tasks.Run(ctx, runspec.Group(p.Name, c.Service), c.ID, layer, streams)
	if err != nil {
		if images.Damaged(err) && r.images.Invalidate(ctx, c.Service.Image) {
			return r.removeBroken(ctx, c.ID, err)
		}
		return err
	}
	r.started(c, ctr.Labels, pid)
	return r.postStart(ctx, c)
}

// started is what follows when a container's process runs.
func (r *Runtime) started(c workload.Container, labels map[string]string, pid uint32) {
	if err := r.volumes.UnmountSources(c); err != nil {
		r.log.Warn("a container's sources stay mounted in the agent's run directory", "container", c.ID, "error", err)
	}
	r.logs.Watch(replicaOf(labels), c.Service.Log, c.ID, pid)
}

// removeBroken removes a container that can no longer be started, so that it is created again.
func (r *Runtime) removeBroken(ctx context.Context, id string, why error) error {
	r.log.Warn("a container is broken and will be created again", "container", id, "error", why)
	return failure.As(fault.ErrTemporary, errors.Join(fmt.Errorf("it is broken and will be created again: %w", why), r.remove(ctx, id)))
}

// refresh creates the container's mounts, and updates its specification where something changed since it was created.
func (r *Runtime) refresh(ctx context.Context, p *workload.Project, c workload.Container, at workload.Attached, layer []mount.Mount,
	ctr containers.Container, rec records.Record,
) error {
	if err := r.guard.Permit(ctx, p, c.Service); err != nil {
		return err
	}
	if err := r.volumes.Materialise(ctx, p, c); err != nil {
		return err
	}
	if err := users.SetNetSysctls(at.NetNS, c.Service); err != nil {
		return err
	}
	if f, err := r.features.Find(ctx); err != nil {
		return err
	} else if f.CgroupVersion == 1 {
		if err := cgroup.AllowRealtime(cgroup.Root, r.group(c.Service.Resources, c.ID), c.Service.Resources); err != nil {
			return err
		}
	}
	atStart := runspec.BuiltAtStart(c.Service)
	if !atStart && at.NetNS == rec.NetNS {
		return nil
	}
	rec.NetNS = at.NetNS
	var err error
	if atStart {
		ctr.Spec, err = r.specifyAtStart(ctx, p, c, at, layer, ctr)
	} else {
		ctr.Spec, err = runspec.Rejoin(ctr.Spec, at.NetNS, networkFiles(at))
	}
	if err != nil {
		return err
	}
	return r.records.Update(ctx, ctr, rec)
}

// specifyAtStart writes the specification of a service whose specification may differ at each start; this needs the image.
func (r *Runtime) specifyAtStart(ctx context.Context, p *workload.Project, c workload.Container, at workload.Attached, layer []mount.Mount,
	ctr containers.Container,
) (typeurl.Any, error) {
	img, err := r.images.Ready(ctx, c.Service.Image)
	if err != nil {
		return nil, err
	}
	j, err := r.join(ctx, p.Name, c)
	if err != nil {
		return nil, err
	}
	return r.specify(ctx, p, c, img, at, layer, j, ctr)
}
