package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Prepare makes what the containers of a project need around them: networks, addresses, places for volumes and logs.
func (r *Runtime) Prepare(ctx context.Context, p *workload.Project) error {
	err := func() error {
		if err := r.o.Networks.Prepare(ctx, p); err != nil {
			return err
		}
		for _, v := range p.Volumes {
			if err := r.ensureVolume(p, v); err != nil {
				return err
			}
		}
		return r.logs.Prepare(p.Name)
	}()
	if err != nil {
		return fmt.Errorf("prepare project %s: %w", p.Name, failure.Classify(err))
	}
	return nil
}

// Switch lets a service's address and ports lead to a container.
func (r *Runtime) Switch(ctx context.Context, project, service, id string) error {
	return failure.Classify(r.o.Networks.Switch(ctx, project, service, id))
}

// Leave takes a container out of those that its service's address leads to.
func (r *Runtime) Leave(ctx context.Context, id string) error {
	return failure.Classify(r.o.Networks.Leave(ctx, id))
}

// Create makes a container, not started: its writable layer first, for that is what Collect finds again when a kill comes
// between, and its record last, for what has one is complete.
func (r *Runtime) Create(ctx context.Context, p *workload.Project, c workload.Container) error {
	ctx = r.in(ctx)
	unlock, err := r.ids.Lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.create(ctx, p, c); err != nil {
		return fmt.Errorf("create container %s: %w", c.ID, failure.Classify(err))
	}
	return nil
}

func (r *Runtime) create(ctx context.Context, p *workload.Project, c workload.Container) error {
	_, _, err := r.own(ctx, c.ID)
	if err == nil {
		if _, err = r.snapshots().Stat(ctx, c.ID); err == nil {
			return nil
		}
		if !errdefs.IsNotFound(err) {
			return err
		}
		if err := r.remove(ctx, c.ID); err != nil { // a Remove that was killed half-way
			return err
		}
	} else if !errors.Is(err, fault.ErrNotFound) {
		return err
	}
	f, err := r.features(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(r.permitted(ctx, p, c.Service), r.confined(f, c.Service), f.unmet(c.Service), f.canMap(c.Service)); err != nil {
		return err
	}
	img, err := r.images.Ready(ctx, c.Service.Image)
	if err != nil {
		return err
	}
	if err = r.build(ctx, p, c, img, f); err != nil {
		ctx, cancel := after(ctx)
		defer cancel()
		if cerr := r.discard(ctx, c.ID); cerr != nil {
			r.log.Warn("clean up after a container that could not be made", "container", c.ID, "error", cerr)
		}
	}
	return err
}

func (r *Runtime) build(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image, f Features) error {
	layer, err := r.freshLayer(ctx, p, c, img)
	if err != nil {
		return err
	}
	at, err := r.attach(ctx, p.Name, c)
	if err != nil {
		return err
	}
	signal := c.Service.StopSignal
	if signal == "" {
		signal = img.Config.Config.StopSignal
	}
	if _, err := parseSignal(signal); err != nil {
		return err
	}
	ext, err := record{Container: c, NetNS: at.NetNS, StopSignal: signal}.extension()
	if err != nil {
		return err
	}
	box := containers.Container{
		ID: c.ID, Labels: r.labels(p, c), Image: c.Service.Image.Name(), Snapshotter: r.o.Snapshotter, SnapshotKey: c.ID,
		Extensions: ext,
	}
	if box.Runtime, err = r.runtimeOf(c.Service); err != nil {
		return err
	}
	if box.Spec, err = r.specify(ctx, p, c, img, at, layer, joined{}, box); err != nil {
		return err
	}
	return r.createBox(ctx, box)
}

// specify writes the specification of a container.
func (r *Runtime) specify(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image, at Attachment,
	layer []mount.Mount, j joined, box containers.Container,
) (typeurl.Any, error) {
	f, err := r.features(ctx)
	if err != nil {
		return nil, err
	}
	mounts, err := r.mounts(ctx, p, c, img, at, layer)
	if err != nil {
		return nil, err
	}
	b := blueprint{project: p.Name, service: c.Service, image: img, at: at, mounts: mounts, joined: j, f: f}
	spec, err := oci.GenerateSpec(ctx, r.client, &box, r.spec(b)...)
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalAny(spec)
}

// freshLayer makes the container's writable layer, in place of what a killed attempt may have left.
func (r *Runtime) freshLayer(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image) ([]mount.Mount, error) {
	all := map[string]string{
		owned.LabelDevice: r.o.Device, owned.LabelProject: p.Name,
		owned.LabelRoot: r.stamp(), // no container names it yet
	}
	maps.Copy(all, layerLabels(c.Service))
	labels := snapshots.WithLabels(all)
	m, err := r.snapshots().Prepare(ctx, c.ID, img.Top(), labels)
	if !errdefs.IsAlreadyExists(err) {
		return m, err
	}
	if err := r.dropLayer(ctx, c.ID); err != nil {
		return nil, err
	}
	return r.snapshots().Prepare(ctx, c.ID, img.Top(), labels)
}

// dropLayer removes a container's writable layer, if there is one of ours.
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
	if err := r.unmountRootfs(id); err != nil {
		return err
	}
	if err := r.snapshots().Remove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// discard removes everything that only this container uses, but its record.
func (r *Runtime) discard(ctx context.Context, id string) error {
	if err := r.o.Networks.Detach(ctx, id); err != nil {
		return err
	}
	if err := r.clear(ctx, id); err != nil {
		return err
	}
	return r.dropLayer(ctx, id)
}

// sweep discards what half-made containers left: writable layers of ours that no container names. project "" is all.
func (r *Runtime) sweep(ctx context.Context, project string) error {
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
	}, r.filter(pairs...))
	if err != nil {
		return err
	}
	for _, id := range found {
		if err := r.sweepOne(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) sweepOne(ctx context.Context, id string) error {
	unlock, err := r.ids.Lock(ctx, id) // a Create that is under way holds it
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

// withRootfs mounts a container's layer for the time of do. A kill leaves the mount where the next attempt finds it.
func (r *Runtime) withRootfs(id string, layer []mount.Mount, do func(root string) error) (err error) {
	dir, err := r.rootfsDir(id)
	if err != nil {
		return err
	}
	if err := r.unmountRootfs(id); err != nil {
		return err
	}
	if err := makeDir(dir, 0o700); err != nil {
		return err
	}
	if err := mount.All(withoutMapping(mount.RemoveVolatileOption(layer)), dir); err != nil {
		return fmt.Errorf("mount the layer of container %s: %w", id, err)
	}
	defer func() { err = errors.Join(err, r.unmountRootfs(id)) }()
	return do(dir)
}

func (r *Runtime) rootfsDir(id string) (string, error) {
	return paths.Join(filepath.Join(r.o.RunDir, "rootfs"), id)
}

func (r *Runtime) unmountRootfs(id string) error {
	dir, err := r.rootfsDir(id)
	if err != nil {
		return err
	}
	if err := mount.UnmountAll(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return removeEmpty(dir)
}
