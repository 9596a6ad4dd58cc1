package rollout_test

import (
	"errors"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// Devices take no state that has ended: one that is given back lasts as long from then on as the rollout's did, and being
// halted on the way makes it no longer.
func TestUndoAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		const life = 10 * time.Hour
		k, began := s.conduct(), time.Now()
		run, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), k, fleet.Options{Now: began, Expires: began.Add(life)}, rollout.Start{})
		if err == nil {
			err = run.Go(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * life)
		undone := time.Now()
		if _, err = rollout.Undo(t.Context(), s.conduct(), "by hand"); err == nil {
			_, err = rollout.Halt(t.Context(), s.conduct(), "lunch")
		}
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if run, err = rollout.Undo(t.Context(), s.conduct(), "by hand"); err == nil {
			err = run.Go(t.Context())
		}
		if !errors.Is(err, fault.ErrRejected) {
			t.Fatal(err)
		}
		x, err := artifacts.OpenState(s.m.Manifests[s.m.Named[fleettest.Base+"/state:press-003"]])
		if err != nil || x.Generation != 3 || !x.Expires.Equal(undone.Add(life).Truncate(time.Second)) {
			t.Errorf("%+v, %v: want generation 3 until %s", x, err, undone.Add(life))
		}
	})
}
