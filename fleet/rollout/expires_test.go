package rollout_test

import (
	"errors"
	"strings"
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

// A wave that is reached after its states have ended is not begun, and not published.
func TestRolloutOutlivesItsStates(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		start := func(life time.Duration) error {
			run, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), s.conduct(), fleet.Options{Now: time.Now(), Expires: time.Now().Add(life)}, rollout.Start{})
			if err != nil {
				return err
			}
			return run.Go(t.Context())
		}
		pushed := len(s.m.Published)
		if err := start(90 * time.Minute); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "wave rest is published at") || len(s.m.Published) != pushed {
			t.Errorf("90 minutes of soaking before the last wave: %v", err)
		}
		for _, what := range []string{"begun", "taken up"} { // the devices need a minute in each wave, too
			if err := start(92 * time.Minute); !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "wave rest is published at") {
				t.Errorf("%s: %v\n%s", what, err, s.lines())
			}
			s.want(what, map[uint64]int{1: 10, 2: 10})
		}
	})
}
