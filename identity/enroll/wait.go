package enroll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
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
		if err := delay.For(ctx, pause); err != nil {
			return Answer{}, err
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

// Keeper keeps a device enrolled: it renews the certificate before it expires, and notices when the manager has removed the device.
// All members are required.
type Keeper struct {
	Ask      func(ctx context.Context, renew bool) (Answer, error) // renew false: a check
	Take     func(Answer) error                                    // stores a grant, or a trust bundle alone
	Lifetime func() (from, to time.Time, err error)                // of the certificate now
	Removed  func(Answer) (over bool)                              // once for each answer that says so; over ends Run
	Every    time.Duration                                         // between two checks, at most
	Now      func() time.Time
	Log      *slog.Logger

	taken time.Time // when the certificate came; zero: before Run
}

// Run works until ctx ends or the device is removed for good. Errors are logged and tried again: nothing stops because of them.
func (k *Keeper) Run(ctx context.Context) {
	failures, last := 0, ""
	for pause := k.next(); delay.For(ctx, pause) == nil; {
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
		case a.Status == Removed:
			pause = spread(k.Every)
		default:
			pause = k.next()
		}
		failures, last = 0, ""
	}
}

// next is how long to wait: until the next check, or until a renewal that is due before.
func (k *Keeper) next() time.Duration {
	due, err := k.due()
	if err != nil {
		return spread(k.Every)
	}
	return spread(min(k.Every, max(due.Sub(k.Now()), minRetry)))
}

// due is when the certificate is renewed: while a third is left, for many tries, also after days offline. Its validity begins before it was
// issued, for clocks that differ: of a certificate that came in this run, that time does not count. One that is not valid yet is of a clock that was
// ahead, and due now; not so soon again after one came, where it is the clock here that is behind.
func (k *Keeper) due() (time.Time, error) {
	from, to, err := k.Lifetime()
	if now := k.Now(); err == nil && now.Before(from) && now.Sub(k.taken).Abs() >= k.Every {
		return now, nil
	}
	if k.taken.After(from) && k.taken.Before(to) {
		from = k.taken
	}
	return to.Add(-to.Sub(from) / 3), err
}

func (k *Keeper) once(ctx context.Context) (Answer, error) {
	due, err := k.due()
	renew := err != nil || !k.Now().Before(due)
	a, err := k.Ask(ctx, renew)
	switch {
	case err != nil:
		return a, err
	case a.Status == Pending || a.Status == Denied:
		return a, fault.WithHint(fmt.Errorf("the manager has this device as %s: %w", a.Status, fault.ErrTemporary),
			"approve it again at the manager: longshore-fleet devices approve")
	case a.Status == Removed:
		return a, nil
	case renew && a.Grant == nil:
		return a, fmt.Errorf("the manager sends no certificate: %w", fault.ErrTemporary)
	}
	if err := k.Take(a); err != nil || a.Grant == nil {
		return a, err
	}
	k.taken = k.Now()
	if _, to, err := k.Lifetime(); err == nil {
		k.Log.Info("certificate renewed", "notAfter", to)
	}
	return a, nil
}
