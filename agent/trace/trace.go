// Package trace sends traces of the agent to an OpenTelemetry collector: one trace for each change of the device to a state. Entry
// points are [Read] and [New].
//
// It makes them from the events of the agent, beside it: the agent does not know of them and never waits for them. What a collector
// does not take is dropped. Attributes are names, numbers, digests and codes: messages may hold what containers wrote, and stay out.
//
// # Why not OpenTelemetry's SDK
//
// A span of the agent is known when it has ended, and a trace must go on after the device was restarted in the middle of it: its
// identifiers follow from the device and the state. An SDK makes spans while they last, with identifiers of its own. It writes headers
// that it cannot read, which may hold a password, to its log, and hands errors to a handler that the whole process shares. The program
// would be 618 kB larger with it and its exporter over HTTP, and link four modules more; it is 78 kB larger with this package, and links
// none. What is needed of OTLP are the few fields in otlp.go.
package trace

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

// Device is whose changes are traced; [agent.Agent] is one.
type Device interface {
	Events(ctx context.Context, r status.EventRequest, tell func(status.Event) error) error
}

// Options make a [Tracer]. Collector, Device and Logger must be set.
type Options struct {
	Collector *Collector
	Device    string // id
	Version   string // of the agent
	Epoch     string // of the agent's database: a device that begins anew begins other traces

	Before   *store.Progress // as it was saved when the agent starts; nil: none
	Statuses []store.Status  // of deployments, as Before
	Begun    time.Time       // when the state of Before was accepted; zero: that of Before counts

	TLS    *tls.Config                               // nil: the system's authorities, no client certificate
	Proxy  func(*http.Request) (*url.URL, error)     // as http.ProxyFromEnvironment; nil: none
	Wrap   func(http.RoundTripper) http.RoundTripper // takes the place of the connection to the collector; nil: nothing does
	Logger *slog.Logger
}

// Tracer sends traces of one device.
type Tracer struct {
	changes *changes
	sender  *sender
}

// New makes a tracer. It opens no connection.
func New(o Options) *Tracer {
	s := newSender(o)
	return &Tracer{newChanges(o, s.put), s}
}

// Run follows the device's events until ctx ends. Then it sends what it has, for two seconds at most.
func (t *Tracer) Run(ctx context.Context, d Device) {
	var following sync.WaitGroup
	following.Go(func() {
		defer close(t.sender.queue)
		_ = d.Events(ctx, status.EventRequest{Follow: true}, func(e status.Event) error { // fails for nothing but what it is given
			t.changes.take(e)
			return nil
		})
	})
	t.sender.run(ctx)
	following.Wait()
}
