package tasks

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestFirstTasksAreMadeAlone: of the tasks that are asked for at the same moment one is made alone, and the others beside each other
// once it is there; when it cannot be made, the next one is alone.
func TestFirstTasksAreMadeAlone(t *testing.T) {
	for name, first := range map[string]error{"made": nil, "not made": errors.New("no shim")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShims()
				type span struct{ from, to time.Duration }
				epoch := time.Now()
				spans := make(chan span, 4)
				create := func(project string, err error) {
					_ = s.begin(t.Context(), project, func() error { // its error is that of what it calls
						from := time.Since(epoch)
						time.Sleep(time.Second)
						spans <- span{from, time.Since(epoch)}
						return err
					})
				}
				go create("line", first)
				synctest.Wait()
				go create("line", nil)
				go create("line", nil)
				go create("other", nil)
				time.Sleep(time.Minute)
				alone := 0
				for range 4 {
					switch at := <-spans; at.from {
					case 0:
					case time.Second:
						alone++
					default:
						alone = -4 // a task that waited for more than the first
					}
				}
				if first == nil && alone != 2 || first != nil && alone >= 0 {
					t.Errorf("%d of two tasks followed the first at once", alone)
				}
			})
		})
	}
}

// TestTaskWithAShimOfItsOwn neither waits for others nor tells them that their shim is there.
func TestTaskWithAShimOfItsOwn(t *testing.T) {
	s := newShims()
	err := s.begin(t.Context(), "line", func() error {
		return s.begin(t.Context(), "", func() error { return nil })
	})
	if err != nil || s.count("") != 0 || s.count("line") != 1 {
		t.Errorf("%v, %d and %d tasks", err, s.count(""), s.count("line"))
	}
}

func TestTaskThatIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShims()
		go func() {
			_ = s.begin(t.Context(), "line", func() error { time.Sleep(time.Hour); return nil })
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.begin(ctx, "line", func() error { t.Error("it is made"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("begin = %v, want the caller's deadline", err)
		}
		time.Sleep(time.Hour)
		s.forget("line")
	})
}
