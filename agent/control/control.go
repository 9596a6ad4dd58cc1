// Package control lets programs on the device talk to the running agent: HTTP with JSON over a unix socket that only its
// owner may open. Entry points are [Listen] and [Serve] for the agent, [NewClient] for the commands of `longshore-agent`
// that ask it.
//
//	GET  /v1/status                  200 status.Status
//	GET  /v1/changes                 200 [status.Change]
//	POST /v1/decisions               200 status.Change; the body is a [Decision]
//	POST /v1/rollback                200 status.Hold; the body is a [Rollback]
//	DELETE /v1/hold                  200 status.Hold, of the hold that ended
//	POST /v1/sync                    200 status.SyncResult, when the outcome is known
//	GET  /v1/volumes                 200 [status.Volume], with sizes
//	DELETE /v1/volumes?name=         200 status.Volume, when it is removed
//	GET  /v1/image?repository=&digest=
//	                                 200 agent.ImageVerdict
//	GET  /v1/containers              200 [status.Container]
//	POST /v1/restart?target=         200 [status.Container], when they were started again
//	GET  /v1/stats?target=           200 [status.Usage]
//	GET  /v1/metrics                 200 text, as Prometheus reads it
//	GET  /v1/events?kind=&since=&follow=   200 status.Event, one a line, as long as they come
//	GET  /v1/logs?target=&tail=&follow=&since=&until=&stamps=&prefix=
//	                                 200 text, as long as it flows
//	POST /v1/exec                    101 Upgrade: longshore-exec/2, then pipes and lines, see execProtocol
//
// A second socket, of [ListenGroup], is for the people at the device: it answers status, sync, changes, decisions, rollback and hold. What
// containers wrote is not in its messages.
//
// target may be repeated. 64 answers that take a while may be in progress: logs, events, exec, sync, stats, restart. Errors are {"error": "...", "hint": "..."} with 400, 403, 404, 409, 422, 500, 501 or 503.
package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/metrics"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// maxHeader bounds the header of a request; ours are far below.
	maxHeader = 32 << 10
	// maxSessions is how many answers may be in progress that take a while: output, events, processes, checks. Each holds
	// buffers and open files of an agent that is to stay small.
	maxSessions = 64
)

// Device is what can be asked; [agent.Agent] is one.
type Device interface {
	metrics.Device
	Operator
	Logs(ctx context.Context, r status.LogRequest) (io.ReadCloser, error)
	Events(ctx context.Context, r status.EventRequest, tell func(status.Event) error) error
	Volumes(ctx context.Context) ([]status.Volume, error)
	RemoveVolume(ctx context.Context, name string) (status.Volume, error)
	Restart(ctx context.Context, targets []string, by string) ([]status.Container, error)
	Exec(ctx context.Context, id string, o agent.ExecOptions) (int, error)
	VerifyImage(ctx context.Context, repository string, d digest.Digest) agent.ImageVerdict
}

var _ Device = (*agent.Agent)(nil)

// Listen opens the socket, mode 0600. It takes the place of a socket that no process listens on any more; the caller holds
// the agent's store, so there is no second agent.
func Listen(path string) (net.Listener, error) { return listen(path, 0o600, -1) }

// ListenGroup opens the socket for the people at the device: mode 0660, of a group.
func ListenGroup(path string, gid int) (net.Listener, error) { return listen(path, 0o660, gid) }

func listen(path string, mode os.FileMode, gid int) (net.Listener, error) {
	switch fi, err := os.Lstat(path); {
	case err == nil && fi.Mode().Type() == os.ModeSocket:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	case err == nil:
		return nil, fmt.Errorf("listen on %s: there is something that is no socket: %w", path, fault.ErrConflict)
	}
	// The mode is set on a temporary name before the socket gets its own: it is never open to others.
	hidden := path + ".new"
	_ = os.Remove(hidden) // left over from a kill, or not there
	l, err := net.Listen("unix", hidden)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(hidden, 0o600), os.Chown(hidden, -1, gid), os.Chmod(hidden, mode), os.Rename(hidden, path)); err != nil {
		_ = l.Close() // the first error says it
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return &listener{l, path}, nil
}

// listener removes its socket when it is closed.
type listener struct {
	net.Listener
	path string
}

func (l *listener) Close() error {
	err := l.Listener.Close()
	if rm := os.Remove(l.path); rm != nil && !errors.Is(rm, os.ErrNotExist) && err == nil {
		err = rm
	}
	return err
}

// Serve answers until ctx ends, then closes l and waits for the calls in progress, which end with ctx.
func Serve(ctx context.Context, l net.Listener, d Device, log *slog.Logger) error {
	var upgraded sync.WaitGroup // connections that the server does not wait for; they end with ctx
	defer upgraded.Wait()
	return serve(ctx, l, handler(d, &upgraded), log)
}

// ServeOperators answers the people at the device until ctx ends, as [Serve] does. They are not told what containers write.
func ServeOperators(ctx context.Context, l net.Listener, d Operator, log *slog.Logger) error {
	d = redacted{d}
	mux := http.NewServeMux()
	handle := limited(mux)
	operatorRoutes(handle, d)
	handle("POST /v1/sync", syncNow(d))
	return serve(ctx, l, mux, log)
}

func serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler: h, ConnContext: identify, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close() // what is left does not end by itself
		}
	})
	err := srv.Serve(l)
	if stop() {
		return fmt.Errorf("serve control socket: %w", err)
	}
	<-done
	return nil
}

// handler answers control requests; upgraded are those whose connections are no longer the server's.
func handler(d Device, upgraded *sync.WaitGroup) http.Handler {
	mux := http.NewServeMux()
	session := limited(mux)
	operatorRoutes(func(pattern string, f http.HandlerFunc) { mux.HandleFunc(pattern, f) }, d)
	mux.HandleFunc("GET /v1/containers", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, append([]status.Container{}, d.Containers()...))
	})
	mux.HandleFunc("GET /v1/image", answer(func(r *http.Request) (any, error) {
		q := newQuery(r.URL.RawQuery)
		repository, image := q.text("repository"), digest.Digest(q.text("digest"))
		if repository == "" || image.Validate() != nil {
			q.fail("repository and digest are needed")
		}
		if err := q.end(); err != nil {
			return nil, err
		}
		return d.VerifyImage(r.Context(), repository, image), nil
	}))
	session("GET /v1/volumes", answer(func(r *http.Request) (any, error) {
		all, err := d.Volumes(r.Context())
		return append([]status.Volume{}, all...), err
	}))
	session("DELETE /v1/volumes", answer(func(r *http.Request) (any, error) {
		q := newQuery(r.URL.RawQuery)
		name := q.text("name")
		if err := q.end(); err != nil {
			return nil, err
		}
		return d.RemoveVolume(r.Context(), name)
	}))
	session("POST /v1/restart", answer(func(r *http.Request) (any, error) {
		q := newQuery(r.URL.RawQuery)
		targets := q.targets()
		by, err := peer(r.Context())
		if err := cmp.Or(q.end(), err); err != nil {
			return nil, err
		}
		return d.Restart(r.Context(), targets, by)
	}))
	session("GET /v1/stats", answer(func(r *http.Request) (any, error) {
		q := newQuery(r.URL.RawQuery)
		targets := q.targets()
		if err := q.end(); err != nil {
			return nil, err
		}
		return d.Stats(r.Context(), targets)
	}))
	mux.HandleFunc("GET /v1/metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		_ = metrics.Write(r.Context(), w, d) // the caller may have hung up
	})
	session("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		q := newQuery(r.URL.RawQuery)
		req := status.EventRequest{Kind: status.EventKind(q.text("kind")), Since: q.time("since"), Follow: q.flag("follow")}
		if err := q.end(); err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		flush := http.NewResponseController(w)
		_ = flush.Flush() // a writer that cannot flush still writes
		_ = d.Events(r.Context(), req, func(e status.Event) error {
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return err
			}
			_ = flush.Flush()
			return nil
		}) // the caller may have hung up
	})
	session("POST /v1/exec", exec(d, upgraded))
	session("POST /v1/sync", syncNow(d))
	session("GET /v1/logs", func(w http.ResponseWriter, r *http.Request) {
		q, err := logRequest(r.URL.RawQuery)
		if err != nil {
			refuse(w, err)
			return
		}
		rc, err := d.Logs(r.Context(), q)
		if err != nil {
			refuse(w, err)
			return
		}
		defer rc.Close()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		stream(w, rc)
	})
	return mux
}

// limited adds routes of which [maxSessions] answers may be in progress.
func limited(mux *http.ServeMux) func(pattern string, f http.HandlerFunc) {
	sessions := make(chan struct{}, maxSessions)
	return func(pattern string, f http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			select {
			case sessions <- struct{}{}:
				defer func() { <-sessions }()
				f(w, r)
			default:
				refuse(w, fault.WithHint(fmt.Errorf("%d sessions are open, which is the limit: %w", maxSessions, fault.ErrTemporary),
					"end some of the programs that run longshore-agent logs, events, exec or sync on this device"))
			}
		})
	}
}

func syncNow(d Operator) http.HandlerFunc {
	return answer(func(r *http.Request) (any, error) { return d.Sync(r.Context()) })
}

// stream copies as it comes, so that a follower sees each line at once.
func stream(w http.ResponseWriter, r io.Reader) {
	flush := http.NewResponseController(w)
	_ = flush.Flush() // headers first: the caller knows that it worked; a writer that cannot flush still writes
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
			_ = flush.Flush()
		}
		if err != nil {
			return
		}
	}
}

// problem is the body of an error.
type problem struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`

	Status int `json:"status,omitempty"` // as an answer's, where there is none
}

func refuse(w http.ResponseWriter, err error) {
	reply(w, statusOf(err), problem{Error: err.Error(), Hint: fault.Hint(err)})
}

// kinds are the status codes of errors, those that an error is first. What an answer of a status means is the first of its kinds.
var kinds = []struct {
	status int
	kind   error
}{
	{http.StatusNotFound, fault.ErrNotFound},
	{http.StatusBadRequest, fault.ErrInvalid},
	{http.StatusBadRequest, fault.ErrTooLarge},
	{http.StatusConflict, fault.ErrConflict},
	{http.StatusForbidden, fault.ErrDenied},
	{http.StatusUnprocessableEntity, fault.ErrRejected},
	{http.StatusNotImplemented, fault.ErrUnsupported},
	{http.StatusServiceUnavailable, fault.ErrTemporary},
	{http.StatusServiceUnavailable, context.Canceled},
	{http.StatusServiceUnavailable, context.DeadlineExceeded},
}

func statusOf(err error) int {
	for _, x := range kinds {
		if errors.Is(err, x.kind) {
			return x.status
		}
	}
	return http.StatusInternalServerError
}

// asError is what an answer of that status means.
func (p problem) asError() error {
	kind := fault.ErrTemporary
	for _, x := range slices.Backward(kinds) {
		if x.status == p.Status {
			kind = x.kind
		}
	}
	return fault.WithHint(&answerError{p.Error, kind}, p.Hint)
}

func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the caller may have hung up
}
