package testenv

import "os"

// nightlyVariable makes long tests run at full length.
const nightlyVariable = "LONGSHORE_NIGHTLY"

// Nightly reports whether tests run at full length (LONGSHORE_NIGHTLY=1, which "testenv test --nightly" sets): all releases of
// containerd, all rounds of random choices, large fleets.
func Nightly() bool { return os.Getenv(nightlyVariable) == "1" }

// Rounds is how often a test repeats what it does, or how many it takes: brief, and nightly in a [Nightly] run.
func Rounds(brief, nightly int) int {
	if Nightly() {
		return nightly
	}
	return brief
}
