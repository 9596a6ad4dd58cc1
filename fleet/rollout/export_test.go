package rollout

import (
	"time"

	"github.com/longshore-dev/longshore/artifacts"
)

// Judge is judge, with its verdict in parts.
func Judge(w artifacts.RolloutWave, t WaveCount, now time.Time) (state artifacts.WaveState, well, until time.Time, reason string) {
	v := judge(w, t, now)
	return v.state, v.well, v.until, v.reason
}
