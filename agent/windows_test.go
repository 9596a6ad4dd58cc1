package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/testenv"
)

func windows(t *testing.T, list string) schedule.Windows {
	t.Helper()
	root, err := strict.YAML("agent.yaml", []byte("w: "+list))
	if err != nil {
		t.Fatal(err)
	}
	w := schedule.Parse(root.Get("w"))
	if err := root.Err(); err != nil {
		t.Fatal(err)
	}
	return w
}

// An update comes at any hour of a month with a change to daylight saving in it. Its images are loaded at once; containers change in the next
// window, as it opens, and at no other time.
func TestChangesAreMadeInTheirWindow(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		nights := windows(t, `[{days: Mon-Fri, hours: "22:00-05:00", zone: Europe/Berlin}, {cron: "30 2 1,15,26 * *", duration: 40m, zone: Europe/Berlin}]`)
		w.Edit = func(o *agent.Options) { o.Changes, o.Interval, o.LookEvery = nights, time.Hour, time.Hour }
		time.Sleep(time.Until(time.Date(2000, 3, 10, 0, 0, 0, 0, time.UTC)))
		r := w.Start(t)
		for generation := uint64(1); time.Now().Before(time.Date(2000, 4, 7, 0, 0, 0, 0, time.UTC)); generation++ {
			image := fmt.Sprintf("web:%d", generation%2+1)
			w.Publish(t, generation, anApp(1, image))
			published := time.Now()
			opens, closes := nights.Next(published)
			w.Sync(t, r)
			for time.Now().Before(opens) {
				if s := r.Status(); s.Phase != status.Phase(store.PhaseAwaitingWindow) || s.ChangeWindow == nil || s.ChangeWindow.Open || !s.ChangeWindow.Until.Equal(opens) {
					t.Fatalf("%v: %s, window %+v, want it closed until %v", time.Now(), s.Phase, s.ChangeWindow, opens)
				}
				time.Sleep(min(3*time.Hour, time.Until(opens)))
			}
			began := time.Now()
			w.Committed(t, r, generation)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("generation %d took %v of its window", generation, took)
			}
			if c := w.Observe(t)["app-1/web"]; !nights.At(c.StartedAt) || c.StartedAt.Before(opens) {
				t.Errorf("a container started at %v, outside of %v to %v", c.StartedAt, opens, closes)
			}
			if s := r.Status(); !s.ChangeWindow.Open || !s.ChangeWindow.Until.Equal(closes) {
				t.Errorf("%v: window %+v, want it open until %v", time.Now(), s.ChangeWindow, closes)
			}
			time.Sleep(time.Duration(random.Int64N(int64(30 * time.Hour))))
		}
	})
}

// A clock that is set takes effect at once, in both directions.
func TestWindowsFollowAClockThatIsSet(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var mu sync.Mutex
		var ahead time.Duration
		now := w.Now
		w.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now().Add(ahead) }
		set := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); ahead = d }
		w.Edit = func(o *agent.Options) {
			o.Changes = windows(t, `[{hours: "03:00-04:00", zone: UTC}]`)
			o.Clock = clock.New(w.Now, func() time.Duration { return 0 })
		}
		r := w.Start(t) // at midnight
		w.Publish(t, 1, anApp(1, "web:1"))
		w.Wait(t, "it waits", func() bool { return r.Status().Phase == status.Phase(store.PhaseAwaitingWindow) })
		set(3 * time.Hour)
		w.Committed(t, r, 1)
		set(-2 * time.Hour)
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Sync(t, r)
		time.Sleep(4 * time.Hour) // until 02:00
		if s := r.Status(); s.Committed.Generation != 1 || s.Phase != status.Phase(store.PhaseAwaitingWindow) {
			t.Errorf("changed outside of the window: %+v", s.Committed)
		}
		time.Sleep(65 * time.Minute)
		w.Committed(t, r, 2)
	})
}

// Nobody knows what time it is: no window is open, unless the site says so.
func TestWindowsOfAClockInDoubt(t *testing.T) {
	for _, open := range []bool{false, true} {
		inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
			c := clock.New(w.Now, func() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) })
			c.Hint("the registry", time.Now().Add(30*24*time.Hour))
			w.Edit = func(o *agent.Options) {
				o.Changes, o.ChangesClockUnknown, o.Clock = windows(t, `[{hours: "00:00-12:00", zone: UTC}]`), open, c
			}
			r := w.Start(t)
			w.Publish(t, 1, anApp(1, "web:1"))
			if !open {
				time.Sleep(3 * time.Hour)
				s := r.Status()
				if s.Phase != status.Phase(store.PhaseAwaitingWindow) || s.ChangeWindow.Open || !s.ChangeWindow.ClockUnknown {
					t.Errorf("%s, window %+v", s.Phase, s.ChangeWindow)
				}
				c.Hint("the registry", time.Time{})
				time.Sleep(5 * time.Minute) // the next look at the device
			}
			w.Committed(t, r, 1)
		})
	}
}

// A year of nights in the windows of a plant, with states that come at any time, on a device whose clock jumps ahead and back by up to six
// weeks, and whose agent ends again and again. Containers start where a window is open by the clock, and at no other moment; each window
// that is open for a while, without a jump, is used. A brief run takes ten weeks of the year in each zone.
func TestAYearWithAClockThatJumps(t *testing.T) {
	const lookEvery = 2 * time.Hour
	days := testenv.Rounds(70, 365)
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Santiago"} {
		t.Run(zone, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 0))
				nights := windows(t, fmt.Sprintf(`[{days: Mon-Fri, hours: "22:00-05:00", zone: %[1]s, except: [12-24/01-02]}, {cron: "30 2 1,15 * Sun", duration: 40m, zone: %[1]s}]`, zone))
				var ahead atomic.Int64
				var believed atomic.Pointer[clock.Clock]
				m.Now = func() time.Time { return believed.Load().Now() }
				w.Edit = func(o *agent.Options) { // pauses go by the monotonic clock, as those of a real agent
					began := time.Now()
					o.Clock = clock.New(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, func() time.Duration { return time.Since(began) })
					believed.Store(o.Clock)
					o.Changes, o.Interval, o.LookEvery = nights, 6*time.Hour, lookEvery
				}
				time.Sleep(time.Duration(random.Int64N(int64(366-days))) * 24 * time.Hour)
				r := w.Start(t)
				generation, committed, jumps := uint64(0), uint64(0), 0
				still := time.Now() // since when nothing has jumped, ended or come
				for end := time.Now().AddDate(0, 0, days); time.Now().Before(end); {
					switch n := random.IntN(10); {
					case n < 2:
						ahead.Store(random.Int64N(int64(12*7*24*time.Hour)) - int64(6*7*24*time.Hour))
						jumps++
						still = time.Now()
					case n == 2:
						r.Stop(t)
						r = w.Start(t)
						still = time.Now()
					case n < 6 && committed == generation:
						generation++
						w.Publish(t, generation, anApp(1, fmt.Sprintf("web:%d", generation)))
						w.Sync(t, r)
						still = time.Now()
					}
					time.Sleep(time.Duration(random.Int64N(int64(9 * time.Hour))))
					synctest.Wait()
					now := m.Now()
					opens, _ := nights.Next(now.Add(-2 * lookEvery))
					if s := r.Status(); s.Committed != nil {
						committed = s.Committed.Generation
					}
					// A clock that was set is noticed at the next look. One that is known to be behind is not trusted: no window is open.
					if committed < generation && believed.Load().Doubt() == nil && nights.At(now) && opens.Equal(now.Add(-2*lookEvery)) && time.Since(still) > 2*lookEvery {
						t.Fatalf("%v: generation %d waits in an open window, %+v", now, generation, r.Status().ChangeWindow)
					}
					if c, ok := w.Observe(t)["app-1/web"]; ok && !nights.At(c.StartedAt) {
						t.Fatalf("%v: a container started at %v, when no window was open", now, c.StartedAt)
					}
				}
				t.Logf("%d generations, %d jumps", committed, jumps)
				if int(committed) < days/5 || jumps < days/5 {
					t.Errorf("%d generations were made and the clock jumped %d times", committed, jumps)
				}
			})
		})
	}
}

// Checks are spread over the time around their interval, half of the jitter before and half after, and over all of it.
func TestPollsWithJitter(t *testing.T) {
	for name, x := range map[string]struct{ jitter, spread float64 }{"a fifth": {0.2, 0.2}, "half": {0.5, 0.5}, "all": {1, 1}, "none": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 0))
				const interval = 10 * time.Minute
				var mu sync.Mutex
				var asked []time.Time
				w.Registry.Fail(func(request string) error {
					mu.Lock()
					defer mu.Unlock()
					if strings.HasPrefix(request, "resolve "+agenttest.Repository) {
						asked = append(asked, time.Now())
					}
					return nil
				})
				w.Edit = func(o *agent.Options) {
					o.Interval, o.Jitter = interval, x.jitter
					o.Random = func() float64 { mu.Lock(); defer mu.Unlock(); return random.Float64() }
				}
				w.Publish(t, 1, anApp(1, "web:1"))
				r := w.Start(t)
				w.Committed(t, r, 1)
				time.Sleep(7 * 24 * time.Hour)
				mu.Lock()
				defer mu.Unlock()
				// Gaps are from 1-spread/2 to 1+spread/2 of the interval; a tenth of a week's thousand is in each tenth of that.
				var tenths [10]int
				total := 0
				for i := 2; i < len(asked); i++ {
					gap := float64(asked[i].Sub(asked[i-1])) / float64(interval)
					at := gap - 1 + x.spread/2
					if at < -0.001 || at > x.spread+0.001 {
						t.Fatalf("%v after the last: %v of the interval", asked[i].Sub(asked[i-1]), gap)
					}
					if total++; x.spread > 0 {
						tenths[min(max(int(at/x.spread*10), 0), 9)]++
					}
				}
				if total < 900 || total > 1100 {
					t.Errorf("asked %d times in a week", total)
				}
				for i, n := range tenths {
					if x.spread > 0 && (n < total/20 || n > total*3/20) {
						t.Errorf("%d of %d gaps are in tenth %d: %v", n, total, i, tenths)
					}
				}
			})
		})
	}
}

// The source is asked in its windows alone, from their beginning on, and whenever somebody asks for it.
func TestPollsInItsWindow(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		days := windows(t, `[{hours: "08:00-09:00", zone: Europe/Berlin}]`)
		var mu sync.Mutex
		var asked []time.Time
		w.Registry.Fail(func(request string) error {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(request, "resolve "+agenttest.Repository) {
				asked = append(asked, time.Now())
			}
			return nil
		})
		w.Edit = func(o *agent.Options) { o.PollWindows, o.Interval = days, 10*time.Minute }
		r := w.Start(t)
		w.Publish(t, 1, anApp(1, "web:1"))
		time.Sleep(3 * time.Hour)
		if s := r.Status(); !s.CheckedAt.IsZero() || s.PollWindow.Open || !s.NextCheck.Equal(time.Date(2000, 1, 1, 7, 0, 0, 0, time.UTC)) {
			t.Errorf("status %+v, next check %v", s.PollWindow, s.NextCheck)
		}
		time.Sleep(5 * 24 * time.Hour)
		mu.Lock()
		for _, at := range asked {
			if !days.At(at) {
				t.Errorf("asked at %v", at)
			}
		}
		if n := len(asked); n < 5*5 || n > 5*8 {
			t.Errorf("asked %d times in 5 windows of an hour", n)
		}
		mu.Unlock()
		w.Publish(t, 2, anApp(1, "web:2"))
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
			t.Errorf("sync outside of the window: %+v", res)
		}
	})
}

// With a phase the source is asked at one place in each interval.
func TestPollsAtItsPhase(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var mu sync.Mutex
		var asked []time.Time
		w.Registry.Fail(func(request string) error {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(request, "resolve "+agenttest.Repository) {
				asked = append(asked, time.Now())
			}
			return nil
		})
		w.Edit = func(o *agent.Options) { o.Interval, o.Phase = 10*time.Minute, 3*time.Minute }
		time.Sleep(7 * time.Minute)
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		time.Sleep(2 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		for _, at := range asked[1:] {
			if at.Sub(at.Truncate(10*time.Minute)).Round(time.Minute) != 3*time.Minute {
				t.Errorf("asked at %v", at)
			}
		}
		if n := len(asked); n < 12 || n > 13 {
			t.Errorf("asked %d times in two hours", n)
		}
	})
}

// In a declared downtime nobody is told that nothing can be reached; after it, whoever still cannot be reached is a problem at once.
func TestDeclaredDowntime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) {
			o.Downtime, o.ReportInterval = windows(t, `[{hours: "02:00-08:00", zone: UTC}]`), 5*time.Minute
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		events := func() (n int) {
			for _, e := range eventsOf(t, r.Agent, status.EventRequest{}) {
				if e.Kind == status.EventSource {
					n++
				}
			}
			return n
		}
		down := func(is bool) {
			w.Registry.Fail(nil)
			w.Fleet.Fail(nil)
			if is {
				w.Registry.Fail(func(string) error { return fmt.Errorf("no route to host: %w", fault.ErrTemporary) })
				w.Fleet.Fail(func(store.Report) error { return fmt.Errorf("no route to host: %w", fault.ErrTemporary) })
			}
		}
		at := func(hour, minute int) { time.Sleep(time.Until(time.Date(2000, 1, 1, hour, minute, 0, 0, time.UTC))) }
		at(2, 1)
		down(true)
		at(7, 59)
		s := r.Status()
		if len(s.Problems) > 0 || events() > 0 || s.Downtime == nil || !s.Downtime.Until.Equal(time.Date(2000, 1, 1, 8, 0, 0, 0, time.UTC)) {
			t.Errorf("in the downtime: %+v, %d events, %+v", s.Problems, events(), s.Downtime)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if res, err := r.Sync(ctx); err != nil || res.Outcome != status.SyncUnreachable {
			t.Errorf("who asks is told: %+v, %v", res, err)
		}
		cancel()
		at(8, 1)
		if s = r.Status(); !hasProblem(s, codes.SourceUnreachable) || events() != 1 || s.Downtime != nil || s.NextCheck.After(time.Now().Add(3*time.Minute)) {
			t.Errorf("after it: %+v, %d events, next check %v", s.Problems, events(), s.NextCheck)
		}
		at(9, 0)
		down(false)
		at(9, 10)
		if s = r.Status(); len(s.Problems) > 0 || events() != 2 || s.Outbox.Depth > 0 {
			t.Errorf("when all is well: %+v, %d events, %+v", s.Problems, events(), s.Outbox)
		}
	})
}
