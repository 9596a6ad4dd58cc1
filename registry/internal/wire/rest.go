package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// errResting keeps others from waiting for what did not answer a moment ago.
var errResting = fmt.Errorf("it kept a request waiting a moment ago, and is not asked again yet: %w", fault.ErrTemporary)

// WithRest asks nothing for a while after a request or the body of its answer ran into a limit of time. A place that has
// others behind it must not cost its limit again for each request: one that never answers would keep an update away, however
// well the others are.
func WithRest(base http.RoundTripper, rest time.Duration) http.RoundTripper {
	return &resting{base: base, rest: rest}
}

type resting struct {
	base http.RoundTripper
	rest time.Duration
	now  atomic.Bool
}

func (r *resting) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.now.Load() {
		if req.Body != nil {
			_ = req.Body.Close() // a round tripper closes it, and nothing was sent
		}
		return nil, errResting
	}
	resp, err := r.base.RoundTrip(req)
	if err != nil {
		if req.Context().Err() == nil {
			r.note(err)
		}
		return nil, err
	}
	resp.Body = &noted{resp.Body, r}
	return resp, nil
}

// note begins a rest after errors that took their time.
func (r *resting) note(err error) {
	var late net.Error
	if !errors.Is(err, errStalled) && (!errors.As(err, &late) || !late.Timeout()) {
		return
	}
	if r.now.CompareAndSwap(false, true) {
		time.AfterFunc(r.rest, func() { r.now.Store(false) })
	}
}

// noted tells how a body ended.
type noted struct {
	io.ReadCloser
	r *resting
}

func (n *noted) Read(b []byte) (int, error) {
	i, err := n.ReadCloser.Read(b)
	if err != nil && errors.Is(err, errStalled) {
		n.r.note(err)
	}
	return i, err
}
