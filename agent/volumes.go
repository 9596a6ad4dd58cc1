package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// volumes is what the loop knows of the named volumes on the disk.
type volumes struct {
	stored []workload.StoredVolume // as last listed
	listed bool                    // they were, since the start
	stale  bool                    // they may be others by now
	busy   bool                    // they are being listed
}

// listVolumes lists the volumes beside the loop when that may have changed, and reports which are kept although their project went.
func (l *loop) listVolumes() {
	if l.volumes.busy || l.volumes.listed && !l.volumes.stale || !l.sight.known || l.sight.blind != nil {
		return
	}
	l.volumes.busy, l.volumes.stale = true, false
	l.within(diskLimit, func(ctx context.Context) {
		stored, err := l.o.Runtime.StoredVolumes(ctx)
		l.send(func(l *loop) {
			l.volumes.busy, l.volumes.listed = false, true
			if err != nil {
				l.log.Warn("volumes are unknown", "err", err)
				return
			}
			l.volumes.stored = stored
		})
	})
}

// usesVolume returns a function that reports whether something on the device uses a volume, or may use it again: the accepted state, the one that
// the device is kept at, a revision to go back to, a container. An error: it is not known.
func (l *loop) usesVolume() (func(v workload.StoredVolume) bool, error) {
	if !l.sight.known || l.sight.blind != nil || l.damaged != nil {
		return nil, fault.WithHint(fmt.Errorf("it is not known which volumes are in use: %w", fault.ErrTemporary), "look at the problems that longshore-agent status shows")
	}
	used := map[string]bool{}
	use := func(d *plan.Deployment) {
		for c := range d.All() {
			for _, v := range c.Project.Volumes {
				used[workload.StoredVolume{Project: c.Project.Name, Name: v.Name}.ID()] = true
				used[v.Shared] = true
			}
		}
	}
	for _, state := range []*plan.Desired{l.targetDesired, l.targetResolved, l.acceptedDesired, l.acceptedResolved} {
		for d := range state.All() {
			use(d)
		}
	}
	for _, g := range l.good {
		use(g.Deployment)
	}
	going := false // a project whose description is gone has something still: it may be any shared volume
	for _, p := range l.sight.seen.Projects {
		going = going || l.targetResolved.Project(p) == nil
	}
	return func(v workload.StoredVolume) bool {
		return used[v.ID()] || going && v.Project == "" || slices.Contains(l.sight.seen.Projects, v.Project)
	}, nil
}

// volumeOf shows a volume.
func (l *loop) volumeOf(v workload.StoredVolume, used bool) status.Volume {
	name := cmp.Or(v.Application, v.Deployment)
	if s, ok := l.told.statuses[v.Deployment]; ok {
		name = cmp.Or(s.Name, name)
	}
	return status.Volume{Name: v.ID(), Volume: v.Name, Project: v.Project, Deployment: name, DeploymentID: v.Deployment, Component: v.Component, InUse: used}
}

// keptVolumes are those that nothing uses.
func (l *loop) keptVolumes() []status.Volume {
	out := []status.Volume{}
	used, err := l.usesVolume()
	if err != nil {
		return out
	}
	for _, v := range l.volumes.stored {
		if !used(v) {
			out = append(out, l.volumeOf(v, false))
		}
	}
	return out
}

// reportKeptVolumes reports which volumes a project that was taken down leaves.
func (l *loop) reportKeptVolumes(project string) {
	l.volumes.stale = true
	var names []string
	var owner status.Volume
	for _, v := range l.volumes.stored {
		if v.Project == project {
			names, owner = append(names, v.Name), l.volumeOf(v, false)
		}
	}
	if len(names) == 0 {
		return
	}
	what := "volumes " + strings.Join(names, ", ") + " stay on the disk: longshore-agent volumes list"
	l.log.Info(what, "project", project)
	l.events.Emit(status.Event{Kind: status.EventKept, Deployment: owner.Deployment, Component: owner.Component, Message: what})
}

// Volumes lists the named volumes on the disk with their sizes, those that nothing uses first.
func (a *Agent) Volumes(ctx context.Context) ([]status.Volume, error) {
	stored, err := a.o.Runtime.StoredVolumes(ctx)
	if err != nil {
		return nil, err
	}
	out, err := ask(ctx, a, func(l *loop) ([]status.Volume, error) {
		used, err := l.usesVolume()
		out := make([]status.Volume, 0, len(stored))
		for _, v := range stored {
			out = append(out, l.volumeOf(v, err != nil || used(v))) // what is not known counts as used
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].Bytes, err = a.o.Runtime.VolumeSize(ctx, out[i].Project, out[i].Volume); err != nil {
			return nil, err
		}
	}
	status.SortVolumes(out)
	return out, nil
}

// RemoveVolume deletes a volume that nothing uses, named as [status.SelectVolume] takes it. fault.ErrConflict: it is in use.
func (a *Agent) RemoveVolume(ctx context.Context, name string) (status.Volume, error) {
	all, err := a.Volumes(ctx)
	if err != nil {
		return status.Volume{}, err
	}
	v, err := status.SelectVolume(all, name)
	if err != nil {
		return status.Volume{}, err
	}
	// In the loop, so that nothing begins to use it in between. Its end is waited for: what was taken away must be freed.
	free, err := ask(context.WithoutCancel(ctx), a, func(l *loop) (func(context.Context) error, error) {
		used, err := l.usesVolume()
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return nil, err
		}
		if used(workload.StoredVolume{Project: v.Project, Name: v.Volume}) {
			return nil, fault.WithHint(fmt.Errorf("volume %s is in use by %s: %w", v.Name, cmp.Or(v.Deployment, "an application"), fault.ErrConflict),
				"remove the application from the device's state first")
		}
		l.volumes.stale = true
		return a.o.Runtime.TakeVolume(ctx, v.Project, v.Volume)
	})
	if err != nil {
		return status.Volume{}, err
	}
	a.o.Logger.Info("a volume is removed", "volume", v.Name, "deployment", v.Deployment, "bytes", v.Bytes)
	err = free(ctx)
	_, told := ask(ctx, a, func(l *loop) (struct{}, error) { l.volumes.stale = true; return struct{}{}, nil })
	return v, errors.Join(err, told)
}
