package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	firstWait = 250 * time.Millisecond
	maxTries  = 32 // of one request, also if the registry requests tiny delays
)

// RemoteAlert is the Op of the *net.OpError of crypto/tls if the other side ended the handshake.
const RemoteAlert = "remote error"

// Budget bounds the retries of one request. The zero value allows none.
type Budget struct {
	Attempts int           // further tries without a Retry-After
	Wait     time.Duration // all waits together, including those that the registry requested
}

// WithRetry repeats requests after temporary errors. A delay in Retry-After is respected, but
// no wait is shorter than [Backoff]; a delay beyond the budget ends the tries and is returned to the caller. After a request
// used up its tries, each further one has a single try until the registry answers: if a mirror names much content that only an
// unreachable registry has, a device must not spend the budget on each name.
func WithRetry(base http.RoundTripper, b Budget) http.RoundTripper {
	var silent atomic.Bool
	return &repeating{base, &retry.Transport{Base: base, Policy: func() retry.Policy {
		if silent.Load() {
			return &policy{Budget{}.Tries(), &silent}
		}
		return &policy{b.Tries(), &silent}
	}}}
}

type onceKey struct{}

// Once keeps [WithRetry] from repeating a PUT, PATCH or DELETE: the sender checks the result first.
func Once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

type repeating struct{ once, often http.RoundTripper }

func (t *repeating) RoundTrip(r *http.Request) (*http.Response, error) {
	writes := r.Method == http.MethodPut || r.Method == http.MethodPatch || r.Method == http.MethodDelete
	if writes && r.Context().Value(onceKey{}) != nil { // requests for a token are repeated all the same
		return t.once.RoundTrip(r)
	}
	return t.often.RoundTrip(r)
}

// Tries counts those of one request.
type Tries struct {
	left Budget
	done int
}

// Tries begins to count.
func (b Budget) Tries() *Tries { return &Tries{left: b} }

// Next returns the wait before another try; false: there is none. asked: the registry requested the delay.
func (t *Tries) Next(after time.Duration, asked bool) (time.Duration, bool) {
	if t.done >= maxTries || !asked && t.left.Attempts <= 0 {
		return 0, false
	}
	if !asked {
		after = 0
		t.left.Attempts--
	}
	after = max(after, Backoff(t.done))
	t.done++
	t.left.Wait -= after
	return after, t.left.Wait >= 0
}

// policy is of one request: oras-go asks for a new one for each.
type policy struct {
	*Tries
	silent *atomic.Bool // all tries of the last request failed
}

// Retry decides by class of error; a negative duration ends the tries and returns the last result.
func (p *policy) Retry(_ int, resp *http.Response, err error) (time.Duration, error) {
	if !passing(resp, err) {
		if err == nil {
			p.silent.Store(false)
		}
		return -1, nil
	}
	var after time.Duration
	asked := false
	if resp != nil {
		after, asked = RetryAfter(resp)
	}
	if d, more := p.Next(after, asked); more {
		return d, nil
	}
	p.silent.Store(true)
	return -1, nil
}

// Backoff is the wait before try n+1: 250 ms doubled each time up to 16 s, minus up to a half at random, so that the devices of a
// fleet do not retry at the same time.
func Backoff(n int) time.Duration {
	d := firstWait << min(max(n, 0), 6)
	return d/2 + rand.N(d/2)
}

// Passing reports whether the same request may succeed later after this response.
func Passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// passing reports whether the same request may succeed later. context.DeadlineExceeded is the caller's, or the transport's
// timeout of a dial or of a response. That took longer than all waits between tries, and the kernel has repeated its connection
// attempts meanwhile: another try would take the whole timeout again.
func passing(resp *http.Response, err error) bool {
	if err == nil {
		return Passing(resp.StatusCode)
	}
	var (
		verify *tls.CertificateVerificationError
		remote *net.OpError
		header tls.RecordHeaderError
		host   x509.HostnameError
		lookup *net.DNSError
	)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, fault.ErrDenied),
		errors.Is(err, http.ErrSchemeMismatch), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return false
	case errors.As(err, &verify), errors.As(err, &header), errors.As(err, &host):
		return false
	case errors.As(err, &remote) && remote.Op == RemoteAlert:
		return false
	case errors.As(err, &lookup):
		return lookup.IsTemporary || lookup.IsTimeout
	}
	return true // refused, reset, cut
}
