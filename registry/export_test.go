package registry

import (
	"context"
	"time"
)

// SetSettleWait makes whoever has set a tag wait so long before it looks again, until the result is called: on a loaded
// machine others take longer to set a tag than they do in practice.
func SetSettleWait(d time.Duration) (restore func()) {
	was := settleWait
	settleWait = d
	return func() { settleWait = was }
}

// SetSettle has f called in place of that wait, until the result is called.
func SetSettle(f func(context.Context) error) (restore func()) {
	was := settle
	settle = f
	return func() { settle = was }
}

// Classify gives an error its kind.
var Classify = classify

// NewError is an error of an operation on a reference.
var NewError = newError
