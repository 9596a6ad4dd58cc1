package registry

import (
	"testing"
	"time"
)

// A mirror is reported once, and again when it has sent correct bytes since, at most once an hour.
func TestMismatchesAreReportedOnce(t *testing.T) {
	var m mismatches
	start := time.Now()
	report := func(after time.Duration, want bool) {
		t.Helper()
		if got := m.due(start.Add(after)); got != want {
			t.Errorf("due after %v: %v, want %v", after, got, want)
		}
	}
	report(0, true)
	report(2*mismatchEvery, false)
	m.match()
	report(mismatchEvery/2, false)
	report(mismatchEvery, true)
	report(3*mismatchEvery, false)
}
