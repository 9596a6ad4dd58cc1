package tasks

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// client answers as a test says, and notes what it is asked.
type client struct {
	api.TasksClient

	get              func(*api.GetRequest) (*task.Process, error)
	kill, exec, wait error
	started          func()
	calls            []string
}

func (c *client) tasks() *Tasks { return New(c, "n", "/nonexistent", slog.New(slog.DiscardHandler)) }

func (c *client) Get(_ context.Context, r *api.GetRequest, _ ...grpc.CallOption) (*api.GetResponse, error) {
	c.calls = append(c.calls, "get")
	p, err := c.get(r)
	return &api.GetResponse{Process: p}, err
}

func (c *client) Exec(context.Context, *api.ExecProcessRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	c.calls = append(c.calls, "exec")
	return &emptypb.Empty{}, c.exec
}

func (c *client) Kill(context.Context, *api.KillRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	c.calls = append(c.calls, "kill")
	return &emptypb.Empty{}, c.kill
}

func (c *client) Wait(context.Context, *api.WaitRequest, ...grpc.CallOption) (*api.WaitResponse, error) {
	c.calls = append(c.calls, "wait")
	return &api.WaitResponse{}, c.wait
}

func (c *client) DeleteProcess(context.Context, *api.DeleteProcessRequest, ...grpc.CallOption) (*api.DeleteResponse, error) {
	c.calls = append(c.calls, "delete")
	return &api.DeleteResponse{}, nil
}

var (
	errSlow = status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	errGone = status.Error(codes.NotFound, "not found")
)

// Whatever call of a process of ours was not answered: what is left of it is killed and deleted.
func TestNoProcessOfOursStays(t *testing.T) {
	failed := status.Error(codes.FailedPrecondition, "process not created")
	is := func(s task.Status) func(*api.GetRequest) (*task.Process, error) {
		return func(*api.GetRequest) (*task.Process, error) { return &task.Process{Status: s}, nil }
	}
	for _, tc := range []struct {
		name string
		c    *client
		want string
	}{
		{"runs", &client{get: is(task.Status_RUNNING)}, "get kill wait delete"},
		{"has ended", &client{get: is(task.Status_STOPPED)}, "get delete"},
		{"ends meanwhile", &client{get: is(task.Status_RUNNING), kill: errGone, wait: errGone}, "get kill wait delete"},
		{"is starting", &client{get: is(task.Status_CREATED)}, "get kill wait delete"},
		{"was never started", &client{get: is(task.Status_CREATED), kill: failed}, "get kill delete"},
		{"containerd 1 does not know", &client{get: is(task.Status_UNKNOWN)}, "get kill wait delete"},
		{"containerd 2 does not know", &client{get: func(*api.GetRequest) (*task.Process, error) { return nil, errSlow }}, "get kill wait delete"},
		{"was never made", &client{get: func(*api.GetRequest) (*task.Process, error) { return nil, errGone }}, "get"},
	} {
		if err := tc.c.tasks().removeExec(t.Context(), "web-1", "probe-1"); err != nil || strings.Join(tc.c.calls, " ") != tc.want {
			t.Errorf("%s: %v after %q, want %q", tc.name, err, tc.c.calls, tc.want)
		}
	}
	c := &client{exec: errSlow, get: is(task.Status_CREATED)}
	if err := c.tasks().Try(t.Context(), "web-1", &specs.Process{Cwd: "/", Args: []string{"true"}}); err == nil || strings.Join(c.calls, " ") != "exec get kill wait delete" {
		t.Errorf("Try = %v after %q", err, c.calls)
	}
}
