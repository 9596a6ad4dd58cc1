package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// errStalled ends a body that brings nothing.
var errStalled = fmt.Errorf("nothing arrived for too long: %w", fault.ErrTemporary)

// WithStall ends every answer whose body brings nothing for limit. It watches no time between reads: a slow reader is not
// the registry's fault.
func WithStall(base http.RoundTripper, limit time.Duration) http.RoundTripper {
	return &stall{base, limit}
}

type stall struct {
	base  http.RoundTripper
	limit time.Duration
}

func (s *stall) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, end := context.WithCancel(r.Context())
	resp, err := s.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = &watched{body: resp.Body, limit: s.limit, end: end}
	return resp, nil
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
