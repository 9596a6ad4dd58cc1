// Package status is the HTTP side of the fleet endpoint: the Margo management API (1.0.0-rc.3) for capabilities, deployment status
// and desired state, and the reported data as JSON for people and programs.
//
// [API] is for devices, [Views] for people and programs that watch. Both answer errors with problem details (RFC 9457), of a type
// registered by Margo if there is one.
//
// # Who may report what
//
// A [Client] proves itself by what [Options].Identify knows: a bearer token, see [Mint], or a certificate. It is good for its
// devices and for the children behind them ("gateway-1/press-07" with the token of gateway-1). rc.3 has no 401: an unknown client, and
// one without the right, is answered 403 not-authorized. Our agent says in the header Longshore-Device which device it is: among
// several of its client it is that one alone, and with a token of others it is rejected.
//
// # Sequence
//
// Our agent numbers its reports in the headers Longshore-Epoch and Longshore-Sequence; a report that comes again is
// answered 200 and changes nothing. Reports without these headers, from other vendors' agents, are taken as they come.
package status

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/store"
)

// Headers that number the reports of our agent.
const (
	HeaderEpoch    = "Longshore-Epoch"    // UUID of the agent's database
	HeaderSequence = "Longshore-Sequence" // decimal, within the epoch
	HeaderInterval = "Longshore-Interval" // decimal seconds until the next report at the latest
	HeaderDevice   = "Longshore-Device"   // which device our agent is, for a client of several devices
)

// Limits that a request meets.
const (
	MaxCapabilities = 256 << 10        // bytes of a capabilities body
	MaxStatus       = 256 << 10        // bytes of a status body
	CallTimeout     = 10 * time.Second // of the store
	busySeconds     = 5                // Retry-After of a 503
	fullSeconds     = 60               // Retry-After of an exceeded quota: each attempt counts as a sign of life
)

// Options make the handlers. Store, Now and Logger must be set.
type Options struct {
	Store    store.Store
	Identify Identify // nil: [BearerTokens] of Store
	Desired  Desired  // nil: it is not served here
	Now      func() time.Time
	Logger   *slog.Logger
	Changed  func()                // called after a report changed something; nil: no call
	Metrics  prometheus.Registerer // nil: no metrics
	Rate     float64               // reports a second and device, on average; 0: 50. Each 16 KiB of a body count as one more
	Burst    int                   // reports at once of a device; 0: 500, an outbox after a day offline
	InFlight int                   // requests that the store works on at once; 0: 512
}

type api struct {
	Options
	limits  *limits
	metrics *metrics
}

// API handles /api/v1/.
func API(o Options) http.Handler {
	if o.Identify == nil {
		o.Identify = BearerTokens(o.Store)
	}
	a := &api{Options: o, limits: newLimits(o.Rate, o.Burst, o.InFlight), metrics: newMetrics(o)}
	mux := http.NewServeMux()
	mux.Handle("PUT /api/v1/capabilities/{deviceId...}", a.device(a.putCapabilities))
	mux.Handle("DELETE /api/v1/capabilities/{deviceId...}", a.device(a.deleteCapabilities))
	mux.Handle("/api/v1/capabilities/{deviceId...}", a.plain(allow("PUT, DELETE")))
	mux.Handle("POST /api/v1/deployments/{deploymentId}/status", a.device(a.postStatus))
	mux.Handle("/api/v1/deployments/{deploymentId}/status", a.plain(allow("POST")))
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request, Client) *problem{
		"/api/v1/deployments": a.getManifest, "/api/v1/deployments/{deploymentId}/{digest}": a.getDeployment, "/api/v1/bundles/{digest}": a.getBundle,
	} {
		mux.Handle(path, a.reading(serve))
	}
	mux.Handle("/", a.plain(func(http.ResponseWriter, *http.Request) *problem {
		return blank(http.StatusNotFound, "no such resource")
	}))
	return mux
}

// reading serves desired state where there is one.
func (a *api) reading(serve func(http.ResponseWriter, *http.Request, Client) *problem) http.Handler {
	if a.Desired == nil {
		return a.plain(noDesired)
	}
	read, other := a.device(serve), a.plain(allow("GET, HEAD"))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			read.ServeHTTP(w, r)
			return
		}
		other.ServeHTTP(w, r)
	})
}

// noDesired answers if desired state is only in a registry.
func noDesired(http.ResponseWriter, *http.Request) *problem {
	return blank(http.StatusNotImplemented, "this endpoint receives reports; desired state is read from the registry")
}

func allow(methods string) func(http.ResponseWriter, *http.Request) *problem {
	return func(w http.ResponseWriter, _ *http.Request) *problem {
		w.Header().Set("Allow", methods)
		return blank(http.StatusMethodNotAllowed, "only "+methods+" here")
	}
}

// plain serves requests that need no device.
func (a *api) plain(serve func(http.ResponseWriter, *http.Request) *problem) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := serve(w, r); p != nil {
			a.refuse(w, r, p)
		}
	})
}

// device serves a request of an authenticated client. It holds no slot while its body arrives: a slow
// device does not block others.
func (a *api) device(serve func(http.ResponseWriter, *http.Request, Client) *problem) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := a.Now()
		w.Header().Set("Cache-Control", "no-store")
		c, p := a.known(r)
		if p == nil {
			done, ok := a.limits.begin(c.ID)
			if ok {
				defer done()
			} else {
				p = crowded(c.ID)
			}
		}
		if p == nil && !a.limits.allow(c.ID, began, 1) {
			p = slower()
		}
		if p == nil {
			p = serve(w, r, c)
		}
		if p != nil {
			a.refuse(w, r, p)
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			a.metrics.took(a.Now().Sub(began))
		}
	})
}

// known identifies the client of a request.
func (a *api) known(r *http.Request) (Client, *problem) {
	ctx, done, p := a.work(r)
	if p != nil {
		return Client{}, p
	}
	defer done()
	c, err := a.Identify(r.WithContext(ctx))
	switch {
	case errors.Is(err, fault.ErrDenied):
		return Client{}, notAuthorized(err.Error())
	case err != nil:
		return Client{}, broke(err)
	}
	if device := r.Header.Get(HeaderDevice); device != "" {
		var ok bool
		if c, ok = c.as(device); !ok {
			return Client{}, notAuthorized("this client may not speak for device " + device)
		}
	}
	return c, nil
}

// work takes a slot for what the store is asked next, which the context bounds.
func (a *api) work(r *http.Request) (context.Context, func(), *problem) {
	leave, ok := a.limits.enter()
	if !ok {
		return nil, nil, busy("too many requests at once")
	}
	ctx, cancel := context.WithTimeout(r.Context(), CallTimeout)
	return ctx, func() { cancel(); leave() }, nil
}

// refuse answers with a problem and counts it. The cause of an internal error is logged and not sent.
func (a *api) refuse(w http.ResponseWriter, r *http.Request, p *problem) {
	a.metrics.problem(p.Status)
	switch p.Status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Connection", "close") // the body may be on its way: net/http would wait for it before it answers
	}
	p.answer(w, r, a.Logger)
}

// broke is the answer to an error of the store that the handler did not expect.
func broke(err error) *problem {
	if quota, ok := errors.AsType[*store.QuotaError](err); ok {
		return again(http.StatusTooManyRequests, quota.Error(), fullSeconds)
	}
	if errors.Is(err, fault.ErrTemporary) {
		return busy("the database does not answer").because(err)
	}
	return blank(http.StatusInternalServerError, "").because(err)
}

func (a *api) changed() {
	if a.Changed != nil {
		a.Changed()
	}
}
