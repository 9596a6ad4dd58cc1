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

// Time is when what the program was built from was committed: it is no earlier than that. Zero: the go command did not stamp it.
func Time() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return time.Time{}
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				return t.UTC()
			}
		}
	}
	return time.Time{}
}
