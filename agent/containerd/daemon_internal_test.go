package containerd

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/longshore-dev/longshore/agent/containerd/claim"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/containerd/tasks"
)

// daemon is as much of containerd as a test asks: containers, what is said of their tasks, and leases.
type daemon struct {
	containers.Store

	ctrs   []containers.Container
	listed []*task.Process
	get    func(*api.GetRequest) (*task.Process, error)

	mu    sync.Mutex
	calls []string
}

func (d *daemon) runtime(t *testing.T) *Runtime {
	t.Helper()
	c, err := client.New("", client.WithServices(client.WithTaskClient(asked{daemon: d}), client.WithContainerStore(d), client.WithLeasesService(freeDevice{})))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	o := Options{Namespace: "n", Device: "press-07", DataDir: t.TempDir(), Networks: noBackends{}, Now: time.Now}
	return &Runtime{
		o: o, client: c, log: log, silent: logrus.NewEntry(logrus.New()), tasks: tasks.New(c.TaskService(), o.Namespace, o.DataDir, log),
		records: records.New(c.ContainerService(), o.Device, o.Namespace, log),
		claim:   claim.New(c.LeasesService(), claim.Options{Device: o.Device, Namespace: o.Namespace, DataDir: o.DataDir, Logger: log}),
		logs:    logs.NewKeeper("/nonexistent", logs.Limits{}, time.Now, log),
	}
}

// freeDevice has no claims, and keeps none.
type freeDevice struct{ leases.Manager }

func (freeDevice) Create(context.Context, ...leases.Opt) (leases.Lease, error) {
	return leases.Lease{}, nil
}
func (freeDevice) List(context.Context, ...string) ([]leases.Lease, error) { return nil, nil }

// noBackends has no container behind any service.
type noBackends struct{ Networks }

func (noBackends) ActiveBackends() map[string]bool { return nil }

func (d *daemon) called(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, what)
}

func (d *daemon) List(context.Context, ...string) ([]containers.Container, error) {
	return d.ctrs, nil
}

func (d *daemon) Get(context.Context, string) (containers.Container, error) { return d.ctrs[0], nil }

// asked is the daemon as a client of tasks.
type asked struct {
	api.TasksClient
	*daemon
}

func (d asked) List(context.Context, *api.ListTasksRequest, ...grpc.CallOption) (*api.ListTasksResponse, error) {
	return &api.ListTasksResponse{Tasks: d.listed}, nil
}

func (d asked) Get(_ context.Context, r *api.GetRequest, _ ...grpc.CallOption) (*api.GetResponse, error) {
	d.called("get")
	p, err := d.get(r)
	if err != nil {
		return nil, err
	}
	return &api.GetResponse{Process: p}, nil
}

func (d asked) Kill(context.Context, *api.KillRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	d.called("kill")
	return &emptypb.Empty{}, nil
}

var (
	errSlow = status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	errGone = status.Error(codes.NotFound, "not found")
)
