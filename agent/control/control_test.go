package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type device struct {
	sync func(ctx context.Context) (status.SyncResult, error)
	logs func(ctx context.Context, r status.LogRequest) (io.ReadCloser, error)
	exec func(ctx context.Context, id string, o agent.ExecOptions) (int, error)
}

func (d device) Status() status.Status {
	return status.Status{Device: "press-07", Phase: status.PhaseInSync, Problems: []status.Problem{{Code: codes.Stale, Message: outputMessage}}}
}
func (d device) Sync(ctx context.Context) (status.SyncResult, error) { return d.sync(ctx) }
func (d device) Logs(ctx context.Context, r status.LogRequest) (io.ReadCloser, error) {
	return d.logs(ctx, r)
}

func (d device) Containers() []status.Container {
	return []status.Container{
		{ID: "p-web-1-aa", Deployment: "app", DeploymentID: "d1", Project: "p", Service: "web", Replica: 1, State: workload.Running, Active: true},
		{ID: "p-job-1-bb", Deployment: "app", DeploymentID: "d1", Project: "p", Service: "job", Replica: 1, State: workload.Exited},
	}
}

func (d device) Stats(_ context.Context, targets []string) ([]status.Usage, error) {
	if len(targets) > 1 {
		return nil, fmt.Errorf("stats: %w", fault.ErrTemporary)
	}
	return []status.Usage{{ID: "p-web-1-aa", Service: "web", CPUSeconds: 1.5, MemoryBytes: 7}}, nil
}
func (d device) Counts() status.Counts { return status.Counts{Polls: 3} }

func (d device) Events(ctx context.Context, r status.EventRequest, tell func(status.Event) error) error {
	for n := range uint64(3) {
		if err := tell(status.Event{Sequence: n + 1, Kind: status.EventStarted, Time: r.Since}); err != nil {
			return err
		}
	}
	if r.Follow {
		<-ctx.Done()
	}
	return nil
}

func (d device) Volumes(context.Context) ([]status.Volume, error) {
	return []status.Volume{{Name: "p/data", Bytes: 7}}, nil
}

func (d device) RemoveVolume(_ context.Context, name string) (status.Volume, error) {
	return status.Volume{Name: name}, fmt.Errorf("volume %s is in use: %w", name, fault.ErrConflict)
}

func (d device) Restart(_ context.Context, targets []string, by string) ([]status.Container, error) {
	if !strings.HasPrefix(by, "user ") {
		return nil, fmt.Errorf("%q restarts: %w", by, fault.ErrInvalid)
	}
	var out []status.Container
	for _, t := range targets {
		out = append(out, status.Container{Service: t})
	}
	return out, nil
}

func (d device) Exec(ctx context.Context, id string, o agent.ExecOptions) (int, error) {
	return d.exec(ctx, id, o)
}

func (d device) VerifyImage(_ context.Context, repository string, image digest.Digest) agent.ImageVerdict {
	return agent.ImageVerdict{Allowed: true, Reason: repository + "@" + image.String()}
}

func TestVerifyImage(t *testing.T) {
	c, _ := serve(t, device{})
	image := digest.FromString("image")
	v, err := c.VerifyImage(t.Context(), "harbor.example/plant/web", image)
	if err != nil || !v.Allowed || v.Reason != "harbor.example/plant/web@"+image.String() {
		t.Errorf("VerifyImage = %+v, %v", v, err)
	}
	for _, bad := range []struct{ repository, digest string }{{"", image.String()}, {"a/b", ""}, {"a/b", "sha256:short"}, {strings.Repeat("a", 1000), image.String()}} {
		if v, err := c.VerifyImage(t.Context(), bad.repository, digest.Digest(bad.digest)); !errors.Is(err, fault.ErrInvalid) || v.Allowed {
			t.Errorf("VerifyImage(%+v) = %+v, %v", bad, v, err)
		}
	}
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
		sync: func(context.Context) (status.SyncResult, error) {
			return status.SyncResult{Outcome: status.SyncRefused, Code: codes.Rollback, Generation: 3}, nil
		},
		logs: func(_ context.Context, r status.LogRequest) (io.ReadCloser, error) {
			if r.Targets[0] == "none" {
				return nil, fault.WithHint(fmt.Errorf("no service %q: %w", r.Targets[0], fault.ErrNotFound), "look at status")
			}
			return io.NopCloser(strings.NewReader(fmt.Sprintf("%+v", r))), nil
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
	if diff := cmp.Diff(status.SyncResult{Outcome: "refused", Code: "generation-rollback", Generation: 3}, r); diff != "" || err != nil {
		t.Errorf("Sync: %v\n%s", err, diff)
	}
	if done, err := c.Restart(t.Context(), []string{"a b&c", "web"}); err != nil || len(done) != 2 || done[0].Service != "a b&c" {
		t.Errorf("Restart = %+v, %v", done, err)
	}
	rc, err := c.Logs(t.Context(), status.LogRequest{Targets: []string{"a b&c", "web"}, Prefix: true, LogOptions: workload.LogOptions{
		Tail: 5, Follow: true, Since: time.Unix(1, 0).UTC(), Stamps: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if want := "{Targets:[a b&c web] Prefix:true LogOptions:{Follow:true Tail:5 Since:1970-01-01 00:00:01 +0000 UTC Until:0001-01-01 00:00:00 +0000 UTC Stamps:true}}"; string(b) != want || err != nil {
		t.Errorf("logs = %q, %v, want %q", b, err, want)
	}
	if err := rc.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Logs(t.Context(), status.LogRequest{Targets: []string{"none"}}); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) != "look at status" ||
		err.Error() != `no service "none": not found` {
		t.Errorf("Logs(none) = %v, hint %q", err, fault.Hint(err))
	}
}

func TestQuestions(t *testing.T) {
	c, _ := serve(t, device{})
	all, err := c.Containers(t.Context())
	if diff := cmp.Diff(device{}.Containers(), all); diff != "" || err != nil {
		t.Errorf("Containers: %v\n%s", err, diff)
	}
	usage, err := c.Stats(t.Context(), []string{"web"})
	if err != nil || len(usage) != 1 || usage[0].CPUSeconds != 1.5 {
		t.Errorf("Stats = %+v, %v", usage, err)
	}
	if _, err := c.Stats(t.Context(), []string{"web", "job"}); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Stats of a runtime that is away = %v, want temporary", err)
	}
	if all, err := c.Volumes(t.Context()); err != nil || len(all) != 1 || all[0].Bytes != 7 {
		t.Errorf("Volumes = %+v, %v", all, err)
	}
	if _, err := c.RemoveVolume(t.Context(), "p/data"); !errors.Is(err, fault.ErrConflict) || err.Error() != "volume p/data is in use: conflict" {
		t.Errorf("RemoveVolume of one in use = %v", err)
	}
	rc, err := c.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(rc)
	if err != nil || !strings.Contains(string(text), "\nlongshore_container_cpu_seconds_total{") {
		t.Errorf("Metrics = %.200q, %v", text, err)
	}
	_ = rc.Close() // only read
	since := time.Date(2026, 11, 20, 12, 0, 0, 5, time.UTC)
	for _, follow := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		var seen []uint64
		if err := c.Events(ctx, status.EventRequest{Since: since, Follow: follow}, func(e status.Event) error {
			if seen = append(seen, e.Sequence); !e.Time.Equal(since) {
				t.Errorf("since = %v, want %v", e.Time, since)
			}
			if len(seen) == 3 && follow {
				cancel()
			}
			return nil
		}); err != nil || len(seen) != 3 {
			t.Errorf("Events(follow %v) = %v, %v", follow, seen, err)
		}
		cancel()
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
	d := device{sync: func(ctx context.Context) (status.SyncResult, error) {
		close(entered)
		<-ctx.Done()
		return status.SyncResult{}, ctx.Err()
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
	for _, s := range []string{"/v1/status", "/v1/logs?tail=5&follow=true", "/v1/logs?tail=-1", "/v1/logs?tail=-2", "/v1/logs?x=1", "/v1/logs?target=a&target=b&since=x", "/v1/events?since=2026-11-20T12:00:00Z", "/v1/stats?target=", "/v1/metrics", "/v1/containers", "/v1/exec", "/v1/logs?%zz", "/../v1/status", "/v1/sync"} {
		f.Add("GET", s)
		f.Add("POST", s)
	}
	h := control.Handler(device{
		sync: func(context.Context) (status.SyncResult, error) { return status.SyncResult{}, nil },
		logs: func(_ context.Context, r status.LogRequest) (io.ReadCloser, error) {
			if r.Tail < workload.NoTail || len(r.Targets) > 256 || slices.ContainsFunc(r.Targets, func(s string) bool { return s == "" || len(s) > 512 }) {
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
		if w.Code >= 500 && !strings.Contains(query, "target=") { // of several, our device says that it cannot now
			t.Errorf("%s %s = %d", method, target, w.Code)
		}
	})
}

func unixTransport(path string) *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
}

// TestTooManySessions: they are bounded, whoever opens them, and short questions are answered beside them.
func TestTooManySessions(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := device{logs: func(ctx context.Context, _ status.LogRequest) (io.ReadCloser, error) {
		r, w := io.Pipe()
		context.AfterFunc(ctx, func() { _ = w.Close() })
		return r, nil
	}}
	c, _ := serve(t, d)
	var open []io.ReadCloser
	defer func() {
		cancel()
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for range 64 {
		l, err := c.Logs(ctx, status.LogRequest{LogOptions: workload.LogOptions{Follow: true}})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
	}
	if _, err := c.Logs(ctx, status.LogRequest{}); !fault.Retryable(err) || fault.Hint(err) == "" || !strings.Contains(err.Error(), "64 sessions") {
		t.Errorf("one session more = %v (hint %q), want a refusal that passes", err, fault.Hint(err))
	}
	if _, err := c.Status(ctx); err != nil {
		t.Errorf("Status beside them: %v", err)
	}
}
