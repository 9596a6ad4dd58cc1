package artifacts_test

import (
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
)

func TestDecisionsInOneLine(t *testing.T) {
	at := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	for want, d := range map[string]artifacts.CurrentDecision{
		"2026-11-26T10:00:00Z: ana at the panel rejected line-monitor: camera 2": {At: at, Verdict: "rejected", Deployment: "line-monitor", By: "ana at the panel", Reason: "camera 2"},
		"2026-11-26T10:00:00Z: user bo (1000) rolled back to generation 3":       {At: at, Verdict: "rolled-back", Generation: 3, By: "user bo (1000)"},
		"2026-11-26T10:00:00Z: user bo (1000) released to generation 4":          {At: at, Verdict: "released", Generation: 4, By: "user bo (1000)"},
	} {
		if got := d.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
