package containerd_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/services/version/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
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
		Address: socket, Device: "press-07", DataDir: t.TempDir(), RunDir: t.TempDir(), Journal: new(testenv.Journal), Networks: new(network.Manager), Now: time.Now,
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

// What containerd and runc offer is known, the same at each question, and asked for again when containerd was started again.
func TestOffered(t *testing.T) {
	r := ownRig(t, func(o *containerd.Options) { o.Runtimes = map[string]string{"slow": "/bin/slow-runc"} })
	first, err := r.Offered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := r.release != testenv.Containerd24 // it tells nothing of runc
	if first.Containerd == "" || first.Snapshotter != "overlayfs" || (first.Runc == "") != old || slices.Contains(first.Offered, "seccomp") == old ||
		slices.Contains(first.Offered, "cgroup2") != (first.CgroupVersion == 2) || !slices.Equal(first.Runtimes, []string{"slow"}) {
		t.Errorf("%+v", first)
	}
	t.Logf("containerd %s, runc %s, %s: %s", first.Containerd, first.Runc, first.Snapshotter, first.Offered)
	alone, err := containerd.Offered(t.Context(), r.o)
	if d := cmp.Diff(first.Offered, alone.Offered); d != "" || err != nil || alone.Runc != first.Runc {
		t.Errorf("without a runtime %v (-want +got):\n%s", err, d)
	}
	r.daemon.Kill()
	if _, err := r.Offered(t.Context()); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Offered without containerd = %v", err)
	}
	if err := r.daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "containerd answers again", func() error {
		again, err := r.Offered(t.Context())
		if err == nil && !slices.Equal(again.Offered, first.Offered) {
			t.Errorf("after a restart %q, before %q", again.Offered, first.Offered)
		}
		return err
	})
}
