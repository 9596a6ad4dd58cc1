// Package build tells what a program was built from.
package build

import (
	"runtime/debug"
	"time"
)

// Version is the module's version as the go command stamped it: "v1.2.3", a pseudo-version, or "devel".
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// floor is when this was written. A device whose clock begins in 1970 learns the time from here on; being some years old does no harm.
var floor = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// Time is when what the program was built from was committed: it is no earlier than that. Where the go command did not stamp it,
// as in a build without the repository, it is when this package was.
func Time() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return floor
	}
	return committed(info.Settings)
}

func committed(settings []debug.BuildSetting) time.Time {
	for _, s := range settings {
		if s.Key == "vcs.time" {
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				return t.UTC()
			}
		}
	}
	return floor
}
