package enroll_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity/enroll"
)

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := fault.WithRetryAfter(fmt.Errorf("away: %w", fault.ErrTemporary), time.Minute)
		answers := []struct {
			a   enroll.Answer
			err error
		}{{err: away}, {err: away}, {a: enroll.Answer{Status: enroll.Pending, After: 5}}, {a: enroll.Answer{Status: enroll.Pending, After: 1 << 30}}, {a: enroll.Answer{Status: enroll.Approved, Device: "press-07"}}}
		var gaps []time.Duration
		last, n, told := time.Now(), 0, 0
		a, err := enroll.Wait(t.Context(), func(context.Context) (enroll.Answer, error) {
			gaps = append(gaps, time.Since(last))
			last = time.Now()
			n++
			return answers[n-1].a, answers[n-1].err
		}, func(enroll.Answer, error) { told++ })
		if err != nil || a.Device != "press-07" || told != 4 {
			t.Errorf("Wait = %+v, %v; told %d", a, err, told)
		}
		for i, want := range []time.Duration{0, time.Minute, time.Minute, 5 * time.Second, 10 * time.Minute} {
			if gaps[i] > want || gaps[i] < want*9/10 { // a tenth is left to chance after an error
				t.Errorf("gap %d is %s, want %s", i, gaps[i], want)
			}
		}
		_, err = enroll.Wait(t.Context(), func(context.Context) (enroll.Answer, error) {
			return enroll.Answer{}, fmt.Errorf("no: %w", fault.ErrDenied)
		}, func(enroll.Answer, error) { t.Error("an error that does not pass was told as one that may") })
		if !errors.Is(err, fault.ErrDenied) {
			t.Errorf("Wait: %v", err)
		}
	})
}

// keeper is a device with a certificate of 30 days, and its manager.
type keeper struct {
	enroll.Keeper
	from, to time.Time
	asked    []time.Time
	renewed  []time.Time
	answer   func(renew bool) (enroll.Answer, error)
	removed  int
}

const month = 30 * 24 * time.Hour

func newKeeper() *keeper {
	k := &keeper{from: time.Now(), to: time.Now().Add(month)}
	k.Keeper = enroll.Keeper{
		Every: time.Hour, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Lifetime: func() (time.Time, time.Time, error) { return k.from, k.to, nil },
		Ask: func(_ context.Context, renew bool) (enroll.Answer, error) {
			k.asked = append(k.asked, time.Now())
			return k.answer(renew)
		},
		Take: func(a enroll.Answer) error {
			if a.Grant != nil {
				k.from, k.to = time.Now(), time.Now().Add(month)
				k.renewed = append(k.renewed, time.Now())
			}
			return nil
		},
		Removed: func(a enroll.Answer) bool { k.removed++; return a.Wipe },
	}
	k.answer = func(renew bool) (enroll.Answer, error) {
		a := enroll.Answer{Status: enroll.Approved}
		if renew {
			a.Grant = &enroll.Grant{}
		}
		return a, nil
	}
	return k
}

func (k *keeper) during(t *testing.T, d time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	k.Run(ctx)
}

func TestKeeperRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		start := time.Now()
		k.during(t, 3*month)
		if n := len(k.renewed); n != 4 || k.renewed[0].Sub(start) < 20*24*time.Hour || k.renewed[0].Sub(start) > 20*24*time.Hour+2*time.Hour {
			t.Errorf("renewed %v after %s", k.renewed, start)
		}
		if n := len(k.asked); n < 3*30*24 || n > 3*30*27 {
			t.Errorf("asked %d times in 90 days", n)
		}
	})
}

// A short certificate, whose validity begins minutes before it was issued, is renewed when a third of the rest is left, before the next
// check would be; and one that has expired at once.
func TestKeeperShortLifetime(t *testing.T) {
	const lifetime = time.Minute
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		k.from, k.to = time.Now().Add(-2*lifetime), time.Now().Add(-lifetime)
		k.Take = func(a enroll.Answer) error {
			if a.Grant != nil {
				k.from, k.to = time.Now().Add(-5*time.Minute), time.Now().Add(lifetime)
				k.renewed = append(k.renewed, time.Now())
			}
			return nil
		}
		start := time.Now()
		k.during(t, 20*lifetime)
		n := len(k.renewed)
		if n == 0 {
			t.Fatal("never renewed")
		}
		if n < 20 || n > 40 || len(k.asked) > 3*n || k.renewed[0].Sub(start) > 2*time.Second {
			t.Errorf("%d requests, renewed after %s and then %d times in %s", len(k.asked), k.renewed[0].Sub(start), n, 20*lifetime)
		}
		for i, at := range k.renewed[1:] {
			if gap := at.Sub(k.renewed[i]); gap < lifetime/2 || gap >= lifetime {
				t.Errorf("renewal %d comes after %s", i+1, gap)
			}
		}
	})
}

// A certificate that is not valid yet, because the clocks of the manager and the device were ahead when it came, is renewed: not in the years until it
// would be due. A device whose clock is behind all the time does not renew all the time.
func TestKeeperOfACertificateThatIsNotValidYet(t *testing.T) {
	for behind, most := range map[time.Duration]int{0: 1, 2 * 24 * time.Hour: 25} {
		synctest.Test(t, func(t *testing.T) {
			k := newKeeper()
			k.from, k.to = time.Now().AddDate(10, 0, 0), time.Now().AddDate(10, 1, 0)
			take := k.Take
			k.Take = func(a enroll.Answer) error {
				err := take(a)
				k.from = k.from.Add(behind)
				return err
			}
			start := time.Now()
			k.during(t, 24*time.Hour)
			if n := len(k.renewed); n == 0 || n > most || k.renewed[0].Sub(start) > time.Minute {
				t.Errorf("%v behind: renewed %v, want at once, and %d times at most", behind, k.renewed, most)
			}
		})
	}
}

// A manager that has nothing to send, although a certificate is due, is not asked each second.
func TestKeeperWithoutGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		k.to = time.Now()
		k.answer = func(bool) (enroll.Answer, error) { return enroll.Answer{Status: enroll.Approved}, nil }
		k.during(t, 24*time.Hour)
		if n := len(k.asked); n < 24 || n > 200 {
			t.Errorf("asked %d times in a day", n)
		}
	})
}

// A device that was without its manager for longer than its certificate is valid comes back.
func TestKeeperAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		good, start := k.answer, time.Now()
		k.answer = func(renew bool) (enroll.Answer, error) {
			if time.Since(start) < 2*month {
				return enroll.Answer{}, fmt.Errorf("away: %w", fault.ErrTemporary)
			}
			return good(renew)
		}
		k.during(t, 2*month+2*time.Hour)
		if len(k.renewed) != 1 {
			t.Errorf("renewed %v", k.renewed)
		}
	})
}

func TestKeeperRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		k.answer = func(bool) (enroll.Answer, error) { return enroll.Answer{Status: enroll.Removed}, nil }
		k.during(t, 10*time.Hour)
		if k.removed < 9 || len(k.renewed) != 0 {
			t.Errorf("removed %d times, renewed %v", k.removed, k.renewed)
		}
		k.answer = func(bool) (enroll.Answer, error) { return enroll.Answer{Status: enroll.Removed, Wipe: true}, nil }
		start := time.Now()
		k.during(t, 100*time.Hour)
		if time.Since(start) > 2*time.Hour {
			t.Error("Run goes on after the device was removed for good")
		}
	})
}
