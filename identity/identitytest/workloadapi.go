package identitytest

import (
	"context"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// WorkloadAPI is a SPIFFE Workload API on a Unix socket, as SPIRE's agent serves it: real gRPC, with the answers that the test sets.
type WorkloadAPI struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	Address string // unix:///…
	path    string

	mu      sync.Mutex
	answer  *workload.X509SVIDResponse // nil: nobody has an identity
	changed chan struct{}              // closed by the next change
	stop    func()                     // nil: it does not listen
}

// NewWorkloadAPI makes an API that is away: [WorkloadAPI.Start] starts it.
func NewWorkloadAPI(t testing.TB) *WorkloadAPI {
	t.Helper()
	dir, err := os.MkdirTemp("", "workload") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	w := &WorkloadAPI{path: filepath.Join(dir, "agent.sock"), changed: make(chan struct{})}
	w.Address = "unix://" + w.path
	t.Cleanup(func() {
		w.Stop()
		_ = os.RemoveAll(dir)
	})
	return w
}

// Start listens, after a [WorkloadAPI.Stop] again.
func (w *WorkloadAPI) Start(t testing.TB) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(s, w)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // until Stop
	}()
	w.stop = func() {
		s.Stop()
		<-done
	}
}

// Stop ends the API with all connections.
func (w *WorkloadAPI) Stop() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// Entry is an SVID that the API gives, with the trust bundle of its trust domain.
type Entry struct {
	ID     string
	Pair   Pair
	Bundle []byte // PEM
}

// Give is what every caller gets from now on; without entries they are told that they have no identity.
func (w *WorkloadAPI) Give(entries ...Entry) {
	var answer *workload.X509SVIDResponse
	if len(entries) > 0 {
		answer = &workload.X509SVIDResponse{}
	}
	for _, e := range entries {
		answer.Svids = append(answer.Svids, &workload.X509SVID{SpiffeId: e.ID, X509Svid: der(e.Pair.Cert), X509SvidKey: der(e.Pair.Key), Bundle: der(e.Bundle)})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
	close(w.changed)
	w.changed = make(chan struct{})
}

// der is the content of PEM blocks, one after the other.
func der(text []byte) (out []byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		out = append(out, block.Bytes...)
	}
	return out
}

// FetchX509SVID implements the API.
func (w *WorkloadAPI) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	if !asked(stream.Context()) {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		w.mu.Lock()
		answer, changed := w.answer, w.changed
		w.mu.Unlock()
		if answer == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// asked reports whether a request has the header that keeps others than clients of the API from making it.
func asked(ctx context.Context) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	v := md.Get("workload.spiffe.io")
	return len(v) == 1 && v[0] == "true"
}
