package status

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	defaultRate     = 50
	defaultBurst    = 500
	defaultInFlight = 512
	maxLimiters     = 1 << 15 // tokens remembered at once; all are forgotten beyond it, which only lets somebody burst again
)

// limits keep one device from taking the endpoint away from the others.
type limits struct {
	slots chan struct{}
	rate  rate.Limit
	burst int

	mu     sync.Mutex
	tokens map[string]*rate.Limiter
}

func newLimits(perSecond float64, burst, inFlight int) *limits {
	if perSecond == 0 {
		perSecond = defaultRate
	}
	if burst == 0 {
		burst = defaultBurst
	}
	if inFlight == 0 {
		inFlight = defaultInFlight
	}
	return &limits{slots: make(chan struct{}, inFlight), rate: rate.Limit(perSecond), burst: burst, tokens: map[string]*rate.Limiter{}}
}

// enter takes a slot; done gives it back.
func (l *limits) enter() (done func(), ok bool) {
	select {
	case l.slots <- struct{}{}:
		return func() { <-l.slots }, true
	default:
		return nil, false
	}
}

func (l *limits) allow(token string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.tokens[token]
	if !ok {
		if len(l.tokens) >= maxLimiters {
			clear(l.tokens)
		}
		t = rate.NewLimiter(l.rate, l.burst)
		l.tokens[token] = t
	}
	return t.AllowN(now, 1)
}
