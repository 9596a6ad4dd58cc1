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

// errResting is returned at once for a place that timed out a moment ago.
var errResting = fmt.Errorf("it kept a request waiting a moment ago, and is not asked again yet: %w", fault.ErrTemporary)

// WithRest sends no requests for a while after a request or its response body timed out. A place with
// alternatives must not cost the timeout for each request: if it never answers, an update would be delayed although
// the others work. tell is called at the first timeout, and again only after a complete response in between.
func WithRest(base http.RoundTripper, rest time.Duration, tell func(error)) http.RoundTripper {
	return &resting{base: base, rest: rest, tell: tell}
}

type resting struct {
	base http.RoundTripper
	rest time.Duration
	tell func(error)
	now  atomic.Bool
	told atomic.Bool
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

// note begins a rest after a timeout.
func (r *resting) note(err error) {
	var late net.Error
	if !errors.Is(err, errStalled) && (!errors.As(err, &late) || !late.Timeout()) {
		return
	}
	if r.now.CompareAndSwap(false, true) {
		time.AfterFunc(r.rest, func() { r.now.Store(false) })
	}
	if r.told.CompareAndSwap(false, true) {
		r.tell(err)
	}
}

// noted reports the end of a body.
type noted struct {
	io.ReadCloser
	r *resting
}

func (n *noted) Read(b []byte) (int, error) {
	i, err := n.ReadCloser.Read(b)
	switch {
	case err == io.EOF:
		n.r.told.Store(false)
	case errors.Is(err, errStalled):
		n.r.note(err)
	}
	return i, err
}
