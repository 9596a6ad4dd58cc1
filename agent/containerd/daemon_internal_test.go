package containerd

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// daemon is as much of containerd as a test asks: containers, and what is said of their tasks.
type daemon struct {
	containers.Store

	boxes  []containers.Container
	listed []*task.Process
	get    func(*tasks.GetRequest) (*task.Process, error)
	kill   error
	exec   error
	wait   error

	mu    sync.Mutex
	calls []string
}

func (d *daemon) runtime(t *testing.T) *Runtime {
	t.Helper()
	c, err := client.New("", client.WithServices(client.WithTaskClient(asked{daemon: d}), client.WithContainerStore(d)))
	if err != nil {
		t.Fatal(err)
	}
	return &Runtime{
		o: Options{Namespace: "n", Device: "press-07", DataDir: t.TempDir(), Networks: nobody{}}, client: c, log: slog.New(slog.DiscardHandler),
		mute: logrus.NewEntry(logrus.New()),
		ids:  newKeys(), writers: newWriters(), logs: newLogTable(),
	}
}

// nobody answers for any service.
type nobody struct{ Networks }

func (nobody) Answering() map[string]bool { return nil }

func (d *daemon) called(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, what)
}

func (d *daemon) List(context.Context, ...string) ([]containers.Container, error) {
	return d.boxes, nil
}

func (d *daemon) Get(context.Context, string) (containers.Container, error) { return d.boxes[0], nil }

// asked is the daemon as a client of tasks.
type asked struct {
	tasks.TasksClient
	*daemon
}

func (d asked) List(context.Context, *tasks.ListTasksRequest, ...grpc.CallOption) (*tasks.ListTasksResponse, error) {
	return &tasks.ListTasksResponse{Tasks: d.listed}, nil
}

func (d asked) Get(_ context.Context, r *tasks.GetRequest, _ ...grpc.CallOption) (*tasks.GetResponse, error) {
	d.called("get")
	p, err := d.get(r)
	if err != nil {
		return nil, err
	}
	return &tasks.GetResponse{Process: p}, nil
}

func (d asked) Exec(context.Context, *tasks.ExecProcessRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	d.called("exec")
	return &emptypb.Empty{}, d.exec
}

func (d asked) Kill(context.Context, *tasks.KillRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	d.called("kill")
	return &emptypb.Empty{}, d.kill
}

func (d asked) Wait(context.Context, *tasks.WaitRequest, ...grpc.CallOption) (*tasks.WaitResponse, error) {
	d.called("wait")
	return &tasks.WaitResponse{}, d.wait
}

func (d asked) DeleteProcess(context.Context, *tasks.DeleteProcessRequest, ...grpc.CallOption) (*tasks.DeleteResponse, error) {
	d.called("delete")
	return &tasks.DeleteResponse{}, nil
}

var (
	errSlow = status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	errGone = status.Error(codes.NotFound, "not found")
)
