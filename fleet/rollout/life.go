package rollout

import (
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// outlived refuses a wave whose states will have ended when it is published, at the earliest: devices take nothing that has
// ended. What was begun has its end already, and has to be ended itself.
func outlived(r *artifacts.Rollout, at time.Time, begun bool) error {
	end := r.States.Expires
	if end.IsZero() {
		return nil
	}
	coming := func(w artifacts.RolloutWave) bool {
		return w.State == artifacts.WavePending || w.State == artifacts.WavePublishing
	}
	for i, w := range r.Waves {
		if !coming(w) {
			continue
		}
		begins := at
		for j := before(r.Waves, i); j >= 0; j = before(r.Waves, j) {
			if coming(r.Waves[j]) {
				begins = begins.Add(r.Waves[j].Soak)
			}
		}
		if begins.Before(end) {
			continue
		}
		err := fmt.Errorf("rollout %d of %s: %s is published at %s at the earliest, and its states end at %s", r.Number, r.Fleet, title(w),
			begins.Format(time.RFC3339), end.Format(time.RFC3339))
		if begun {
			return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrConflict), "end it: longshore fleet rollout halt, or undo; then publish with a later --expires")
		}
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrInvalid), "publish with a later --expires, or let waves soak shorter")
	}
	return nil
}
