package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/workload"
)

// maxEarly is how many created tasks may wait for their starts, up to those that are being created: an update of a whole device would have one
// for each container, and runc's process holds 4 MiB in each.
const maxEarly = 8

const startsDir = "starts" // in the run directory: a file for each container that was created early, which is as old as its start

// early are the tasks that PrepareStart created for a Start to come, by container. They are known to this process only: the Start of another
// one ends a task that was not started, and creates it again.
type early struct{ sync.Map }

// earlyTask is what a task was created with.
type earlyTask struct {
	at    workload.Attached
	netns os.FileInfo // nil: the device's own
}

// waiting are the containers that have such a task.
func (e *early) waiting() (ids []string) {
	for id := range e.Range {
		ids = append(ids, id.(string))
	}
	return ids
}

// take returns a task once; nil: there is none.
func (e *early) take(id string) *earlyTask {
	x, _ := e.LoadAndDelete(id)
	t, _ := x.(*earlyTask)
	return t
}

// PrepareStart does what can be done of a created container's Start while the container that it replaces still runs: all but the start of its
// process, for which runc needs most of the time. A container is left as it is if that could differ afterwards: with init containers,
// devices or namespaces of others, and with paths of the device or within a volume, which the other one may still replace. So is one of another
// runtime: at its creation a virtual machine would start beside the one that it replaces.
func (r *Runtime) PrepareStart(ctx context.Context, p *workload.Project, c workload.Container) error {
	return r.change(ctx, "prepare the start of", c.ID, func(ctx context.Context, _ string) error { return r.createTask(ctx, p, c) })
}

func (r *Runtime) createTask(ctx context.Context, p *workload.Project, c workload.Container) error {
	if len(r.early.waiting()) >= maxEarly || len(c.Service.PreStart) > 0 || runspec.BuiltAtStart(c.Service) || slices.ContainsFunc(c.Service.Mounts, func(m workload.Mount) bool {
		return m.Kind == workload.MountBind || m.Subpath != ""
	}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.startLimit)
	defer cancel()
	ctr, rec, err := r.records.Own(ctx, c.ID)
	if err != nil || c.Hash != rec.Container.Hash || !isRunc(ctr.Runtime) {
		return err
	}
	if _, err := r.tasks.Status(ctx, c.ID); !errdefs.IsNotFound(err) {
		return err
	}
	if nested, err := runspec.Nested(ctr.Spec, r.o.DataDir); nested || err != nil {
		return err
	}
	layer, err := r.snapshots().Mounts(ctx, ctr.SnapshotKey)
	if err != nil {
		return err
	}
	at, err := r.attach(ctx, ctr.Labels[owned.LabelProject], c)
	if err != nil {
		return err
	}
	netns, err := netnsOf(at)
	if err != nil {
		return err
	}
	if err := r.refresh(ctx, p, c, at, layer, ctr, rec); err != nil {
		return err
	}
	streams, err := r.taskIO(c.Service, c.ID, ctr.Labels)
	if err != nil {
		return err
	}
	if err := r.tasks.Create(ctx, runspec.Group(p.Name, c.Service), c.ID, layer, streams); err != nil {
		return err
	}
	r.early.Store(c.ID, &earlyTask{at, netns})
	return nil
}

// startEarly starts a task that PrepareStart created; false: it could not be, or its networks are others now, and everything is to be done again.
func (r *Runtime) startEarly(ctx context.Context, c workload.Container, labels map[string]string, t earlyTask) bool {
	ctx, cancel := context.WithTimeout(ctx, r.startLimit)
	defer cancel()
	at, err := r.attach(ctx, labels[owned.LabelProject], c)
	if err == nil {
		var netns os.FileInfo
		if netns, err = netnsOf(at); err == nil && (at != t.at || netns != nil && !os.SameFile(netns, t.netns)) {
			err = errors.New("its networks were made again")
		}
	}
	var pid uint32
	if err == nil {
		pid, err = r.tasks.Start(ctx, c.ID)
	}
	if err != nil {
		r.log.Debug("a task that was created early is created again", "container", c.ID, "error", err)
		return false
	}
	if err := r.noteStart(c.ID); err != nil {
		r.log.Debug("a container's start is shown as the time at which it was prepared", "container", c.ID, "error", err)
	}
	r.started(c, labels, pid)
	return true
}

// noteStart keeps when a process that was created early started: the kernel's start time of it is that of its creation. runc leaves nothing to see it
// by: before 1.2 it writes to the directory of the container's state at each exec.
func (r *Runtime) noteStart(id string) error {
	file, err := paths.Join(r.o.RunDir, startsDir, id)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, nil, 0o600)
}

// waited is for how long the first process of a running container waited between its creation and its start; 0 also if it was not created early.
func (r *Runtime) waited(id string) time.Duration {
	file, err := paths.Join(r.o.RunDir, startsDir, id)
	if err != nil {
		return 0
	}
	started, err := os.Stat(file)
	if err != nil {
		return 0
	}
	created, err := r.tasks.Created(id)
	if err != nil {
		return 0
	}
	return max(0, started.ModTime().Sub(created)) // less: of an earlier run
}

// netnsOf is the network namespace of an attachment; nil: the device's own.
func netnsOf(at workload.Attached) (os.FileInfo, error) {
	if at.NetNS == "" {
		return nil, nil
	}
	return os.Stat(at.NetNS)
}
