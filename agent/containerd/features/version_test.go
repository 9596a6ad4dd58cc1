package features

import (
	"errors"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestVersions(t *testing.T) {
	for version, ok := range map[string]bool{
		"v2.4.2": true, "1.7.35": true, "1.6.20~ds1": true, "v1.6.0": true, "2.0.0-rc.1+unknown": true, "v3": true, "": true,
		"unknown": true, "1.5.18": false, "v1.4.13~ds1": false, "v0.2.3": false, "1.5": false,
	} {
		if err := recentDaemon(version); (err == nil) != ok || !ok && (!errors.Is(err, fault.ErrUnfit) || fault.Hint(err) == "") {
			t.Errorf("recentDaemon(%q) = %v (hint %q), want ok: %v", version, err, fault.Hint(err), ok)
		}
	}
	for release, ok := range map[string]bool{
		"6.18.44-fc-v657": true, "5.4.0-tegra": true, "5.10.104": true, "5.4": true, "7.0-rc1": true, "": true,
		"4.19.0-27-amd64": false, "5.3.18-lp152": false, "3.10.0-1160.el7.x86_64": false,
	} {
		if err := recentRelease(release); (err == nil) != ok || !ok && (!errors.Is(err, fault.ErrUnfit) || fault.Hint(err) == "") {
			t.Errorf("recentRelease(%q) = %v (hint %q), want ok: %v", release, err, fault.Hint(err), ok)
		}
	}
	if err := RecentKernel(); err != nil {
		t.Error(err)
	}
}
