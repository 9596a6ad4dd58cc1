package tasks

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A create is one that a test asks for. Its times are since the test's begin.
type create struct {
	group   string
	listens time.Duration // after its begin; 0: it is not seen that the shim listens
	lasts   time.Duration
	fails   bool
	from    time.Duration // when it began
}

// creates asks for all of them at the same moment, in order, and waits for them.
func creates(t *testing.T, s *shims, all ...*create) {
	t.Helper()
	epoch := time.Now()
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			turn, err := s.enter(t.Context(), c.group)
			if err != nil {
				t.Error(err)
				return
			}
			defer turn.leave()
			c.from = time.Since(epoch)
			if time.Sleep(c.listens); c.listens > 0 {
				turn.leave()
			}
			if time.Sleep(c.lasts - c.listens); !c.fails {
				turn.created()
			}
			time.Sleep(time.Hour) // the start, or the removal
		})
		synctest.Wait()
	}
	wg.Wait()
}

// TestFirstTasksAreCreatedAlone: of the tasks that are asked for at the same moment one is created alone, one more once the shim listens, and
// the others beside each other once one has been created.
func TestFirstTasksAreCreatedAlone(t *testing.T) {
	const second = time.Second
	for name, test := range map[string]struct {
		first create
		want  [4]time.Duration
	}{
		"created":                   {create{lasts: 3 * second}, [4]time.Duration{0, 3 * second, 3 * second, 3 * second}},
		"listens before":            {create{lasts: 3 * second, listens: second}, [4]time.Duration{0, second, 3 * second, 3 * second}},
		"not created":               {create{lasts: 3 * second, fails: true}, [4]time.Duration{0, time.Hour + 3*second, time.Hour + 5*second, time.Hour + 5*second}},
		"not created, but listened": {create{lasts: 3 * second, fails: true, listens: 2 * second}, [4]time.Duration{0, 2 * second, 4 * second, 4 * second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := test.first
				first.group = "line"
				all := []*create{&first, {group: "line", lasts: 2 * second}, {group: "line", lasts: 2 * second}, {group: "line", lasts: 2 * second}}
				other := &create{group: "other", lasts: second}
				creates(t, newShims(), append(all, other)...)
				var got [4]time.Duration
				for n, c := range all {
					got[n] = c.from
				}
				if got != test.want || other.from != 0 {
					t.Errorf("they began after %v, and one of another group after %v; want %v and at once", got, other.from, test.want)
				}
			})
		})
	}
}

// TestTaskWithAShimOfItsOwn neither waits for others nor has them wait.
func TestTaskWithAShimOfItsOwn(t *testing.T) {
	s := newShims()
	for range 2 {
		turn, err := s.enter(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		turn.created()
		if turn.awaited() {
			t.Error("another task waits for it")
		}
		defer turn.leave()
	}
	if len(s.groups) != 0 {
		t.Errorf("groups %v", s.groups)
	}
}

func TestTaskThatIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShims()
		first, err := s.enter(t.Context(), "line")
		if err != nil {
			t.Fatal(err)
		}
		defer first.leave()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			synctest.Wait()
			if !first.awaited() {
				t.Error("nothing waits for the first")
			}
		}()
		if _, err := s.enter(ctx, "line"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("enter = %v, want the caller's deadline", err)
		}
		if first.awaited() {
			t.Error("something waits for the first")
		}
		s.forget("line")
	})
}
