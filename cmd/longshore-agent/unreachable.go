package main

import (
	"context"
	"fmt"

	"github.com/longshore-dev/longshore/agent/outbox"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// unreachable stands in for a fleet endpoint that could not be set up, because its CA file is gone, say. A slip there must
// not keep workloads from starting after a boot: reports wait, as if the endpoint did not answer, and have the reason.
type unreachable struct{ err error }

var _ outbox.Reporter = unreachable{}

// Deliver implements [outbox.Reporter].
func (u unreachable) Deliver(context.Context, store.Report) (bool, error) {
	return false, fmt.Errorf("%w: %w", u.err, fault.ErrTemporary)
}
