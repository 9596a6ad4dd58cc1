// Package budget limits the use of a link by transfers: bytes per second, total bytes, and the hours of use.
//
// It counts the bodies of requests and responses, sent and received ones separately: a link has a capacity
// in each direction, and a copy from registry to registry receives and sends each byte once.
package budget

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ErrUsed: all bytes of the run are used. Copied content stays, and the next run continues.
var ErrUsed = fmt.Errorf("the bytes of this run are used up: %w", fault.ErrTemporary)

const (
	// most bounds a single read, and so the bytes by which each request in progress may exceed the total.
	most = 32 << 10
	// look is the time between checks of a closed window: clocks are set, and machines sleep.
	look = time.Minute
)

// Options are the limits. The zero value has none.
type Options struct {
	Rate    int64            // bytes a second in each direction, of all requests together; 0: any number
	Total   int64            // bytes in each direction; 0: any number
	Windows []Window         // when transfers may run; none: always
	NoWait  bool             // outside of the windows the run ends instead of waiting
	Now     func() time.Time // local time for Windows
	Tell    func(string)     // called with the reason of a wait, possibly by several goroutines; nil: not called
}

// Budget has the limits and counts of one run. It is safe for concurrent use.
type Budget struct {
	o        Options
	step     int // bytes that are read at once
	end      context.CancelCauseFunc
	sent     direction
	received direction
	waits    atomic.Bool // Tell was called
}

// direction is one direction of the link.
type direction struct {
	used atomic.Int64
	rate *rate.Limiter // nil: any rate
}

// New begins a run. Its transfers use the context that is returned: it ends, with a cause that wraps fault.ErrTemporary, when
// the total is used up, and with NoWait when a window closes. cancel frees it.
func New(ctx context.Context, o Options) (b *Budget, run context.Context, cancel func()) {
	run, end := context.WithCancelCause(ctx)
	b = &Budget{o: o, step: most, end: end}
	if o.Rate > 0 {
		b.step = int(min(max(o.Rate/8, 1), most)) // small steps: a body that is not read for long is aborted
		b.sent.rate = rate.NewLimiter(rate.Limit(o.Rate), b.step)
		b.received.rate = rate.NewLimiter(rate.Limit(o.Rate), b.step)
	}
	return b, run, func() { end(nil) }
}

// Left is the number of bytes left in the direction that has used more; false: no limit.
func (b *Budget) Left() (int64, bool) {
	return max(0, b.o.Total-max(b.sent.used.Load(), b.received.used.Load())), b.o.Total > 0
}

// Wrap applies the limits to the requests of base. A nil Budget has none.
func (b *Budget) Wrap(base http.RoundTripper) http.RoundTripper {
	if b == nil {
		return base
	}
	return &bounded{b, base}
}

type bounded struct {
	b    *Budget
	base http.RoundTripper
}

func (t *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	if err := t.b.open(ctx); err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close()) // a round tripper closes it
		}
		return nil, err
	}
	if r.Body != nil && r.Body != http.NoBody {
		r = r.WithContext(ctx)
		r.Body = &body{r.Body, ctx, t.b, &t.b.sent}
		if again := r.GetBody; again != nil {
			r.GetBody = func() (io.ReadCloser, error) {
				content, err := again()
				return &body{content, ctx, t.b, &t.b.sent}, err
			}
		}
	}
	resp, err := t.base.RoundTrip(r)
	if err == nil {
		resp.Body = &body{resp.Body, ctx, t.b, &t.b.received}
	}
	return resp, err
}

// open waits until transfers may run.
func (b *Budget) open(ctx context.Context) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if left, limited := b.Left(); limited && left == 0 {
			b.end(ErrUsed)
			continue
		}
		next, open := Open(b.o.Windows, b.o.Now)
		if open {
			b.waits.Store(false)
			return nil
		}
		said := "outside of the hours of --window"
		if !next.IsZero() {
			said += ", which begin " + next.Format("Mon 15:04")
		}
		if b.o.NoWait {
			b.end(fmt.Errorf("%s: %w", said, fault.ErrTemporary))
			continue
		}
		if b.waits.CompareAndSwap(false, true) && b.o.Tell != nil {
			b.o.Tell(said)
		}
		timer := time.NewTimer(look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// body counts the bytes that it reads in a budget.
type body struct {
	io.ReadCloser
	ctx context.Context
	b   *Budget
	way *direction
}

func (r *body) Read(p []byte) (int, error) {
	if err := r.b.open(r.ctx); err != nil {
		return 0, err
	}
	n, err := r.ReadCloser.Read(p[:min(len(p), r.b.step)])
	r.way.used.Add(int64(n))
	if r.way.rate != nil && n > 0 {
		if late := r.way.rate.WaitN(r.ctx, n); late != nil && err == nil {
			err = late
		}
	}
	return n, err
}
