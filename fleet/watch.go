package fleet

import (
	"context"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxPause is the longest pause after failures, unless the interval is longer.
const maxPause = 15 * time.Minute

// Watch follows a branch: it publishes the newest commit, and retries after errors.
type Watch struct {
	Newest   func(ctx context.Context) (commit string, err error)
	Publish  func(ctx context.Context, commit string) error // may be repeated
	Interval time.Duration                                  // between two questions for the newest commit
	// Error is called for every error that differs from the one before. commit is "" when it is not known.
	Error func(commit string, err error)
}

// Once publishes the newest commit.
func (w *Watch) Once(ctx context.Context) error {
	commit, err := w.Newest(ctx)
	if err != nil {
		return err
	}
	return w.Publish(ctx, commit)
}

// Run goes on until ctx ends. A branch that cannot be asked is asked after growing pauses; a commit that cannot be
// published is tried again after growing pauses, and a newer one at once.
func (w *Watch) Run(ctx context.Context) {
	var published, reported string
	var asking, trying backOff
	var last string // commit that was tried
	for ctx.Err() == nil {
		commit, err := w.Newest(ctx)
		pause := w.Interval
		switch {
		case err != nil:
			pause = asking.next(w.Interval, err)
		case commit == published:
			asking, reported = backOff{}, ""
		default:
			asking = backOff{}
			if commit != last {
				trying, last = backOff{}, commit
			}
			if trying.wait -= w.Interval; trying.wait > 0 {
				break
			}
			if err = w.Publish(ctx, commit); err == nil {
				published, trying, reported = commit, backOff{}, ""
				break
			}
			trying.wait = trying.next(w.Interval, err)
		}
		if err != nil && ctx.Err() == nil && reported != commit+err.Error() {
			reported = commit + err.Error()
			w.Error(commit, err)
		}
		_ = delay.For(ctx, pause) // the loop ends with ctx
	}
}

// backOff is how long to wait after failures in a row.
type backOff struct {
	pause, wait time.Duration
}

// next doubles the pause, within bounds; a delay that a server requests is respected.
func (b *backOff) next(interval time.Duration, err error) time.Duration {
	b.pause = max(interval, min(2*b.pause, maxPause))
	after, _ := fault.RetryAfter(err)
	return max(b.pause, min(after, maxPause))
}
