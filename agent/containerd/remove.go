package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Remove deletes a container, stopped or not, with its writable layer and its network attachment. Its volumes stay; its anonymous
// volumes and its output stay until Teardown.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	return r.change(ctx, "remove", id, r.remove)
}

func (r *Runtime) remove(ctx context.Context, id string) error {
	_, _, err := r.records.Own(ctx, id)
	gone := errors.Is(err, fault.ErrNotFound)
	if err != nil && !gone {
		return err
	}
	r.early.take(id)
	if !gone {
		if err := r.tasks.End(ctx, id); err != nil {
			return err
		}
	}
	if err := r.removeInitContainers(ctx, id); err != nil {
		return err
	}
	if err := r.discard(ctx, id); err != nil {
		return err
	}
	if gone {
		return nil
	}
	return r.records.Delete(ctx, id)
}

// Teardown deletes everything that a project without containers still has: its networks, its output, its anonymous volumes, the layers of
// incomplete containers. Named volumes stay.
func (r *Runtime) Teardown(ctx context.Context, project string) error {
	ctx = r.in(ctx)
	err := func() error {
		have, err := r.records.List(ctx, owned.LabelProject, project)
		if err != nil {
			return err
		}
		have, err = r.dropInitContainers(ctx, have)
		if err != nil {
			return err
		}
		if len(have) > 0 {
			return fmt.Errorf("%d containers are left, %s first: %w", len(have), have[0].ID, fault.ErrConflict)
		}
		if err := r.collectLayers(ctx, project); err != nil {
			return err
		}
		if err := r.o.Networks.Teardown(ctx, project); err != nil {
			return err
		}
		if err := r.volumes.DropAnonymous(project); err != nil {
			return err
		}
		r.tasks.Forget(project)
		return r.logs.Remove(project) // last, because Observe finds the project by this folder
	}()
	if err != nil {
		return fmt.Errorf("tear down project %s: %w", project, failure.Classify(err))
	}
	return nil
}

// removeInitContainer removes an init container. A missing one is not an error.
func (r *Runtime) removeInitContainer(ctx context.Context, id string) error {
	if err := r.tasks.End(ctx, id); err != nil {
		return err
	}
	if err := r.clear(ctx, id); err != nil {
		return err
	}
	return r.records.Delete(ctx, id)
}

// removeInitContainers removes a container's init containers that a kill has left.
func (r *Runtime) removeInitContainers(ctx context.Context, id string) error {
	ctrs, err := r.records.List(ctx, owned.LabelHook, id)
	if err == nil {
		_, err = r.dropInitContainers(ctx, ctrs)
	}
	return err
}

// dropInitContainers removes the init containers among some containers, and returns the others.
func (r *Runtime) dropInitContainers(ctx context.Context, ctrs []containers.Container) ([]containers.Container, error) {
	var rest []containers.Container
	for _, b := range ctrs {
		if b.Labels[owned.LabelHook] == "" {
			rest = append(rest, b)
			continue
		}
		if err := r.removeInitContainer(ctx, b.ID); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// dropLayer removes a container's writable layer, if it has one of ours.
func (r *Runtime) dropLayer(ctx context.Context, id string) error {
	info, err := r.snapshots().Stat(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Labels[owned.LabelDevice] != r.o.Device {
		return fmt.Errorf("snapshot %s does not belong to device %s: %w", id, r.o.Device, fault.ErrConflict)
	}
	if err := r.volumes.UnmountLayer(id); err != nil {
		return err
	}
	if err := r.snapshots().Remove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// discard removes everything that only this container uses, except its record.
func (r *Runtime) discard(ctx context.Context, id string) error {
	if err := r.o.Networks.Detach(ctx, id); err != nil {
		return err
	}
	return r.clear(ctx, id)
}

// clear removes a container's mounts, its input and its writable layer.
func (r *Runtime) clear(ctx context.Context, id string) error {
	if err := r.volumes.Clear(ctx, id); err != nil {
		return err
	}
	for _, kind := range []string{"stdin", startsDir} {
		dir, err := paths.Join(r.o.RunDir, kind, id)
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			return err
		}
	}
	return r.dropLayer(ctx, id)
}

// collectLayers removes writable layers of ours without a container, which incomplete containers left. project "": of all.
func (r *Runtime) collectLayers(ctx context.Context, project string) error {
	pairs := []string{}
	if project != "" {
		pairs = append(pairs, owned.LabelProject, project)
	}
	var found []string
	err := r.snapshots().Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		if s.Kind == snapshots.KindActive {
			found = append(found, s.Name)
		}
		return nil
	}, owned.By(r.o.Device, pairs...))
	if err != nil {
		return err
	}
	for _, id := range found {
		if err := r.collectLayer(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) collectLayer(ctx context.Context, id string) error {
	unlock, err := r.ids.Lock(ctx, id) // a Create in progress holds it
	if err != nil {
		return err
	}
	defer unlock()
	_, err = r.client.ContainerService().Get(ctx, id)
	if !errdefs.IsNotFound(err) {
		return err
	}
	return r.discard(ctx, id)
}
