package build

import (
	"runtime/debug"
	"strings"
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

func TestRead(t *testing.T) {
	stamped := &debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20261123154843-12342f1e0f10"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "12342f1e0f10aaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, {Key: "vcs.time", Value: "2026-11-23T15:48:43Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	for _, c := range []struct {
		version string
		info    *debug.BuildInfo
		want    string
	}{
		{"1.4.0", stamped, "1.4.0 (commit 12342f1e0f10, 2026-11-23T15:48:43Z, modified) "},
		{"", stamped, "v0.0.0-20261123154843-12342f1e0f10 (commit "},
		{"", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel go"},
		{"", nil, "devel go"},
	} {
		if got := read(c.version, c.info).Text(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
