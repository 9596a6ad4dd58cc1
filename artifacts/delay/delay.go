// Package delay waits.
package delay

import (
	"context"
	"time"
)

// For waits for d. An error is the cause of ctx's end.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
