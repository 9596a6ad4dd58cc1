package budget_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/budget"
)

// server answers with a body of its size and reads all that it is sent.
type server struct {
	answer int
	read   int
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		n, err := io.Copy(io.Discard, r.Body)
		if s.read += int(n); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(make([]byte, s.answer)))}, nil
}

// exchange sends so many bytes and reads the answer.
func exchange(ctx context.Context, trips http.RoundTripper, send int) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://registry.example/v2/", bytes.NewReader(make([]byte, send)))
	if err != nil {
		return 0, err
	}
	resp, err := trips.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	return int(n), err
}

// All requests together take the time that the rate asks for, each direction by itself.
func TestRate(t *testing.T) {
	for name, c := range map[string]struct{ rate, send, answer, requests int }{
		"sent":     {100_000, 500_000, 0, 4},
		"received": {100_000, 0, 500_000, 4},
		"both":     {100_000, 500_000, 500_000, 2},
		"slow":     {50, 500, 500, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, ctx, cancel := budget.New(t.Context(), budget.Options{Rate: int64(c.rate)})
				defer cancel()
				begin := time.Now()
				var all sync.WaitGroup
				for range c.requests {
					all.Go(func() {
						if n, err := exchange(ctx, b.Wrap(&server{answer: c.answer}), c.send); err != nil || n != c.answer {
							t.Errorf("%d bytes, %v", n, err)
						}
					})
				}
				all.Wait()
				took, each := time.Since(begin), time.Duration(c.requests*max(c.send, c.answer)/c.rate)*time.Second
				least, most := each*95/100, each*105/100
				if c.send > 0 && c.answer > 0 { // here an answer follows its request: the directions are used one after the other
					most = 2 * most
				}
				if took < least || took > most {
					t.Errorf("it took %v of simulated time, want %v to %v", took, least, most)
				}
				received, sent := b.Used()
				if received != int64(c.requests*c.answer) || sent != int64(c.requests*c.send) {
					t.Errorf("Used = %d, %d", received, sent)
				}
			})
		})
	}
}

// The run ends when its bytes are used up, and nothing is asked any more.
func TestTotal(t *testing.T) {
	const total, step = 1 << 20, 32 << 10
	for name, c := range map[string]struct{ send, answer int }{"sent": {300_000, 0}, "received": {0, 300_000}} {
		t.Run(name, func(t *testing.T) {
			b, ctx, cancel := budget.New(t.Context(), budget.Options{Total: total})
			defer cancel()
			s := &server{answer: c.answer}
			requests := 0
			var err error
			for err == nil && requests < 10 {
				_, err = exchange(ctx, b.Wrap(s), c.send)
				requests++
			}
			if !errors.Is(err, budget.ErrUsed) || !errors.Is(context.Cause(ctx), budget.ErrUsed) || !fault.Retryable(err) {
				t.Errorf("after %d requests: %v, the run ended with %v", requests, err, context.Cause(ctx))
			}
			if received, sent := b.Used(); max(received, sent) < total || max(received, sent) > total+step {
				t.Errorf("Used = %d, %d, want at most %d more than %d", received, sent, step, total)
			}
			before := s.read
			if _, err := exchange(ctx, b.Wrap(s), 1); !errors.Is(err, budget.ErrUsed) || s.read != before {
				t.Errorf("one more: %v, %d bytes", err, s.read-before)
			}
		})
	}
}

// Outside of its hours a run waits, a transfer pauses when they end, and who does not wait is told when they begin.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it begins at 2000-01-01 00:00 UTC, a Saturday
		w, err := budget.ParseWindow("22:00-22:30")
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		o := budget.Options{Windows: []budget.Window{w}, Now: func() time.Time { return time.Now().UTC() }, Rate: 100, Tell: func(s string) { told = append(told, s) }}
		b, ctx, cancel := budget.New(t.Context(), o)
		defer cancel()
		begin := time.Now()
		const bytes = 100 * 45 * 60 // three quarters of an hour: half an hour, and the rest on the next evening
		if n, err := exchange(ctx, b.Wrap(&server{}), bytes); err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if took := time.Since(begin); took < 46*time.Hour+14*time.Minute || took > 46*time.Hour+17*time.Minute {
			t.Errorf("it took %v of simulated time, want until 22:15 of the second evening", took)
		}
		if got := strings.Join(told, "; "); got != "outside of the hours of --window, which begin Sat 22:00; outside of the hours of --window, which begin Sun 22:00" {
			t.Errorf("told %q", got)
		}
		o.NoWait, o.Now = true, func() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }
		b, ctx, cancel = budget.New(t.Context(), o)
		defer cancel()
		if _, err := exchange(ctx, b.Wrap(&server{}), 1); !fault.Retryable(err) || !strings.Contains(err.Error(), "Mon 22:00") {
			t.Errorf("who does not wait: %v", err)
		}
		// Who gives up while waiting is not kept.
		o.NoWait = false
		b, _, cancel = budget.New(t.Context(), o)
		defer cancel()
		short, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		if _, err := exchange(short, b.Wrap(&server{}), 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who gives up: %v", err)
		}
	})
}

func TestParseWindow(t *testing.T) {
	at := func(s string) func() time.Time {
		return func() time.Time {
			when, err := time.Parse("2006-01-02 15:04", s)
			if err != nil {
				t.Fatal(err)
			}
			return when
		}
	}
	for _, c := range []struct {
		window, at string // 2026-11-23 is a Monday
		open       bool
		next       string
	}{
		{"22:00-06:00", "2026-11-23 21:59", false, "Mon 22:00"},
		{"22:00-06:00", "2026-11-23 22:00", true, ""},
		{"22:00-06:00", "2026-11-24 05:59", true, ""},
		{"22:00-06:00", "2026-11-24 06:00", false, "Tue 22:00"},
		{"08:00-17:30", "2026-11-23 17:29", true, ""},
		{"08:00-17:30", "2026-11-23 17:30", false, "Tue 08:00"},
		{"Mon-Fri 22:00-06:00", "2026-11-21 05:00", true, ""}, // the night of Friday
		{"Mon-Fri 22:00-06:00", "2026-11-22 05:00", false, "Mon 22:00"},
		{"Mon-Fri 22:00-06:00", "2026-11-23 05:00", false, "Mon 22:00"},
		{"Sat,Sun 00:00-24:00", "2026-11-22 23:59", true, ""},
		{"Sat,Sun 00:00-24:00", "2026-11-23 00:00", false, "Sat 00:00"},
		{"Fri-Mon 12:00-13:00", "2026-11-22 12:30", true, ""},
		{"Fri-Mon 12:00-13:00", "2026-11-24 12:30", false, "Fri 12:00"},
	} {
		w, err := budget.ParseWindow(c.window)
		if err != nil {
			t.Errorf("ParseWindow(%q) = %v", c.window, err)
			continue
		}
		next, open := budget.Open([]budget.Window{w}, at(c.at))
		if open != c.open || !open && next.Format("Mon 15:04") != c.next {
			t.Errorf("%q at %s: open %v, next %s, want %v, %s", c.window, c.at, open, next, c.open, c.next)
		}
	}
	for _, bad := range []string{"", "22:00", "22-06", "22:00-22:00", "24:00-06:00", "25:00-26:00", "Mon-Foo 22:00-06:00", "mon 22:00-06:00", "Mon22:00-06:00", "Mon  22:00-06:00", "22:00-06:00 "} {
		if _, err := budget.ParseWindow(bad); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("ParseWindow(%q) = %v, want fault.ErrInvalid with a hint", bad, err)
		}
	}
}

func FuzzParseWindow(f *testing.F) {
	f.Add("22:00-06:00")
	f.Add("Mon-Fri,Sun 00:00-24:00")
	f.Fuzz(func(t *testing.T, s string) {
		w, err := budget.ParseWindow(s)
		if err != nil {
			return
		}
		now := func() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }
		if next, _ := budget.Open([]budget.Window{w}, now); next.IsZero() {
			t.Errorf("%q never opens", s)
		}
	})
}
