package intake

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Times are what trusted signers have proven of the time, on the device's clock and in its store.
type Times struct {
	clock   *clock.Clock
	unsaved atomic.Bool // clock knows what the store does not
}

func NewTimes(c *clock.Clock) *Times { return &Times{clock: c} }

// Recall takes up what earlier runs have proven.
func (t *Times) Recall(s *store.Store) error {
	return s.View(func(tx *store.Tx) error {
		all, err := tx.Proofs()
		for _, p := range all {
			t.clock.Recall(p)
		}
		if err != nil && errors.Is(err, fault.ErrInvalid) {
			return nil // Damaged reports it
		}
		return err
	})
}

// Save writes proven times for the next start, when there are new ones. Call [Times.Unsaved] when the transaction fails.
func (t *Times) Save(tx *store.Tx) error {
	if !t.unsaved.Swap(false) {
		return nil
	}
	return tx.SetProofs(t.clock.Proofs())
}

// Unsaved has the next [Times.Save] write.
func (t *Times) Unsaved() { t.unsaved.Store(true) }

// Keep drops what was proven by others than signers, and reports whether there was anything.
func (t *Times) Keep(kind clock.Kind, signers []string) bool {
	if !t.clock.Forget(kind, among(signers)) {
		return false
	}
	t.Unsaved()
	return true
}

// prove takes in a time that a trusted signer has signed; it is kept with the next thing that is saved.
func (t *Times) prove(p clock.Proof) {
	if t.clock.Prove(p) {
		t.Unsaved()
	}
}

// among reports whether all of several names, with ", " between them, are among some.
func among(names []string) func(by string) bool {
	return func(by string) bool {
		for name := range strings.SplitSeq(by, ", ") {
			if !slices.Contains(names, name) {
				return false
			}
		}
		return true
	}
}
