package clock_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent/clock"
)

// device is a clock that a test sets, and a timer that it cannot.
type device struct {
	skew  time.Duration // of the clock, against the true time
	start time.Time
}

func newDevice(skew time.Duration) *device { return &device{skew, time.Now()} }

func (d *device) wall() time.Time      { return time.Now().Add(d.skew).Round(0) }
func (d *device) timer() time.Duration { return time.Since(d.start) }
func signed(by string, t time.Time) clock.Proof {
	return clock.Proof{Kind: clock.Signature, By: by, Time: t}
}

func pulsed(by string, t time.Time) clock.Proof {
	return clock.Proof{Kind: clock.Freshness, By: by, Time: t}
}

func built(t time.Time) clock.Proof { return clock.Proof{Kind: clock.Build, Time: t} }

const (
	day    = 24 * time.Hour
	noHint = time.Duration(1)
)

func TestClock(t *testing.T) {
	for _, tc := range []struct {
		name      string
		skew      time.Duration
		prove     func(now time.Time) []clock.Proof
		now, firm time.Duration // against the true time
		doubt     bool
	}{
		{"right", 0, func(now time.Time) []clock.Proof { return []clock.Proof{signed("r", now.Add(-day))} }, 0, 0, false},
		{"behind, nothing known", -900 * day, func(time.Time) []clock.Proof { return nil }, -900 * day, -900 * day, false},
		{"behind", -900 * day, func(now time.Time) []clock.Proof {
			return []clock.Proof{built(now.Add(-80 * day)), signed("r", now.Add(-time.Hour))}
		}, -time.Hour, -time.Hour, true},
		{"behind, the newest counts", -900 * day, func(now time.Time) []clock.Proof {
			return []clock.Proof{built(now.Add(-80 * day)), signed("r", now.Add(-time.Hour)), signed("r", now.Add(-2*time.Hour)), signed("s", now.Add(-3*time.Hour))}
		}, -time.Hour, -time.Hour, true},
		{"a pulse moves no key's validity", -900 * day, func(now time.Time) []clock.Proof {
			return []clock.Proof{built(now.Add(-80 * day)), signed("r", now.Add(-50*day)), pulsed("p", now.Add(-time.Hour))}
		}, -time.Hour, -50 * day, true},
		{"a pulse speaks for no signature", -900 * day, func(now time.Time) []clock.Proof {
			return []clock.Proof{pulsed("p", now.Add(-time.Hour)), signed("r", now.Add(-50*day))}
		}, -time.Hour, -900 * day, true},
		{"build", -900 * day, func(now time.Time) []clock.Proof { return []clock.Proof{built(now.Add(-80 * day))} }, -80 * day, -80 * day, true},
		{"nothing speaks for a signature", 0, func(now time.Time) []clock.Proof {
			return []clock.Proof{built(now.Add(-80 * day)), signed("r", now.AddDate(8, 0, 0))}
		}, 0, 0, true},
		{"behind, and nothing but a signature says so", -20 * day, func(now time.Time) []clock.Proof {
			return []clock.Proof{built(now.Add(-80 * day)), signed("r", now.Add(-time.Hour))}
		}, -20 * day, -20 * day, true},
		{"a little behind", -time.Minute, func(now time.Time) []clock.Proof { return []clock.Proof{signed("r", now)} }, 0, 0, false},
		{"ahead", 900 * day, func(now time.Time) []clock.Proof { return []clock.Proof{signed("r", now)} }, 900 * day, 900 * day, false},
		{"a signer of another century", 0, func(now time.Time) []clock.Proof { return []clock.Proof{signed("r", now.AddDate(80, 0, 0))} }, 0, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDevice(tc.skew)
				c := clock.New(d.wall, d.timer, tc.prove(time.Now())...)
				for range 3 {
					now := time.Now()
					if got := c.Now().Sub(now); got != tc.now {
						t.Errorf("Now is off by %v, want %v", got, tc.now)
					}
					if got := c.Firm().Sub(now); got != tc.firm {
						t.Errorf("Firm is off by %v, want %v", got, tc.firm)
					}
					if x := c.Doubt(); (x != nil) != tc.doubt {
						t.Errorf("Doubt = %+v, want one: %t", x, tc.doubt)
					}
					time.Sleep(7 * time.Hour)
				}
			})
		})
	}
}

// Whatever happens to the clock, and however often the device starts anew: the time that was proven never falls, it is never
// before a proof or before the clock itself, and never after both with what has passed since.
func TestNeverBelowWhatWasProven(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 4))
			d := newDevice(0)
			kept := []clock.Proof{}
			build := built(time.Now().Add(-100 * day))
			c := clock.New(d.wall, d.timer, build)
			bound := build.Time // the newest time that was proven, grown with what passed
			last := time.Now()
			for range 200 {
				switch rnd.IntN(7) {
				case 0:
					d.skew = time.Duration(rnd.Int64N(int64(31000*day))) - 30000*day
				case 1:
					d.skew = 0
				case 2, 3: // signers' clocks are right, and what they signed may come late
					at := time.Now().Add(-time.Duration(rnd.Int64N(int64(30 * day))))
					kind := []clock.Kind{clock.Signature, clock.Freshness}[rnd.IntN(2)]
					firm, wall := c.Firm(), d.wall()
					c.Prove(clock.Proof{Kind: kind, By: string(rune('a' + rnd.IntN(3))), Time: at})
					speaks := kind == clock.Freshness || at.Sub(firm) <= clock.Slack || firm.Sub(wall) > clock.Slack
					if speaks && at.After(bound) {
						bound = at
					}
					kept = c.Proofs()
				case 4: // power cut: what was kept is there, what passes meanwhile is not measured
					time.Sleep(time.Duration(rnd.Int64N(int64(10 * day))))
					last = time.Now()
					d.start = last
					c = clock.New(d.wall, d.timer)
					c.Recall(kept...)
					c.Prove(build)
					bound = build.Time
					for _, p := range kept {
						if p.Time.After(bound) {
							bound = p.Time
						}
					}
				default:
					time.Sleep(time.Duration(rnd.Int64N(int64(3 * day))))
				}
				if !bound.IsZero() {
					bound = bound.Add(time.Since(last))
				}
				last = time.Now()
				now, firm, wall := c.Now(), c.Firm(), d.wall()
				if now.Before(bound) || now.Before(wall) {
					t.Fatalf("Now = %v, before the bound %v or the clock %v", now, bound, wall)
				}
				if now.After(bound) && now.After(wall) {
					t.Fatalf("Now = %v, after both the bound %v and the clock %v", now, bound, wall)
				}
				if firm.After(now) {
					t.Fatalf("Firm = %v, after Now = %v", firm, now)
				}
				if d.skew <= 0 && now.After(time.Now()) {
					t.Fatalf("Now = %v, after the true time %v", now, time.Now())
				}
			}
		})
	}
}

func TestHintsOnlyMakeDoubts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(30 * day)
		c := clock.New(d.wall, d.timer)
		c.Hint("registry", time.Now())
		time.Sleep(time.Hour)
		x := c.Doubt()
		if x == nil || x.From != "registry" || !x.Said.Equal(time.Now()) || x.Proof != nil || !c.Now().Equal(d.wall()) || !x.Believed.Equal(d.wall()) {
			t.Errorf("Doubt = %+v", x)
		}
		c.HintLimit("a limit", d.wall().Add(day))
		if x := c.Doubt(); x == nil || x.From != "registry" {
			t.Errorf("a limit that is not reached says nothing: %+v", x)
		}
		c.HintLimit("a limit", d.wall().Add(-day))
		if x := c.Doubt(); x == nil || x.From != "a limit" {
			t.Errorf("a limit that is passed: %+v", x)
		}
		c.Hint("a limit", time.Time{})
		c.Hint("statement", d.wall())
		if x := c.Doubt(); x != nil {
			t.Errorf("one source agrees with the clock: %+v", x)
		}
		c.Hint("statement", time.Time{})
		if c.Doubt() == nil {
			t.Error("what is left says that the clock is wrong")
		}
		d.skew = 0
		if x := c.Doubt(); x != nil {
			t.Errorf("the clock was set right: %+v", x)
		}
	})
}

func TestProofsAreBoundedAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(-900 * day)
		c := clock.New(d.wall, d.timer)
		for i := range 40 {
			c.Prove(pulsed(string(rune('A'+i)), time.Now().Add(-time.Duration(40-i)*time.Hour)))
		}
		if got := c.Proofs(); len(got) != 16 || got[0].By != string(rune('A'+39)) {
			t.Fatalf("%d proofs are kept, first %+v", len(got), got[0])
		}
		if c.Prove(pulsed("Z", time.Now().Add(-800*day))) {
			t.Error("a proof that says nothing new is kept")
		}
		if !c.Forget(clock.Freshness, func(string) bool { return false }) || c.Forget(clock.Freshness, func(string) bool { return false }) {
			t.Error("Forget does not tell whether there was something")
		}
		if got := time.Until(c.Now()); got != -900*day {
			t.Errorf("without proofs Now is off by %v", got)
		}
	})
}

// One signer's date, in a year that is not here yet, moves no certificate's validity: only what somebody else says, too.
func TestAWrongDateInASignature(t *testing.T) {
	for _, tc := range []struct {
		name string
		skew time.Duration // of the clock
		hint time.Duration // against the true time; noHint: nobody says
		firm time.Duration
	}{
		{"the registry agrees with the clock", 0, 0, 0},
		{"the registry is a little off", 0, time.Minute, 0},
		{"the registry is behind", 0, -30 * day, 0},
		{"nobody else says anything", 0, noHint, 0},
		{"the clock is behind, the registry is not", -20 * day, 0, 0},
		{"the clock has forgotten everything, the registry has not", -9000 * day, 0, 0},
	} {
		for _, first := range []bool{true, false} {
			if tc.skew < -100*day && !first {
				continue // without a hint a signer is believed then
			}
			t.Run(fmt.Sprintf("%s/hint first %t", tc.name, first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newDevice(tc.skew)
					c := clock.New(d.wall, d.timer, built(time.Now().Add(-80*day)))
					hint := func() {
						if tc.hint != noHint {
							c.Hint("registry", time.Now().Add(tc.hint))
						}
					}
					if first {
						hint()
					}
					c.Prove(signed("r", time.Now().AddDate(8, 0, 0)))
					if !first {
						hint()
					}
					for range 3 {
						if got := time.Until(c.Firm()); got != tc.firm {
							t.Errorf("Firm is off by %v, want %v", got, tc.firm)
						}
						time.Sleep(time.Hour)
						hint()
					}
					if x := c.Doubt(); (tc.hint == noHint || tc.skew != 0) != (x != nil) && tc.hint >= 0 {
						t.Errorf("Doubt = %+v", x)
					}
					kept := c.Proofs()
					c.Forget(clock.Signature, func(string) bool { return false })
					c.Hint("registry", time.Time{})
					if x := c.Doubt(); x != nil && x.From != "" {
						t.Errorf("a signer that is forgotten still makes a doubt: %+v", x)
					}
					d.start = time.Now()
					c = clock.New(d.wall, d.timer, built(time.Now().Add(-80*day)))
					c.Recall(kept...)
					if got := time.Until(c.Firm()); got > tc.firm {
						t.Errorf("after a restart Firm is off by %v", got)
					}
				})
			})
		}
	}
}

// What a signer said is taken up when the registry says so, too, and when the clock comes there.
func TestASignersTimeIsTakenUpLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(-20 * day)
		c := clock.New(d.wall, d.timer, built(time.Now().Add(-80*day)))
		c.Prove(signed("r", time.Now().Add(-2*day)))
		c.Prove(signed("r", time.Now().Add(-3*day))) // an older one is looked at later
		if x := c.Doubt(); x == nil || x.From != "a signature by r" || !x.Said.Equal(time.Now().Add(-2*day)) || x.Proof != nil {
			t.Errorf("Doubt = %+v", x)
		}
		c.Hint("registry", time.Now())
		if got := time.Until(c.Firm()); got != -2*day {
			t.Errorf("Firm is off by %v, want two days", got)
		}
		if x := c.Doubt(); x == nil || x.Proof == nil || x.Proof.By != "r" || len(c.Proofs()) != 1 {
			t.Errorf("Doubt = %+v", x)
		}
		d.skew = -50 * day // it was proven
		if got := time.Until(c.Firm()); got != -2*day {
			t.Errorf("Firm is off by %v, want two days", got)
		}
	})
}
