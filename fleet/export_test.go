package fleet

import (
	"io/fs"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Structure tells what is wrong with fleet.yaml by itself.
func Structure(fsys fs.FS) []strict.Fault {
	return readFile(fsys, File, &Fleet{}).faults
}

// Judge is judge, with its verdict in parts.
func Judge(w artifacts.RolloutWave, t Tally, now time.Time) (state artifacts.WaveState, well, until time.Time, reason string) {
	v := judge(w, t, now)
	return v.state, v.well, v.until, v.reason
}
