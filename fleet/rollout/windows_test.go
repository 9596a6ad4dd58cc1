package rollout_test

import (
	"errors"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// Windows are a part of what a rollout publishes: with others it is another one, and who undoes it gives the former ones back.
func TestRolloutOfWindows(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.files = fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 5")
		nights := fleettest.With(s.files, fleet.File, "groups:", "windows: [{days: Mon-Fri, hours: \"22:00-05:00\", zone: UTC}]\ngroups:")
		s.files = nights
		if err := s.step(fleet.Options{}, rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		s.want("the first wave", map[uint64]int{1: 19, 2: 1})
		s.files = fleettest.With(nights, fleet.File, "Mon-Fri", "Mon-Thu")
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("taken up with other windows: %v", err)
		}
		s.files = nights
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		s.want("all waves", map[uint64]int{2: 20})
		run, err := rollout.Undo(t.Context(), s.conduct(), "by hand")
		if err == nil {
			err = run.Go(t.Context())
		}
		if !errors.Is(err, fault.ErrRejected) {
			t.Fatal(err)
		}
		x, err := artifacts.OpenState(s.m.Manifests[s.m.Named[fleettest.Base+"/state:press-003"]])
		if err != nil || x.Generation != 3 || !x.Windows.Always() {
			t.Errorf("generation %d, windows %s, %v: want 3 without", x.Generation, x.Windows, err)
		}
	})
}

// Windows whose dates have passed are not given back: the device would never be changed again.
func TestUndoWithWindowsOfThePast(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) { // from 1 January 2000 on
		base := fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 5")
		publish := func(dates string) {
			t.Helper()
			s.files = fleettest.With(base, fleet.File, "groups:", "windows: [{only: ["+dates+"], zone: UTC}]\ngroups:")
			if err := s.roll(t.Context(), rollout.Start{}); err != nil {
				t.Fatal(err)
			}
		}
		publish("2000-01-01/2000-01-05")
		s.want("the first rollout", map[uint64]int{2: 20})
		time.Sleep(10 * 24 * time.Hour)
		publish("2000-01-01/2000-12-31")
		s.want("the second", map[uint64]int{3: 20})
		run, err := rollout.Undo(t.Context(), s.conduct(), "by hand")
		if err == nil {
			err = run.Go(t.Context())
		}
		if !errors.Is(err, fault.ErrRejected) {
			t.Fatal(err)
		}
		x, err := artifacts.OpenState(s.m.Manifests[s.m.Named[fleettest.Base+"/state:press-003"]])
		if err != nil || x.Generation != 4 || x.Repeats == "" || !x.Windows.At(time.Now()) {
			t.Errorf("generation %d, repeats %q, windows %s, %v: want 4 with windows that are open", x.Generation, x.Repeats, x.Windows, err)
		}
	})
}
