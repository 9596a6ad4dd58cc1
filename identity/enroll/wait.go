package enroll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Wait asks until the manager has decided: the answer is not pending then. told gets each pending answer, and each error that may
// pass. An error that does not pass ends it.
func Wait(ctx context.Context, ask func(context.Context) (Answer, error), told func(Answer, error)) (Answer, error) {
	failures := 0
	for {
		a, err := ask(ctx)
		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return Answer{}, context.Cause(ctx)
		case err == nil && a.Status != Pending:
			return a, nil
		case err == nil:
			failures, pause = 0, a.RetryAfter()
		case !errors.Is(err, fault.ErrTemporary):
			return Answer{}, err
		default:
			failures++
			pause = backOff(failures, err)
		}
		told(a, err)
		if !sleep(ctx, pause) {
			return Answer{}, context.Cause(ctx)
		}
	}
}

// backOff grows from a few seconds to [maxRetry], and obeys what the manager says.
func backOff(failures int, err error) time.Duration {
	d := min(2*time.Second<<min(failures, 16), maxRetry)
	if after, ok := fault.RetryAfter(err); ok {
		d = max(d, after)
	}
	return spread(d)
}

// spread takes up to a tenth off, so that devices that started together do not ask together.
func spread(d time.Duration) time.Duration { return d - rand.N(d/10+1) }

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Keeper keeps a device enrolled: it renews the certificate before it expires, and notices when the manager has removed the device.
// All members are required.
type Keeper struct {
	Ask      func(ctx context.Context, renew bool) (Answer, error) // renew false: a check
	Take     func(Answer) error                                    // stores a grant, or a trust bundle alone
	Lifetime func() (from, to time.Time, err error)                // of the certificate now
	Removed  func(Answer) (over bool)                              // once for each answer that says so; over ends Run
	Every    time.Duration                                         // between two checks
	Now      func() time.Time
	Log      *slog.Logger
}

// Run works until ctx ends or the device is removed for good. Errors are logged and tried again: nothing stops because of them.
func (k *Keeper) Run(ctx context.Context) {
	failures, last := 0, ""
	for pause := spread(k.Every); sleep(ctx, pause); {
		a, err := k.once(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			pause = min(backOff(failures, err), max(k.Every, minRetry))
			if err.Error() != last {
				k.Log.Warn("the enrollment could not be checked or renewed; it is tried again", "error", err, "hint", fault.Hint(err))
			}
			last = err.Error()
			continue
		case a.Status == Removed && k.Removed(a):
			return
		}
		failures, last, pause = 0, "", spread(k.Every)
	}
}

func (k *Keeper) once(ctx context.Context) (Answer, error) {
	from, to, err := k.Lifetime()
	due := err != nil || !k.Now().Before(to.Add(-to.Sub(from)/3)) // a third is left: many tries, also after days offline
	a, err := k.Ask(ctx, due)
	switch {
	case err != nil:
		return a, err
	case a.Status == Pending || a.Status == Denied:
		return a, fault.WithHint(fmt.Errorf("the manager has this device as %s: %w", a.Status, fault.ErrTemporary),
			"approve it again at the manager: longshore-fleet devices approve")
	case a.Status == Removed:
		return a, nil
	}
	if err := k.Take(a); err != nil || a.Grant == nil {
		return a, err
	}
	if _, to, err := k.Lifetime(); err == nil {
		k.Log.Info("certificate renewed", "notAfter", to)
	}
	return a, nil
}
