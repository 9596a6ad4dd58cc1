// Package retry decides when the agent tries again what failed, and when devices come so that they do not all come at once.
package retry

import (
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// MaxAsked is the longest pause that a server gets for asking.
	MaxAsked = time.Hour

	jitter        = 0.2
	reportBackoff = 5 * time.Minute
)

// Backoff is the pause after the n-th failure in a row.
func Backoff(n int, low, high time.Duration) time.Duration {
	d := low
	for ; n > 1 && d < high; n-- {
		d *= 2
	}
	return min(d, high)
}

// ReportBackoff is the longest pause between attempts to report: no longer than the interval in which the device is to be heard, 0 for none,
// because it is heard by an attempt also where there is no room for its report.
func ReportBackoff(interval time.Duration) time.Duration {
	if interval > 0 && interval < reportBackoff {
		return max(interval, time.Second)
	}
	return reportBackoff
}

// Next says in a problem when the next try is, and what of it the server that answered err asked for.
func Next(d time.Duration, err error) string {
	out := "next try " + In(d)
	switch after, ok := fault.RetryAfter(err); {
	case !ok && fault.NoRetry(err):
		out += ": it says that a retry does not help"
	case !ok:
	case after > MaxAsked:
		out += fmt.Sprintf(": it asks to wait %s, and gets at most %s", after, MaxAsked)
	default:
		out += fmt.Sprintf(": it asks to wait %s", after)
	}
	return out
}

// In says in a problem when something is due: "in 5s", "now".
func In(d time.Duration) string {
	if d <= 0 {
		return "now"
	}
	return "in " + d.Round(time.Second).String()
}

// Asked is the pause that the server that answered err asks for, at most [MaxAsked]; 0: it did not ask.
func Asked(err error) time.Duration {
	after, _ := fault.RetryAfter(err)
	return min(after, MaxAsked)
}

// Spread is d, at most a tenth shorter or longer, so that devices do not come at the same moment. random is in [0,1).
func Spread(d time.Duration, random float64) time.Duration {
	return time.Duration(float64(d) * (1 - jitter/2 + jitter*random))
}

// Early is d, at most a fifth shorter: what is due within d comes in time. random is in [0,1).
func Early(d time.Duration, random float64) time.Duration {
	return time.Duration(float64(d) * (1 - jitter*random))
}
