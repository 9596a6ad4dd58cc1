package token

import (
	"fmt"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Wait is how long a token may take for an answer: cards need seconds to create a key.
const Wait = 30 * time.Second

// calls lets one goroutine at a time use modules: closing the last session unloads a module for the whole process.
var calls struct {
	sync.Mutex
	hangs chan struct{} // closed when the call that nobody waits for any more has returned; nil: there is none
}

// Call has the token of a key do something. A token that does not answer within the limit holds up one goroutine, and no caller any more
// until it answers: modules are C, and no call of theirs can be ended. late gets what comes then, to close it; of an error
// the zero value.
func Call[T any](u URI, limit time.Duration, do func() (T, error), late func(T)) (none T, err error) {
	calls.Lock()
	defer calls.Unlock()
	silent := fault.WithHint(fmt.Errorf("key %s: the token does not answer: %w", u, fault.ErrTemporary), "plug the token in again; if that does not help, restart the program")
	select {
	case <-calls.hangs:
		calls.hangs = nil
	default:
		if calls.hangs != nil {
			return none, silent
		}
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	over := time.NewTimer(limit)
	defer over.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-over.C:
	}
	hangs := make(chan struct{})
	calls.hangs = hangs
	go func() {
		defer close(hangs)
		late((<-done).value)
	}()
	return none, silent
}
