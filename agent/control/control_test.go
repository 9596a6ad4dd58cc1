package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type device struct {
	sync func(ctx context.Context) (agent.SyncResult, error)
	logs func(ctx context.Context, r agent.LogRequest) (io.ReadCloser, error)
}

func (d device) Status() agent.Status {
	return agent.Status{Device: "press-07", Phase: agent.PhaseInSync, Problems: []agent.Problem{{Code: agent.CodeStale}}}
}
func (d device) Sync(ctx context.Context) (agent.SyncResult, error) { return d.sync(ctx) }
func (d device) Logs(ctx context.Context, r agent.LogRequest) (io.ReadCloser, error) {
	return d.logs(ctx, r)
}

func serve(t *testing.T, d device) (client *control.Client, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "agent.sock")
	l, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- control.Serve(ctx, l, d, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket is left: %v", err)
		}
	})
	return control.NewClient(path), path
}

func TestRoundTrip(t *testing.T) {
	c, path := serve(t, device{
		sync: func(context.Context) (agent.SyncResult, error) {
			return agent.SyncResult{Outcome: agent.SyncRefused, Code: agent.CodeRollback, Generation: 3}, nil
		},
		logs: func(_ context.Context, r agent.LogRequest) (io.ReadCloser, error) {
			if r.Service == "none" {
				return nil, fault.WithHint(fmt.Errorf("no service %q: %w", r.Service, fault.ErrNotFound), "look at status")
			}
			return io.NopCloser(strings.NewReader(fmt.Sprint(r.Deployment, " ", r.Service, " ", r.Tail, r.Follow))), nil
		},
	})
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v, want mode 0600", fi.Mode(), err)
	}
	s, err := c.Status(t.Context())
	if err != nil || s.Device != "press-07" || len(s.Problems) != 1 {
		t.Errorf("Status = %+v, %v", s, err)
	}
	r, err := c.Sync(t.Context())
	if diff := cmp.Diff(agent.SyncResult{Outcome: "refused", Code: "generation-rollback", Generation: 3}, r); diff != "" || err != nil {
		t.Errorf("Sync: %v\n%s", err, diff)
	}
	rc, err := c.Logs(t.Context(), agent.LogRequest{Deployment: "a b&c", Service: "web", LogOptions: agent.LogOptions{Tail: 5, Follow: true}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if want := "a b&c web 5 true"; string(b) != want || err != nil {
		t.Errorf("logs = %q, %v, want %q", b, err, want)
	}
	if err := rc.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Logs(t.Context(), agent.LogRequest{Service: "none"}); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) != "look at status" ||
		err.Error() != `no service "none": not found` {
		t.Errorf("Logs(none) = %v, hint %q", err, fault.Hint(err))
	}
}

func TestACallEndsWithTheAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	entered := make(chan bool)
	d := device{sync: func(ctx context.Context) (agent.SyncResult, error) {
		close(entered)
		<-ctx.Done()
		return agent.SyncResult{}, ctx.Err()
	}}
	done := make(chan error)
	go func() { done <- control.Serve(ctx, l, d, slog.New(slog.DiscardHandler)) }()
	asked := make(chan error)
	go func() {
		_, err := control.NewClient(path).Sync(context.WithoutCancel(ctx))
		asked <- err
	}()
	<-entered
	cancel()
	if err := <-asked; err == nil {
		t.Error("Sync of a stopping agent = nil, want an error")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNobodyListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	if _, err := control.NewClient(path).Status(t.Context()); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) == "" {
		t.Errorf("Status = %v, want not found with a hint", err)
	}
}

func TestListenTakesOverADeadSocketOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	for range 2 { // the first is never closed, as after a kill
		l, err := control.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Listen(file); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Listen on a file = %v, want a conflict", err)
	}
}

func FuzzControl(f *testing.F) {
	for _, s := range []string{"/v1/status", "/v1/logs?tail=5&follow=true", "/v1/logs?tail=-1", "/v1/logs?x=1", "/v1/logs?deployment=a&deployment=b", "/v1/logs?%zz", "/../v1/status", "/v1/sync"} {
		f.Add("GET", s)
		f.Add("POST", s)
	}
	h := control.Handler(device{
		sync: func(context.Context) (agent.SyncResult, error) { return agent.SyncResult{}, nil },
		logs: func(_ context.Context, r agent.LogRequest) (io.ReadCloser, error) {
			if r.Tail < 0 || len(r.Service) > 512 {
				panic("unchecked request")
			}
			return io.NopCloser(strings.NewReader("x")), nil
		},
	})
	f.Fuzz(func(t *testing.T, method, target string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://agent/", nil)
		if err != nil {
			t.Skip()
		}
		path, query, _ := strings.Cut(target, "?")
		req.URL.Path, req.URL.RawQuery = path, query
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code >= 500 {
			t.Errorf("%s %s = %d", method, target, w.Code)
		}
	})
}
