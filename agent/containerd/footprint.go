package containerd

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/usage"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Space returns the free space of the file systems that containerd and the agent write to.
func (r *Runtime) Space(ctx context.Context) ([]workload.Space, error) {
	blobs, files, err := r.features.Roots(r.in(ctx))
	if err != nil {
		return nil, fmt.Errorf("measure free space: %w", failure.Classify(err))
	}
	var out []workload.Space
	seen := map[uint64]bool{}
	for _, dir := range []string{files, blobs, r.o.DataDir} {
		var st unix.Stat_t
		var room unix.Statfs_t
		if unix.Stat(dir, &st) != nil || unix.Statfs(dir, &room) != nil || seen[uint64(st.Dev)] {
			continue // a file system that cannot be measured is not reported
		}
		seen[uint64(st.Dev)] = true
		size := int64(room.Blocks) * int64(room.Bsize)
		out = append(out, workload.Space{Dir: dir, Size: size, Free: int64(room.Bavail) * int64(room.Bsize), Keep: r.o.MinFree.Of(size)})
	}
	return out, nil
}

// Footprint returns the bytes that removing a project frees.
func (r *Runtime) Footprint(ctx context.Context, project string) (int64, error) {
	ctx = r.in(ctx)
	ctrs, err := r.client.ContainerService().List(ctx, owned.By(r.o.Device, owned.LabelProject, project))
	if err != nil {
		return 0, fmt.Errorf("measure project %s: %w", project, failure.Classify(err))
	}
	var sum int64
	for _, b := range ctrs {
		u, err := r.snapshots().Usage(ctx, b.SnapshotKey)
		if err != nil && !errdefs.IsNotFound(err) {
			return 0, fmt.Errorf("measure container %s: %w", b.ID, failure.Classify(err))
		}
		sum += u.Size
	}
	logs, err := r.logs.Size(project)
	return sum + logs, err
}

// Usage returns the resource usage of this device's running containers, and the size of all logs.
func (r *Runtime) Usage(ctx context.Context) ([]workload.Usage, []workload.LogUsage, error) {
	ctx = r.in(ctx)
	ctrs, err := r.records.List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("measure containers: %w", failure.Classify(err))
	}
	logs, err := r.logs.Usage(ctx)
	if err != nil || len(ctrs) == 0 {
		return nil, logs, err
	}
	ours := map[string]bool{}
	for _, b := range ctrs {
		ours[b.ID] = true
	}
	out, err := usage.Measure(ctx, r.client.TaskService(), ours, r.o.Now(), r.log)
	if err != nil {
		return nil, nil, fmt.Errorf("measure containers: %w", failure.Classify(err))
	}
	return out, logs, nil
}

// StoredVolumes lists the named volumes that have data on this device, without those that a driver mounts.
func (r *Runtime) StoredVolumes(context.Context) ([]workload.StoredVolume, error) {
	return r.volumes.Stored()
}

// VolumeSize is how many bytes of the disk a volume takes, see [volumes.Store.Size].
func (r *Runtime) VolumeSize(ctx context.Context, project, name string) (int64, error) {
	return r.volumes.Size(ctx, project, name)
}

// TakeVolume removes a volume's data at once, see [volumes.Store.Take].
func (r *Runtime) TakeVolume(ctx context.Context, project, name string) (free func(context.Context) error, err error) {
	return r.volumes.Take(ctx, project, name)
}

// ReadVolumeFile reads a file of an application, see [volumes.Store.ReadFile].
func (r *Runtime) ReadVolumeFile(_ context.Context, project string, v workload.Volume, name string, limit int64) ([]byte, time.Time, error) {
	return r.volumes.ReadFile(project, v, name, limit)
}
