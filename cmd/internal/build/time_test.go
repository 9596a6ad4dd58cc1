package build

import (
	"runtime/debug"
	"testing"
	"time"
)

func TestTimeIsNeverZero(t *testing.T) {
	at := time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		settings []debug.BuildSetting
		want     time.Time
	}{
		"stamped":     {[]debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.time", Value: "2027-03-01T12:00:00Z"}}, at},
		"not stamped": {[]debug.BuildSetting{{Key: "-trimpath", Value: "true"}}, floor},
		"nonsense":    {[]debug.BuildSetting{{Key: "vcs.time", Value: "yesterday"}}, floor},
	} {
		if got := committed(tc.settings); !got.Equal(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if got := Time(); got.Before(floor) {
		t.Errorf("Time = %v", got)
	}
}
