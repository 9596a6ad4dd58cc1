package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// A branch is asked as often as the interval says; every commit is published once; what fails is told once, and tried
// again after growing pauses; a newer commit does not wait for that.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var mu sync.Mutex // holds what follows
		head, gone := "one", error(nil)
		broken := map[string]error{}
		var asked int
		var tried, told []string
		locked := func(do func()) {
			mu.Lock()
			defer mu.Unlock()
			do()
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := &fleet.Watch{
			Interval: time.Minute,
			Newest: func(context.Context) (commit string, err error) {
				locked(func() {
					if asked++; gone == nil {
						commit = head
					}
					err = gone
				})
				return commit, err
			},
			Publish: func(_ context.Context, commit string) (err error) {
				locked(func() {
					tried = append(tried, fmt.Sprintf("%s %s", time.Since(begin), commit))
					err = broken[commit]
				})
				return err
			},
			Error: func(commit string, err error) { locked(func() { told = append(told, commit+": "+err.Error()) }) },
		}
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		want := func(what string, got *[]string, lines ...string) {
			t.Helper()
			synctest.Wait()
			locked(func() {
				if !slices.Equal(*got, lines) {
					t.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(*got, "\n"), strings.Join(lines, "\n"))
				}
				*got = nil
			})
		}
		often := func(least, most int) {
			t.Helper()
			locked(func() {
				if asked < least || asked > most {
					t.Errorf("asked %d times, want %d to %d", asked, least, most)
				}
				asked = 0
			})
		}
		time.Sleep(10*time.Minute + time.Second)
		want("one commit", &tried, "0s one")
		often(11, 11)
		locked(func() { head, broken["two"] = "two", errors.New("a fault") })
		time.Sleep(16 * time.Minute)
		want("a commit that is wrong", &tried, "11m0s two", "12m0s two", "14m0s two", "18m0s two", "26m0s two")
		want("told", &told, "two: a fault")
		locked(func() { head = "three" })
		time.Sleep(time.Minute)
		want("a newer commit", &tried, "27m0s three")
		often(17, 17)
		locked(func() { gone = fault.WithRetryAfter(fmt.Errorf("gone: %w", fault.ErrTemporary), 4*time.Minute) })
		time.Sleep(time.Hour)
		often(5, 9)
		want("a server that is away", &told, ": gone: temporarily unavailable")
		locked(func() { gone, head = nil, "four" })
		time.Sleep(15 * time.Minute)
		cancel()
		<-done
		if len(tried) != 1 || !strings.HasSuffix(tried[0], "four") {
			t.Errorf("back again: %v", tried)
		}
	})
}

func TestWatchOnce(t *testing.T) {
	var tried []string
	w := &fleet.Watch{
		Newest:  func(context.Context) (string, error) { return "one", nil },
		Publish: func(_ context.Context, commit string) error { tried = append(tried, commit); return fault.ErrConflict },
	}
	if err := w.Once(t.Context()); !errors.Is(err, fault.ErrConflict) || !slices.Equal(tried, []string{"one"}) {
		t.Errorf("Once = %v, tried %v", err, tried)
	}
}

// A plan follows only what its commit has in its history.
func TestFollows(t *testing.T) {
	commit := func(c string) string { return strings.Repeat(c, 40) }
	in := func(_ context.Context, c string) (bool, error) { return c == commit("a") || c == commit("b"), nil }
	for name, c := range map[string]struct {
		revisions []string
		forgiven  []string
		ok        bool
	}{
		"nothing is said":    {[]string{"", "v1.4"}, nil, true},
		"in the history":     {[]string{commit("a"), commit("b"), commit("a") + "-dirty"}, nil, true},
		"not in the history": {[]string{commit("a"), commit("c")}, nil, false},
		"forgiven":           {[]string{commit("a"), commit("c")}, []string{commit("c")}, true},
	} {
		p := &fleet.Plan{}
		for i, r := range c.revisions {
			p.Devices = append(p.Devices, &fleet.DevicePlan{Device: artifacts.DeviceID(fmt.Sprint("press-0", i)), Origin: fleet.Origin{Revision: r}})
		}
		err := p.Follows(t.Context(), in, c.forgiven)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrRollback) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := &fleet.Plan{Devices: []*fleet.DevicePlan{{Device: "press-01", Origin: fleet.Origin{Revision: commit("a")}}}}
	away := errors.New("away")
	if err := p.Follows(t.Context(), func(context.Context, string) (bool, error) { return false, away }, nil); !errors.Is(err, away) {
		t.Errorf("Follows = %v, want what kept it from asking", err)
	}
}
