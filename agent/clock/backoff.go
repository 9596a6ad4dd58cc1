package clock

import "time"

// Backoff is the pause after the n-th failure in a row.
func Backoff(n int, low, high time.Duration) time.Duration {
	d := low
	for ; n > 1 && d < high; n-- {
		d *= 2
	}
	return min(d, high)
}
