package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// errStalled ends a body that brings nothing.
var errStalled = fmt.Errorf("nothing arrived for too long: %w", fault.ErrTemporary)

// WithStall ends every answer whose body brings nothing for limit, and every request of whose body nothing is taken for
// limit. It does not count the time between reads of an answer: a slow reader is not the registry's fault.
func WithStall(base http.RoundTripper, limit time.Duration) http.RoundTripper {
	return &stall{base, limit}
}

type stall struct {
	base  http.RoundTripper
	limit time.Duration
}

func (s *stall) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, end := context.WithCancel(r.Context())
	out := r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		up := &upload{ReadCloser: r.Body, limit: s.limit, late: time.AfterFunc(s.limit, end)}
		defer up.stop() // once there is an answer, nobody has to take the rest
		out.Body = up
	}
	resp, err := s.base.RoundTrip(out)
	if err != nil {
		if ctx.Err() != nil && r.Context().Err() == nil {
			err = errStalled
		}
		end()
		return nil, err
	}
	resp.Body = &watched{body: resp.Body, limit: s.limit, end: end}
	return resp, nil
}

// upload moves the end of its request away each time something of it is taken. What follows its last byte is the answer,
// which the transport waits for with a limit of its own.
type upload struct {
	io.ReadCloser
	limit time.Duration

	mu   sync.Mutex // a transport may go on reading after it has returned an answer
	done bool
	late *time.Timer
}

func (u *upload) Read(b []byte) (int, error) {
	n, err := u.ReadCloser.Read(b)
	if err != nil {
		u.stop()
		return n, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.done {
		u.late.Reset(u.limit)
	}
	return n, nil
}

func (u *upload) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done = true
	u.late.Stop()
}

// watched ends its request when one read takes longer than limit. It is read by one goroutine at a time, as bodies are.
type watched struct {
	body    io.ReadCloser
	limit   time.Duration
	end     context.CancelFunc
	expired bool
}

func (w *watched) Read(b []byte) (int, error) {
	late := time.AfterFunc(w.limit, w.end)
	n, err := w.body.Read(b)
	if !late.Stop() {
		w.expired = true
	}
	if w.expired && err != nil && err != io.EOF {
		err = errStalled
	}
	return n, err
}

func (w *watched) Close() error {
	err := w.body.Close()
	w.end()
	return err
}
