package containerd

import (
	"context"
	"errors"
	"io"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/workload"
)

var _ agent.Runtime = (*Runtime)(nil)

// Runtime is the agent's runtime on containerd.
type Runtime struct {
	o Options
}

var errTodo = errors.New("not built yet")

// New connects to containerd. It does not wait for it: calls made while containerd is away end in fault.ErrTemporary.
func New(ctx context.Context, o Options) (*Runtime, error) { return &Runtime{o: o}, nil }

// Close ends the connection and waits for what this runtime started.
func (r *Runtime) Close() error { return nil }

// Pull makes an image's content and its unpacked layers present and durable.
func (r *Runtime) Pull(ctx context.Context, image workload.Image, progress func(done, total int64)) error {
	return errTodo
}

// Observe lists this device's containers and projects.
func (r *Runtime) Observe(ctx context.Context) (workload.Observed, error) {
	return workload.Observed{}, errTodo
}

// Prepare makes what the containers of a project need around them.
func (r *Runtime) Prepare(ctx context.Context, p *workload.Project) error { return errTodo }

// Create makes a container, not started.
func (r *Runtime) Create(ctx context.Context, p *workload.Project, c workload.Container) error {
	return errTodo
}

// Start runs a created or exited container, with its network.
func (r *Runtime) Start(ctx context.Context, id string) error { return errTodo }

// Stop ends a container's process.
func (r *Runtime) Stop(ctx context.Context, id string) error { return errTodo }

// Remove deletes a container and what is only its own.
func (r *Runtime) Remove(ctx context.Context, id string) error { return errTodo }

// Teardown deletes what a project without containers still owns. Volumes stay.
func (r *Runtime) Teardown(ctx context.Context, project string) error { return errTodo }

// Probe asks once whether a container is well.
func (r *Runtime) Probe(ctx context.Context, id string, p workload.Probe) error { return errTodo }

// Events tells of changes until ctx ends.
func (r *Runtime) Events(ctx context.Context) (<-chan workload.Event, error) { return nil, errTodo }

// Logs opens the output of a container.
func (r *Runtime) Logs(ctx context.Context, id string, o agent.LogOptions) (io.ReadCloser, error) {
	return nil, errTodo
}

// Rotate keeps the logs within their limits. Call it every few seconds.
func (r *Runtime) Rotate(ctx context.Context) error { return errTodo }

// Collect drops images and unpacked layers that are not in keep.
func (r *Runtime) Collect(ctx context.Context, keep []workload.Image) error { return errTodo }
