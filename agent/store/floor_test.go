package store_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const last = ^uint64(0)

// TestResetActsOnce: a generation that a stolen key signed is taken back, durably and once; everything between is as before.
func TestResetActsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	accept := func(generation uint64, content string, want error) {
		t.Helper()
		err := s.Update(func(tx *store.Tx) error {
			return tx.SetState(store.Accepted, store.State{Digest: digest.FromString(content), Generation: generation})
		})
		if !errors.Is(err, want) {
			t.Errorf("accept %d: %v, want %v", generation, err, want)
		}
	}
	reset := func(to, version uint64, want bool) {
		t.Helper()
		var acted bool
		update(t, s, func(tx *store.Tx) (err error) {
			acted, err = tx.ResetGenerations(store.Reset{To: to, Version: version}, t0)
			return err
		})
		if acted != want {
			t.Errorf("reset to %d with version %d acted: %t, want %t", to, version, acted, want)
		}
	}
	floor := func(want uint64) {
		t.Helper()
		if err := s.Close(); err != nil { // what counts is what is on the disk
			t.Fatal(err)
		}
		s = open(t, path, nil)
		var got uint64
		if err := s.View(func(tx *store.Tx) (err error) { got, err = tx.Floor(""); return err }); err != nil || got != want {
			t.Errorf("floor = %d, %v, want %d", got, err, want)
		}
	}
	floor(0)
	reset(1000, 2, false) // a new device: there is nothing to take back
	accept(1100, "a", nil)
	reset(1000, 2, false) // and never again
	floor(1100)
	accept(last, "stolen", nil)
	floor(last)
	accept(1101, "b", fault.ErrRollback)
	reset(1200, 3, true)
	floor(1200)
	accept(1200, "b", fault.ErrRollback)
	accept(last, "stolen", nil) // what runs runs on
	floor(1200)
	reset(900, 4, true) // a later version may go further
	floor(900)
	reset(950, 5, false) // and raises nothing
	floor(900)
	accept(901, "b", nil)
	floor(901)
	reset(900, 4, false)
	reset(1200, 3, false)
	floor(901)
	accept(900, "c", fault.ErrRollback)
	accept(901, "c", fault.ErrRollback)
	accept(last, "stolen", nil) // signed by a key that counts again: nothing here says no, and it is its own floor
	floor(last)
}
