package registry

import "time"

// SetMoveWait makes MoveTag wait so long, until the result is called: on a loaded machine others take longer to move a tag
// than they do in practice.
func SetMoveWait(d time.Duration) (restore func()) {
	was := moveWait
	moveWait = d
	return func() { moveWait = was }
}

// Classify gives an error its kind.
var Classify = classify
