// Package control lets programs on the device talk to the running agent: HTTP with JSON over a unix socket that only its
// owner may open. Entry points are [Listen] and [Serve] for the agent, [NewClient] for `longshore-agent status`, `sync`
// and `logs`.
//
//	GET  /v1/status                                          200 agent.Status
//	POST /v1/sync                                            200 agent.SyncResult, when the outcome is known
//	GET  /v1/logs?deployment=&service=&tail=&follow=         200 text, as long as it flows
//
// Errors are {"error": "...", "hint": "..."} with 400, 404 or 503.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Limits of a request. All of them are far above what our own client sends.
const (
	maxHeader = 16 << 10
	maxQuery  = 4 << 10
	maxName   = 512
	maxTail   = 1_000_000
)

// Device is what can be asked; [agent.Agent] is one.
type Device interface {
	Status() agent.Status
	Sync(ctx context.Context) (agent.SyncResult, error)
	Logs(ctx context.Context, r agent.LogRequest) (io.ReadCloser, error)
}

var _ Device = (*agent.Agent)(nil)

// Listen opens the socket, mode 0600. It takes the place of a socket that nobody listens on any more; the caller holds
// the agent's store, so there is no second agent.
func Listen(path string) (net.Listener, error) {
	switch fi, err := os.Lstat(path); {
	case err == nil && fi.Mode().Type() == os.ModeSocket:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	case err == nil:
		return nil, fmt.Errorf("listen on %s: there is something that is no socket: %w", path, fault.ErrConflict)
	}
	// The mode is set on a name that nobody knows before the socket gets its own: it is never open to others.
	hidden := path + ".new"
	_ = os.Remove(hidden) // left over from a kill, or not there
	l, err := net.Listen("unix", hidden)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(hidden, 0o600), os.Rename(hidden, path)); err != nil {
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
	srv := &http.Server{
		Handler: Handler(d), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
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

// Handler answers control requests.
func Handler(d Device) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, d.Status()) })
	mux.HandleFunc("POST /v1/sync", func(w http.ResponseWriter, r *http.Request) {
		res, err := d.Sync(r.Context())
		if err != nil {
			refuse(w, err)
			return
		}
		reply(w, http.StatusOK, res)
	})
	mux.HandleFunc("GET /v1/logs", func(w http.ResponseWriter, r *http.Request) {
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

// logRequest reads the query of a logs request strictly.
func logRequest(raw string) (agent.LogRequest, error) {
	var out agent.LogRequest
	if len(raw) > maxQuery {
		return out, fmt.Errorf("query of %d bytes: %w", len(raw), fault.ErrTooLarge)
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return out, fmt.Errorf("query: %w: %w", fault.ErrInvalid, err)
	}
	for key, vs := range q {
		if len(vs) != 1 || len(vs[0]) > maxName {
			return out, fmt.Errorf("query: %.64q must be there once and be short: %w", key, fault.ErrInvalid)
		}
		v := vs[0]
		switch key {
		case "deployment":
			out.Deployment = v
		case "service":
			out.Service = v
		case "follow":
			if out.Follow, err = strconv.ParseBool(v); err != nil {
				return out, fmt.Errorf("query: follow=%q: %w", v, fault.ErrInvalid)
			}
		case "tail":
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 || n > maxTail {
				return out, fmt.Errorf("query: tail=%q: a number from 0 to %d: %w", v, maxTail, fault.ErrInvalid)
			}
			out.Tail = n
		default:
			return out, fmt.Errorf("query: %.64q is not known: %w", key, fault.ErrInvalid)
		}
	}
	return out, nil
}

// problem is the body of an error.
type problem struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, fault.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, fault.ErrInvalid), errors.Is(err, fault.ErrTooLarge):
		status = http.StatusBadRequest
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, context.Canceled):
		status = http.StatusServiceUnavailable
	}
	reply(w, status, problem{err.Error(), fault.Hint(err)})
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
