package tasks

import (
	"context"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
)

func (c *client) Create(context.Context, *api.CreateTaskRequest, ...grpc.CallOption) (*api.CreateTaskResponse, error) {
	c.calls = append(c.calls, "create")
	return &api.CreateTaskResponse{}, nil
}

// Start is answered after the process runs; in between the caller may give up.
func (c *client) Start(ctx context.Context, _ *api.StartRequest, _ ...grpc.CallOption) (*api.StartResponse, error) {
	c.calls = append(c.calls, "start")
	c.started()
	return &api.StartResponse{Pid: 7}, ctx.Err()
}

// An agent that is stopped while a container starts does not end it.
func TestStartThatIsInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	c := &client{started: stop}
	pid, err := c.tasks().begin(ctx, "line", "web-1", nil, IO{})
	if pid != 7 || err != nil || strings.Join(c.calls, " ") != "create start" {
		t.Errorf("begin = %d, %v after %q", pid, err, c.calls)
	}
}
