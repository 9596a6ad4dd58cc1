package status

import (
	"cmp"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	defaultRate     = 50
	defaultBurst    = 500
	defaultInFlight = 512
	perDevice       = 16       // requests in progress of one device; an agent has one, a gateway a few
	weight          = 16 << 10 // bytes of a body that count as one more report
	maxLimiters     = 1 << 15  // devices remembered at once; all are forgotten beyond it, which only lets one burst again
)

// limits prevent one device from blocking the endpoint for the others. A device is that of the token: all its tokens and
// connections share what it may have.
type limits struct {
	slots chan struct{} // requests that the store works on: none waits for its device in one
	parse chan struct{} // bodies that are parsed: the tree of a body takes many times its bytes
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	devices map[string]*rate.Limiter
	busy    map[string]int // requests in progress
}

func newLimits(perSecond float64, burst, inFlight int) *limits {
	perSecond = cmp.Or(perSecond, defaultRate)
	burst = cmp.Or(burst, defaultBurst)
	inFlight = cmp.Or(inFlight, defaultInFlight)
	return &limits{
		slots: make(chan struct{}, inFlight), parse: make(chan struct{}, 2*runtime.GOMAXPROCS(0)), rate: rate.Limit(perSecond), burst: burst,
		devices: map[string]*rate.Limiter{}, busy: map[string]int{},
	}
}

// enter takes a slot; done releases it.
func (l *limits) enter() (done func(), ok bool) {
	select {
	case l.slots <- struct{}{}:
		return func() { <-l.slots }, true
	default:
		return nil, false
	}
}

// begin counts a request of a device that is in progress until done.
func (l *limits) begin(device string) (done func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy[device] >= perDevice {
		return nil, false
	}
	l.busy[device]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.busy[device]--; l.busy[device] == 0 {
			delete(l.busy, device)
		}
	}, true
}

// allow takes a number of reports from a device's quota.
func (l *limits) allow(device string, now time.Time, reports int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.devices[device]
	if !ok {
		if len(l.devices) >= maxLimiters {
			clear(l.devices)
		}
		t = rate.NewLimiter(l.rate, l.burst)
		l.devices[device] = t
	}
	return t.AllowN(now, min(reports, l.burst))
}
