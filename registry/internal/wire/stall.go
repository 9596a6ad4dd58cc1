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

// leastRate is what a body has to bring, in bytes a second: below what the slowest links of devices carry, and enough that
// a server that drips bytes to keep a device from its update does not keep it for long.
const leastRate = 64

// errStalled ends a body that brings nothing, or next to nothing.
var errStalled = fmt.Errorf("next to nothing arrived for too long: %w", fault.ErrTemporary)

// WithStall ends every answer whose body brings less than [leastRate] for limit, and every request of whose body nothing is
// taken for limit. A reader that is away for so long is not the registry's fault.
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
		defer up.stop() // once there is an answer, the rest need not be taken
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
	resp.Body = &watched{body: resp.Body, limit: s.limit, least: max(1, int(s.limit.Seconds()*leastRate)), end: end}
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

// watched ends its request when its body brings less than least bytes within limit. It is read by one goroutine at a time,
// as bodies are.
type watched struct {
	body  io.ReadCloser
	limit time.Duration
	least int // bytes of a span of limit
	end   context.CancelFunc

	mu      sync.Mutex
	span    *time.Timer // nil before the first read
	seen    int         // bytes of this span
	reading bool
	idle    bool // the span ended without a read
	expired bool
	closed  bool
}

func (w *watched) Read(b []byte) (int, error) {
	w.begin()
	n, err := w.body.Read(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = false
	if w.seen += n; w.seen >= w.least && !w.expired {
		w.seen = 0
		w.span.Reset(w.limit)
	}
	if w.expired && err != nil && err != io.EOF {
		err = errStalled
	}
	return n, err
}

// begin starts a span with the first read, and anew after a reader that was away for all of one.
func (w *watched) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = true
	switch {
	case w.closed || w.expired:
	case w.span == nil:
		w.span = time.AfterFunc(w.limit, w.over)
	case w.idle:
		w.idle, w.seen = false, 0
		w.span.Reset(w.limit)
	}
}

// over is the end of a span that brought too little.
func (w *watched) over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle = !w.reading; w.idle || w.closed {
		return
	}
	w.expired = true
	w.end()
}

func (w *watched) Close() error {
	w.mu.Lock()
	if w.closed = true; w.span != nil {
		w.span.Stop()
	}
	w.mu.Unlock()
	err := w.body.Close()
	w.end()
	return err
}
