package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/spec"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// startLimit is how long a start may take before its pre_start begins, and again once that has ended.
	startLimit = 3 * time.Minute
	// defaultGrace is Compose's stop_grace_period.
	defaultGrace = 10 * time.Second
	// leftoverWait is how long containerd may take to undo a call whose client was killed.
	leftoverWait  = 10 * time.Second
	leftoverPause = 20 * time.Millisecond
	// deleteTries bounds how often a task is deleted whose shim ends meanwhile.
	deleteTries = 3
	// shimEnded is in containerd's error when a shim has ended before it answered: ttrpc.ErrClosed.
	shimEnded = "ttrpc: closed"
	// bundleStill is the pause after which a bundle that could not be deleted is not seen again by chance: with those
	// before it, about as much time again has passed.
	bundleStill = time.Second
)

// Start runs a created or exited container: its network first, so that it finds it complete, also after a reboot; then what
// it mounts and what runs before it; then a new task in place of the one that ended, and what follows a start.
func (r *Runtime) Start(ctx context.Context, p *workload.Project, c workload.Container) error {
	return r.change(ctx, "start", c.ID, func(ctx context.Context, _ string) error { return r.start(ctx, p, c) })
}

// Stop ends a container's process: its stop signal, then SIGKILL after its grace period, or earlier where the grace period
// would not end before ctx does. What is left tells the exit code
// until the next Start. A container that is gone is stopped.
func (r *Runtime) Stop(ctx context.Context, id string) error {
	return r.change(ctx, "stop", id, r.stop)
}

// Remove deletes a container, stopped or not, with its writable layer and its place in the networks. Its volumes stay, and
// until Teardown so do its volumes without names and its output.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	return r.change(ctx, "remove", id, r.remove)
}

func (r *Runtime) change(ctx context.Context, what, id string, do func(context.Context, string) error) error {
	ctx = r.in(ctx)
	unlock, err := r.ids.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := do(ctx, id); err != nil {
		return fmt.Errorf("%s container %s: %w", what, id, failure.Classify(err))
	}
	return nil
}

func (r *Runtime) start(ctx context.Context, p *workload.Project, c workload.Container) error {
	box, rec, err := r.own(ctx, c.ID)
	if err != nil {
		return err
	}
	if c.Hash != rec.Container.Hash { // an id is cut short; what was created counts
		c = rec.Container
	}
	status, err := r.taskStatus(ctx, c.ID)
	switch {
	case errdefs.IsNotFound(err): // no task
	case err != nil && silent(err) && ctx.Err() == nil, err == nil && status == task.Status_UNKNOWN: // it may well run
		return failure.As(fault.ErrTemporary, errors.Join(errSilent, err))
	case err != nil:
		return err
	case status == task.Status_RUNNING, status == task.Status_PAUSING:
		return nil
	case status == task.Status_PAUSED:
		_, err := r.client.TaskService().Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: c.ID})
		return errgrpc.ToNative(err)
	default:
		if err := r.endTask(ctx, c.ID); err != nil {
			return err
		}
	}
	before, cancel := context.WithTimeout(ctx, r.startLimit)
	defer cancel()
	layer, err := r.snapshots().Mounts(before, box.SnapshotKey)
	if errdefs.IsNotFound(err) {
		return r.removeBroken(ctx, c.ID, err)
	}
	if err != nil {
		return err
	}
	at, err := r.attach(before, box.Labels[owned.LabelProject], c)
	if err != nil {
		return err
	}
	if err := r.settleIn(before, p, c, at, layer, box, rec); err != nil {
		return err
	}
	if err := r.preStart(ctx, p, c, at, box.Labels); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, r.startLimit) // what came before has had all the time that the caller gives
	defer cancel()
	streams, err := r.taskIO(c.Service, c.ID, box.Labels)
	if err != nil {
		return err
	}
	pid, err := r.runOver(ctx, spec.Group(p.Name, c.Service), c.ID, layer, streams)
	if err != nil {
		if images.Damaged(err) && r.images.Suspect(ctx, c.Service.Image) {
			return r.removeBroken(ctx, c.ID, err)
		}
		return err
	}
	if err := r.volumes.Withdraw(c); err != nil {
		r.log.Warn("what a container mounts of the device stays mounted at the agent's place for it", "container", c.ID, "error", err)
	}
	r.logs.Watch(replicaOf(box.Labels), c.Service.Log, c.ID, pid)
	return r.postStart(ctx, c)
}

// removeBroken removes a container that cannot be started any more, so that it is created anew.
func (r *Runtime) removeBroken(ctx context.Context, id string, why error) error {
	r.log.Warn("a container is broken and is created anew", "container", id, "error", why)
	return failure.As(fault.ErrTemporary, errors.Join(fmt.Errorf("it is broken and is created anew: %w", why), r.remove(ctx, id)))
}

// settleIn makes what a container mounts, and writes into its specification what changed since it was made.
func (r *Runtime) settleIn(ctx context.Context, p *workload.Project, c workload.Container, at Attachment, layer []mount.Mount,
	box containers.Container, rec record,
) error {
	if err := r.guard.Permit(ctx, p, c.Service); err != nil {
		return err
	}
	if err := r.volumes.Lay(ctx, p, c); err != nil {
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
	late := spec.Late(c.Service)
	if !late && at.NetNS == rec.NetNS {
		return nil
	}
	rec.NetNS = at.NetNS
	var err error
	if box.Extensions, err = rec.extension(); err != nil {
		return err
	}
	if late {
		box.Spec, err = r.specifyLate(ctx, p, c, at, layer, box)
	} else {
		box.Spec, err = spec.Rejoin(box.Spec, at.NetNS, at.files())
	}
	if err != nil {
		return err
	}
	return r.updateBox(ctx, box, "spec", "extensions."+extensionKey)
}

// specifyLate writes the specification of a service whose image is needed for that: what is fixed starts without it, too.
func (r *Runtime) specifyLate(ctx context.Context, p *workload.Project, c workload.Container, at Attachment, layer []mount.Mount,
	box containers.Container,
) (typeurl.Any, error) {
	img, err := r.images.Ready(ctx, c.Service.Image)
	if err != nil {
		return nil, err
	}
	j, err := r.join(ctx, p.Name, c)
	if err != nil {
		return nil, err
	}
	return r.specify(ctx, p, c, img, at, layer, j, box)
}

// runOver runs a task where containerd may still hold what a killed call left: it undoes such calls on its own, but some
// time after the connection broke, and then may take the new task's directory for the old one's; and a deletion that was
// cut off it does not finish unless it is asked again. What it never undoes is taken out of its way.
func (r *Runtime) runOver(ctx context.Context, group, id string, layer []mount.Mount, streams taskIO) (pid uint32, err error) {
	limit := time.NewTimer(leftoverWait)
	defer limit.Stop()
	last := false
	for pause := leftoverPause; ; pause *= 2 {
		var pid uint32
		err := r.shims.begin(ctx, group, func() (err error) {
			pid, err = r.runTask(ctx, id, layer, streams)
			return err
		})
		if err == nil {
			return pid, nil
		}
		if errdefs.IsDeadlineExceeded(err) && ctx.Err() == nil && r.endStuckShims() {
			continue
		}
		if !leftover(err, pause) {
			return 0, err
		}
		if last {
			return 0, failure.As(fault.ErrTemporary, err)
		}
		bundle := r.bundleIn(err, id)
		r.log.Debug("containerd still holds an earlier task", "container", id, "error", err)
		if bundle != "" && pause >= bundleStill && halfDeleted(bundle) {
			err := r.unblock(ctx, id, bundle)
			if err == nil {
				continue
			}
			r.log.Debug("what an earlier task left cannot be removed yet", "container", id, "error", err)
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
		case <-limit.C:
			next.Stop()
			if bundle == "" {
				return 0, failure.As(fault.ErrTemporary, err)
			}
			if uerr := r.unblock(ctx, id, bundle); uerr != nil {
				return 0, failure.As(fault.ErrTemporary, fmt.Errorf("%w; it cannot be removed: %w", err, uerr))
			}
			last = true
		case <-ctx.Done():
			next.Stop()
			return 0, ctx.Err()
		}
	}
}

// leftover tells whether an earlier task of the same name is behind an error. A shim that does not start at all, or a
// directory that vanished under the new task, may have other reasons: they get two more tries.
func leftover(err error, pause time.Duration) bool {
	text := err.Error()
	return errdefs.IsAlreadyExists(err) || strings.Contains(text, syscall.EEXIST.Error()) ||
		pause <= 2*leftoverPause && (strings.Contains(text, "failed to start shim") || strings.Contains(text, "unable to retrieve OCI runtime error"))
}

// runTask makes a task and starts it; what could not be started does not stay.
func (r *Runtime) runTask(ctx context.Context, id string, layer []mount.Mount, streams taskIO) (pid uint32, err error) {
	svc := r.client.TaskService()
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := deadline.After(ctx)
		defer cancel()
		if cerr := r.endTask(ctx, id); cerr != nil {
			r.log.Warn("clean up after a container that did not start", "container", id, "error", cerr)
		}
	}()
	_, err = svc.Create(ctx, &tasks.CreateTaskRequest{
		ContainerID: id, Rootfs: mount.ToProto(layer),
		Terminal: streams.terminal, Stdin: streams.stdin, Stdout: streams.stdout, Stderr: streams.stderr(),
	})
	if err != nil {
		return 0, errgrpc.ToNative(err)
	}
	res, err := svc.Start(ctx, &tasks.StartRequest{ContainerID: id})
	if err != nil {
		return 0, errgrpc.ToNative(err)
	}
	return res.Pid, nil
}

func (r *Runtime) taskStatus(ctx context.Context, id string) (task.Status, error) {
	t, err := r.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return task.Status_UNKNOWN, errgrpc.ToNative(err)
	}
	return t.Process.Status, nil
}

func (r *Runtime) stop(ctx context.Context, id string) error {
	_, rec, err := r.own(ctx, id)
	if errors.Is(err, fault.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	status, err := r.taskStatus(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case status == task.Status_STOPPED:
		return nil
	case status == task.Status_CREATED: // nothing ran in it
		return r.endTask(ctx, id)
	case status == task.Status_PAUSED: // a frozen process takes no signal
		if _, err := r.client.TaskService().Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id}); err != nil {
			return errgrpc.ToNative(err)
		}
	}
	sig, err := spec.Signal(rec.StopSignal)
	if err != nil {
		return err
	}
	grace := rec.Container.Service.StopGrace
	if grace == 0 {
		grace = defaultGrace
	}
	if end, ok := ctx.Deadline(); ok { // SIGKILL comes in time, however long the service wants
		grace = min(grace, end.Sub(r.o.Now())-killWait)
	}
	grace -= r.preStop(ctx, rec.Container, grace)
	gone, stopWaiting := r.wait(ctx, id)
	defer stopWaiting()
	if err := r.kill(ctx, id, sig); err != nil {
		return err
	}
	if done, err := within(ctx, grace, gone); done || err != nil {
		return err
	}
	return r.killHard(ctx, id, gone)
}

// killHard kills a task and waits until it is gone.
func (r *Runtime) killHard(ctx context.Context, id string, gone <-chan error) error {
	if err := r.kill(ctx, id, syscall.SIGKILL); err != nil {
		return err
	}
	done, err := within(ctx, killWait, gone)
	if err == nil && !done {
		err = fmt.Errorf("its process did not end %v after SIGKILL: %w", killWait, fault.ErrTemporary)
	}
	return err
}

// wait tells when a task has ended. The caller calls the function when it has heard enough; it returns when the waiting
// has ended.
func (r *Runtime) wait(ctx context.Context, id string) (<-chan error, func()) {
	ctx, cancel := context.WithCancel(ctx)
	gone, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_, err := r.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
		if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
			err = nil
		}
		gone <- err
	}()
	return gone, func() { cancel(); <-ended }
}

// within waits for gone at most d. false, nil: not yet.
func within(ctx context.Context, d time.Duration, gone <-chan error) (bool, error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case err := <-gone:
		return err == nil, err
	case <-t.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// kill signals a task; one that has ended is no error.
func (r *Runtime) kill(ctx context.Context, id string, sig syscall.Signal) error {
	_, err := r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(sig)})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// endTask kills a task if need be and deletes it. No task is no error.
func (r *Runtime) endTask(ctx context.Context, id string) error {
	status, err := r.taskStatus(ctx, id)
	gone := errdefs.IsNotFound(err)
	if err != nil && !gone {
		return err
	}
	if !gone && status != task.Status_STOPPED {
		if status == task.Status_PAUSED {
			if _, err := r.client.TaskService().Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id}); err != nil {
				return errgrpc.ToNative(err)
			}
		}
		ended, stopWaiting := r.wait(ctx, id)
		defer stopWaiting()
		if err := r.killHard(ctx, id, ended); err != nil {
			return err
		}
	}
	// Also when there is no task: a deletion that was cut off leaves its shim behind until it is asked for again.
	for range deleteTries {
		_, err = r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
		if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
			return nil
		}
		// A shim ends with its last task, and with its answer: the next call finds what is left.
		if err == nil || !strings.Contains(err.Error(), shimEnded) {
			return err
		}
	}
	return err
}

func (r *Runtime) remove(ctx context.Context, id string) error {
	_, _, err := r.own(ctx, id)
	gone := errors.Is(err, fault.ErrNotFound)
	if err != nil && !gone {
		return err
	}
	if !gone {
		if err := r.endTask(ctx, id); err != nil {
			return err
		}
	}
	if err := r.removeFirsts(ctx, id); err != nil {
		return err
	}
	if err := r.discard(ctx, id); err != nil {
		return err
	}
	if gone {
		return nil
	}
	return r.deleteBox(ctx, id)
}

// Teardown deletes what a project without containers still owns: its networks, its output, its volumes without names, what
// half-made containers left. Volumes stay.
func (r *Runtime) Teardown(ctx context.Context, project string) error {
	ctx = r.in(ctx)
	err := func() error {
		have, err := r.list(ctx, owned.LabelProject, project)
		if err != nil {
			return err
		}
		have, err = r.dropFirsts(ctx, have)
		if err != nil {
			return err
		}
		if len(have) > 0 {
			return fmt.Errorf("%d containers are left, %s first: %w", len(have), have[0].ID, fault.ErrConflict)
		}
		if err := r.sweep(ctx, project); err != nil {
			return err
		}
		if err := r.o.Networks.Teardown(ctx, project); err != nil {
			return err
		}
		if err := r.volumes.DropAnonymous(project); err != nil {
			return err
		}
		r.shims.forget(project)
		return r.logs.Remove(project) // last: their folder says that the project owns something
	}()
	if err != nil {
		return fmt.Errorf("tear down project %s: %w", project, failure.Classify(err))
	}
	return nil
}
