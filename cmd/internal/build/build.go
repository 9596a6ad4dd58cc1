// Package build tells what a program was built from.
package build

import "runtime/debug"

// Version is the module's version as the go command stamped it: "v1.2.3", a pseudo-version, or "devel".
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
