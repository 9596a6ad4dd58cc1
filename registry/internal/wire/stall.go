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

// leastRate is the minimum rate of a body, in bytes per second: below the slowest links of devices, and high enough that
// a server cannot delay an update for long by sending single bytes.
const leastRate = 64

// errStalled ends a body with no or almost no data.
var errStalled = fmt.Errorf("next to nothing arrived for too long: %w", fault.ErrTemporary)

// WithStall ends every response whose body is below [leastRate] for limit, and every request whose body is not read
// for limit. Time in which the reader of a response does not read does not count.
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
		defer up.stop() // after the response, the rest of the body need not be read
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

// upload extends the deadline of its request each time some of it is read. After its last byte
// the transport waits for the response with a timeout of its own.
type upload struct {
	io.ReadCloser
	limit time.Duration

	mu   sync.Mutex // a transport may continue reading after it has returned a response
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

// watched ends its request when its body has less than least bytes within limit. It is read by one goroutine at a time,
// like all bodies.
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

// begin starts a span at the first read, and again after a span without a read.
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

// over handles the end of a span with too few bytes.
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
