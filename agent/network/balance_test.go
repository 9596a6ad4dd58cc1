package network

import (
	"testing"
	"testing/synctest"
	"time"
)

// Connections are listed less often the longer they wait, and again quickly once none does.
func TestSettle(t *testing.T) {
	for _, tc := range []struct {
		name          string
		until         time.Duration // connections wait
		left, queries int
		took          time.Duration
	}{
		{"none", 0, 0, 3, 2 * drainInterval},
		{"soon read", 12 * time.Millisecond, 0, 5, 25 * time.Millisecond},
		{"never read", time.Hour, 1, 16, drainLimit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, queries := time.Now(), 0
				left, err := settle(t.Context(), func() (int, error) {
					if queries++; time.Since(begun) < tc.until {
						return 1, nil
					}
					return 0, nil
				})
				if took := time.Since(begun); left != tc.left || err != nil || queries > tc.queries || took > tc.took {
					t.Errorf("%d left after %d queries in %v, %v; want %+v", left, queries, took, err, tc)
				}
			})
		})
	}
}
