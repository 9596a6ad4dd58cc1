package locks_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/artifacts/locks"
)

// Work on one name waits for nothing but other work on the same name, and a lock that is not held takes no memory.
func TestLocksAreOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(locks.Table)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		unlock, err := l.Lock(t.Context(), "0")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			other, err := l.Lock(short, fmt.Sprint("x", i))
			if err != nil {
				t.Fatalf("lock of another name, the %dth: %v", i, err)
			}
			other()
		}
		if _, err := l.Lock(short, "0"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("lock of a held name: %v, want the end of the context", err)
		}
		got := make(chan func())
		go func() {
			second, err := l.Lock(t.Context(), "0")
			if err != nil {
				t.Error(err)
			}
			got <- second
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("two hold the lock of one name")
		default:
		}
		unlock()
		(<-got)()
		if len(l.Names()) != 0 {
			t.Errorf("%d names are kept, want none", len(l.Names()))
		}
	})
}
