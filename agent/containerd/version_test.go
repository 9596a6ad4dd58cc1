package containerd_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ancient is a containerd that says how old it is and can do nothing else.
type ancient struct {
	api.UnimplementedVersionServer
	version string
}

func (a ancient) Version(context.Context, *emptypb.Empty) (*api.VersionResponse, error) {
	return &api.VersionResponse{Version: a.version}, nil
}

// TestTooOldAContainerd finds it refused by name at admission, for every project.
func TestTooOldAContainerd(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	api.RegisterVersionServer(s, ancient{version: "1.5.18~ds1"})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // ends with Stop
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	r, err := containerd.New(t.Context(), containerd.Options{
		Address: socket, Device: "press-07", DataDir: t.TempDir(), RunDir: t.TempDir(), Journal: newJournal(), Networks: adapted{}, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = r.Admit(t.Context(), []*workload.Project{project("one", server(workload.Image{})), project("two", server(workload.Image{}))})
	var found workload.Conflicts
	if !errors.As(err, &found) || len(found) != 2 || !errors.Is(err, fault.ErrUnfit) {
		t.Fatalf("Admit = %v, want a conflict for each project", err)
	}
	for _, c := range found {
		if !strings.HasSuffix(c.Error(), ": services: containerd is 1.5.18~ds1, the oldest supported version is 1.6") || !strings.HasPrefix(fault.Hint(c), "install containerd 2") {
			t.Errorf("conflict %q, hint %q", c.Error(), fault.Hint(c))
		}
	}
}
