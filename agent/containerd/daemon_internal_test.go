package containerd

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/longshore-dev/longshore/agent/containerd/locks"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
)

// daemon is as much of containerd as a test asks: containers, what is said of their tasks, and leases.
type daemon struct {
	containers.Store

	boxes  []containers.Container
	listed []*task.Process
	get    func(*tasks.GetRequest) (*task.Process, error)
	kill   error
	exec   error
	wait   error
	leases leaseTable

	mu    sync.Mutex
	calls []string
}

func (d *daemon) runtime(t *testing.T) *Runtime {
	t.Helper()
	c, err := client.New("", client.WithServices(client.WithTaskClient(asked{daemon: d}), client.WithContainerStore(d), client.WithLeasesService(&d.leases)))
	if err != nil {
		t.Fatal(err)
	}
	return &Runtime{
		o: Options{Namespace: "n", Device: "press-07", DataDir: t.TempDir(), Networks: nobody{}}, client: c, log: slog.New(slog.DiscardHandler),
		mute: logrus.NewEntry(logrus.New()),
		ids:  locks.New(), shims: newShims(), logs: logs.NewKeeper("/nonexistent", logs.Limits{}, time.Now, slog.New(slog.DiscardHandler)), claimed: claimed{turn: make(chan struct{}, 1)},
	}
}

// leaseTable is containerd's leases.
type leaseTable struct {
	leases.Manager

	held []leases.Lease
	hang string // the call from which on none is answered
}

func (l *leaseTable) answer(ctx context.Context, call string) error {
	if l.hang == call {
		l.hang = "all"
	}
	if l.hang == "all" {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (l *leaseTable) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	if err := l.answer(ctx, "create"); err != nil {
		return leases.Lease{}, err
	}
	var made leases.Lease
	for _, o := range opts {
		if err := o(&made); err != nil {
			return made, err
		}
	}
	l.held = append(l.held, made)
	return made, nil
}

func (l *leaseTable) List(ctx context.Context, _ ...string) ([]leases.Lease, error) {
	return slices.Clone(l.held), l.answer(ctx, "list")
}

func (l *leaseTable) Delete(ctx context.Context, gone leases.Lease, _ ...leases.DeleteOpt) error {
	if err := l.answer(ctx, "delete"); err != nil {
		return err
	}
	l.held = slices.DeleteFunc(l.held, func(have leases.Lease) bool { return have.ID == gone.ID })
	return nil
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
