package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxQueue  = 1024            // spans that wait for a collector; more are dropped
	maxBatch  = 256             // spans of one request
	batchWait = 5 * time.Second // for more spans after the first, unless the environment says another time
	sendLimit = 5 * time.Second // of one request
	flushTime = 2 * time.Second // for what is left when the agent ends
	maxAnswer = 64 << 10        // bytes of an answer that are read, so that the connection ends in order
)

// sender brings spans to the collector, each once or not at all.
type sender struct {
	c        *Collector
	resource []attribute
	version  string
	client   *http.Client
	log      *slog.Logger
	queue    chan span
	dropped  atomic.Uint64 // since they were last logged
	failing  bool          // of run alone
}

func newSender(o Options) *sender {
	c := o.Collector
	t := &http.Transport{
		Proxy: o.Proxy, TLSClientConfig: o.TLS, ForceAttemptHTTP2: true, TLSHandshakeTimeout: sendLimit, MaxResponseHeaderBytes: maxAnswer,
		DisableKeepAlives: true, // changes are rare: no connection waits for the next one
	}
	var via http.RoundTripper = t
	if o.Wrap != nil {
		via = o.Wrap(t)
	}
	return &sender{
		c: c, version: o.Version, log: o.Logger, queue: make(chan span, maxQueue), resource: c.resource(o),
		client: &http.Client{
			Transport:     via,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // headers are sent nowhere else
		},
	}
}

// put takes a span, or drops it. It never waits.
func (s *sender) put(x span) {
	select {
	case s.queue <- x:
	default:
		s.dropped.Add(1)
	}
}

// run sends until the queue is closed, and after the end of ctx for flushTime at most.
func (s *sender) run(ctx context.Context) {
	life, end := outlast(ctx, flushTime)
	defer end()
	defer s.client.CloseIdleConnections()
	for first := range s.queue {
		s.send(life, s.batch(ctx, first))
	}
}

// batch takes what comes within a moment after the first span.
func (s *sender) batch(ctx context.Context, first span) []span {
	out := []span{first}
	timer := time.NewTimer(s.c.Delay)
	defer timer.Stop()
	soon, over := ctx.Done(), timer.C
	for len(out) < maxBatch {
		select {
		case x, more := <-s.queue:
			if !more {
				return out
			}
			out = append(out, x)
		case <-soon: // the queue is closed next
			soon, over = nil, nil
		case <-over:
			return out
		}
	}
	return out
}

// send sends a batch, or drops it: one line in the log when that changes.
func (s *sender) send(ctx context.Context, batch []span) {
	err := s.post(ctx, request(s.resource, s.version, batch))
	lost := s.dropped.Swap(0)
	switch {
	case err != nil && !s.failing:
		s.log.Warn("the collector takes no traces; they are dropped", "collector", s.c.Name(), "err", err)
	case err == nil && s.failing:
		s.log.Info("the collector takes traces again", "collector", s.c.Name())
	}
	if s.failing = err != nil; lost > 0 && err == nil {
		s.log.Warn("spans were dropped: too many waited for the collector", "spans", lost)
	}
}

func (s *sender) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.c.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %w", fault.ErrInvalid, bare(err))
	}
	req.Header = s.c.Headers.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "longshore-agent/"+s.version)
	res, err := s.client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", fault.ErrTemporary, bare(err))
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %d: %w", res.StatusCode, fault.ErrTemporary)
	}
	return nil
}

// bare is an error without the URL, which may hold a secret.
func bare(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// outlast returns a context that ends d after ctx, or when end is called.
func outlast(ctx context.Context, d time.Duration) (life context.Context, end context.CancelFunc) {
	life, end = context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(d, end) })
	return life, end
}
