package rollout_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// The registry was restored from a backup, and the canary has accepted a generation that is lost. It takes no older number: what is
// published below says nothing of the release, and the wave does not pass.
func TestRolloutOverLostGenerations(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.files = fleettest.With(s.files, fleet.File, "onFailure: rollback", "onFailure: halt")
		s.devices.past = map[artifacts.DeviceID]uint64{"press-000": 43}
		err := s.roll(t.Context(), rollout.Start{}) // what devices have accepted is not known to the plan
		if !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "wave canary: no device is left that shows how the release runs: press-000: has a later state than generation 2") {
			t.Errorf("%v", err)
		}
		s.want("halted", map[uint64]int{1: 19, 2: 1})
		if r := s.record(); r.Waves[0].State != artifacts.WaveFailed || r.Waves[1].State != artifacts.WavePending {
			t.Errorf("%+v", r.Waves)
		}
		known := fleet.Options{Accepted: func(_ context.Context, d artifacts.DeviceID) (uint64, error) { return s.devices.past[d], nil }}
		run, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), s.conduct(), known, rollout.Start{Again: true})
		if err == nil {
			err = run.Go(t.Context())
		}
		if err != nil {
			t.Errorf("as the device is known to have accepted it: %v\n%s", err, s.lines())
		}
		s.want("above it", map[uint64]int{2: 19, 44: 1})
	})
}
