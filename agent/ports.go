package agent

import (
	"context"
	"io"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Runtime realises workloads, each part of it one side. Every call may be repeated: doing again what is done is no error.
// It never touches an object that does not carry the labels of this device. Calls come from several goroutines at once,
// but never two about the same container, and Prepare and Teardown of a project never beside each other.
type Runtime interface {
	// Pull makes an image's content and its unpacked layers present and durable, and returns what its configuration says.
	// progress may be nil.
	Pull(ctx context.Context, image workload.Image, progress func(done, total int64)) (workload.ImageInfo, error)
	// Collect drops images and unpacked layers that are not in keep.
	Collect(ctx context.Context, keep []workload.Image) error

	// Prepare makes a project's networks, volumes and addresses, whatever containers exist.
	Prepare(ctx context.Context, p *workload.Project) error
	// Activate lets a service's address and ports lead to container id in place of the other container of its replica, for
	// connections from now on. What is established stays with the other one.
	Activate(ctx context.Context, project, service, id string) error
	// Deactivate takes a container out of those that its service's address leads to. The last one stays.
	Deactivate(ctx context.Context, id string) error
	// Teardown deletes what a project without containers still owns. Volumes stay.
	Teardown(ctx context.Context, project string) error

	// Create makes a container, not started. The project must be prepared, the image pulled. [workload.ErrImageGone]: one that it needs
	// is not here any more.
	Create(ctx context.Context, p *workload.Project, c workload.Container) error
	// PrepareStart does what can be done of a created container's Start while another one runs that it replaces. Start does what is missing.
	PrepareStart(ctx context.Context, p *workload.Project, c workload.Container) error
	// Start runs a created or exited container, with its network, its configs and secrets and its hooks. One that cannot be
	// started any more, as part of it is gone, may be removed: it is created anew. [workload.ErrImageGone]: as for Create.
	Start(ctx context.Context, p *workload.Project, c workload.Container) error
	// Stop ends a container's process: its stop signal, then SIGKILL after its grace period. Stopped is no error.
	Stop(ctx context.Context, id string) error
	// Remove deletes a container, stopped or not, its writable layer and its network namespace. Gone is no error.
	Remove(ctx context.Context, id string) error
	// Probe asks once. A nil error is healthy; ctx bounds it.
	Probe(ctx context.Context, id string, p workload.Probe) error
	// Exec runs a process in a running container and returns its exit code (128 and the signal's number when a signal
	// ended it) once it has ended and all of its output is written. When ctx ends, the process is killed. fault.ErrNotFound:
	// no such container; fault.ErrConflict: it does not run; fault.ErrInvalid: there is no such program or user in it.
	Exec(ctx context.Context, id string, o ExecOptions) (exit int, err error)

	// Admit holds all projects that the device is to run against each other and against the machine as it is now, before anything is stopped.
	// What this agent runs already is no conflict: it will make room. What cannot run is in [workload.Conflicts]; any other error
	// says nothing about a project, and Admit is called again.
	Admit(ctx context.Context, projects []*workload.Project) error
	// Observe lists what is there, fresh from the runtime.
	Observe(ctx context.Context) (workload.Observed, error)
	// Events sends changes until ctx ends. The channel is closed then, and after a lost connection once EventLost
	// was sent.
	Events(ctx context.Context) (<-chan workload.Event, error)
	// Usage returns what running containers use, fresh from the runtime, and what the output of all takes.
	Usage(ctx context.Context) ([]workload.Usage, []workload.LogUsage, error)
	// Logs opens the output of a container. Follow ends with ctx.
	Logs(ctx context.Context, id string, o workload.LogOptions) (io.ReadCloser, error)

	// Space is how much room there is where images and the output of containers go, each file system once.
	Space(ctx context.Context) ([]workload.Space, error)
	// Footprint is how many bytes the removal of a project gives back: its containers' layers and output. Volumes stay.
	Footprint(ctx context.Context, project string) (int64, error)

	// StoredVolumes lists the named volumes that have data, also those that no project uses any more. The project of a volume that projects share
	// by its name is "".
	StoredVolumes(ctx context.Context) ([]workload.StoredVolume, error)
	// VolumeSize is how many bytes of the disk a volume takes.
	VolumeSize(ctx context.Context, project, name string) (int64, error)
	// TakeVolume takes a volume away, at once. free then deletes its data, which may take long. fault.ErrNotFound: there is none.
	TakeVolume(ctx context.Context, project, name string) (free func(context.Context) error, err error)
	// ReadVolumeFile reads a file at the top of a named volume. fault.ErrNotFound: there is none.
	ReadVolumeFile(ctx context.Context, project string, v workload.Volume, name string, limit int64) (data []byte, modified time.Time, err error)
}
