package registry

import (
	"testing"
	"time"
)

// A mirror is told of once, and again when it has sent right bytes since, at most once an hour.
func TestLiesAreToldOnce(t *testing.T) {
	var l lies
	start := time.Now()
	tell := func(after time.Duration, want bool) {
		t.Helper()
		if got := l.tell(start.Add(after)); got != want {
			t.Errorf("told after %v: %v, want %v", after, got, want)
		}
	}
	tell(0, true)
	tell(2*lieEvery, false)
	l.behave()
	tell(lieEvery/2, false)
	tell(lieEvery, true)
	tell(3*lieEvery, false)
}
