package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Prepare creates what the containers of a project need: networks, addresses, directories for volumes and logs.
func (r *Runtime) Prepare(ctx context.Context, p *workload.Project) error {
	err := func() error {
		if err := r.o.Networks.Prepare(ctx, p); err != nil {
			return err
		}
		for _, v := range p.Volumes {
			if err := r.volumes.Ensure(p, v); err != nil {
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

// Activate makes a container a backend of its service, see [Networks].
func (r *Runtime) Activate(ctx context.Context, project, service, id string) error {
	return failure.Classify(r.o.Networks.Activate(ctx, project, service, id))
}

// Deactivate removes a container from the backends of its service.
func (r *Runtime) Deactivate(ctx context.Context, id string) error {
	return failure.Classify(r.o.Networks.Deactivate(ctx, id))
}

// Create creates a container without starting it: first its writable layer, which Collect finds after a kill, and last its record: a
// container with a record is complete.
func (r *Runtime) Create(ctx context.Context, p *workload.Project, c workload.Container) error {
	return r.change(ctx, "create", c.ID, func(ctx context.Context, _ string) error { return r.create(ctx, p, c) })
}

func (r *Runtime) create(ctx context.Context, p *workload.Project, c workload.Container) error {
	_, _, err := r.records.Own(ctx, c.ID)
	if err == nil {
		if _, err = r.snapshots().Stat(ctx, c.ID); err == nil {
			return nil
		}
		if !errdefs.IsNotFound(err) {
			return err
		}
		if err := r.remove(ctx, c.ID); err != nil { // a Remove was interrupted
			return err
		}
	} else if !errors.Is(err, fault.ErrNotFound) {
		return err
	}
	img, err := r.imageOf(ctx, p, c.Service)
	if err != nil {
		return err
	}
	if err = r.createNew(ctx, p, c, img); err != nil {
		ctx, cancel := deadline.ForCleanup(ctx)
		defer cancel()
		if cerr := r.discard(ctx, c.ID); cerr != nil {
			r.log.Warn("clean up after a container that could not be made", "container", c.ID, "error", cerr)
		}
	}
	return err
}

// imageOf is the image of a service that this device may run.
func (r *Runtime) imageOf(ctx context.Context, p *workload.Project, s workload.Service) (*images.Image, error) {
	f, err := r.features.Find(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.allowed(ctx, p, s, f); err != nil {
		return nil, err
	}
	return r.images.Ready(ctx, s.Image)
}

func (r *Runtime) createNew(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image) error {
	var (
		layer []mount.Mount
		at    workload.Attached
		both  errgroup.Group // not with a shared context: what is interrupted has to be cleaned up
	)
	both.Go(func() (err error) { layer, err = r.freshLayer(ctx, p, c, img); return err })
	both.Go(func() (err error) { at, err = r.attach(ctx, p.Name, c); return err })
	if err := both.Wait(); err != nil {
		return err
	}
	signal := cmp.Or(c.Service.StopSignal, img.Config.Config.StopSignal)
	if _, err := runspec.Signal(signal); err != nil {
		return err
	}
	ctr := containers.Container{
		ID: c.ID, Labels: r.records.Labels(p, c), Image: c.Service.Image.Name(), Snapshotter: r.o.Snapshotter, SnapshotKey: c.ID,
	}
	var err error
	if ctr.Runtime, err = r.runtimeOf(c.Service); err != nil {
		return err
	}
	if ctr.Spec, err = r.specify(ctx, p, c, img, at, layer, runspec.Joined{}, ctr); err != nil {
		return err
	}
	return r.records.Create(ctx, ctr, records.Record{Container: c, NetNS: at.NetNS, StopSignal: signal})
}

// allowed rejects a service that this device must not or cannot run.
func (r *Runtime) allowed(ctx context.Context, p *workload.Project, s workload.Service, f features.Features) error {
	return errors.Join(r.guard.Permit(ctx, p, s), r.specs.Rules.Check(f, s), f.Unmet(s), f.Mappable(s))
}

// specify writes the specification of a container.
func (r *Runtime) specify(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image, at workload.Attached,
	layer []mount.Mount, j runspec.Joined, ctr containers.Container,
) (typeurl.Any, error) {
	f, err := r.features.Find(ctx)
	if err != nil {
		return nil, err
	}
	mounts, err := r.mounts(ctx, p, c, img, at, layer)
	if err != nil {
		return nil, err
	}
	return r.specs.Make(ctx, runspec.Blueprint{
		Project: p, Container: c, Image: img.Config.Config, NetNS: at.NetNS, Hostname: at.Hostname, Mounts: mounts, Joined: j, Features: f,
	}, &ctr)
}

// freshLayer creates the container's writable layer, in place of one that an interrupted attempt may have left.
func (r *Runtime) freshLayer(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image) ([]mount.Mount, error) {
	all := map[string]string{
		owned.LabelDevice: r.o.Device, owned.LabelProject: p.Name,
		owned.LabelRoot: r.o.Now().UTC().Format(time.RFC3339), // no container refers to it yet
	}
	maps.Copy(all, users.LayerLabels(c.Service))
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

// attach attaches a container to its networks. The files of the networks belong to the root of its user namespace.
func (r *Runtime) attach(ctx context.Context, project string, c workload.Container) (workload.Attached, error) {
	at, err := r.o.Networks.Attach(ctx, project, c)
	if err != nil || !users.HasOwnUsers(c.Service) {
		return at, err
	}
	for _, source := range networkFiles(at) {
		if err := os.Lchown(source, users.First, users.First); source != "" && err != nil {
			return at, err
		}
	}
	return at, nil
}

// networkFiles are the network's files, by their paths in a container; "": none.
func networkFiles(at workload.Attached) map[string]string {
	return map[string]string{"/etc/hosts": at.HostsFile, "/etc/resolv.conf": at.ResolvConf, "/etc/hostname": at.HostnameFile}
}

// mounts are the networks' files, the mounts of the service and its image, the collector's authorities, and the agent's program for a
// service with init.
func (r *Runtime) mounts(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image, at workload.Attached, layer []mount.Mount) ([]specs.Mount, error) {
	var out []specs.Mount
	for target, source := range networkFiles(at) {
		if source != "" {
			options := []string{"bind", "rprivate", "nosuid", "nodev", "noexec"}
			if c.Service.ReadOnly {
				options = append(options, "ro")
			}
			out = append(out, specs.Mount{Destination: target, Type: "bind", Source: source, Options: options})
		}
	}
	own, err := r.volumes.Mounts(ctx, p, c, img.Config.Config, layer)
	if err != nil {
		return nil, err
	}
	out = append(out, own...)
	if ca := r.o.Telemetry.Certificate; ca != "" {
		out = append(out, specs.Mount{Destination: runspec.CertificateTarget, Type: "bind", Source: ca, Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev", "noexec"}})
	}
	if c.Service.Init {
		m, err := r.initMount()
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}
