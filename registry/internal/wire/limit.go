package wire

import (
	"net/http"

	"golang.org/x/sync/semaphore"
)

// WithLimit bounds the concurrent requests to most; 0: any number. The time that a request waits for its turn
// counts only for its context.
func WithLimit(base http.RoundTripper, most int) http.RoundTripper {
	if most <= 0 {
		return base
	}
	return &limit{base, semaphore.NewWeighted(int64(most))}
}

type limit struct {
	base http.RoundTripper
	turn *semaphore.Weighted
}

func (l *limit) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := l.turn.Acquire(r.Context(), 1); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	defer l.turn.Release(1)
	return l.base.RoundTrip(r)
}
