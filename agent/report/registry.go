// Package report signs the current state of a device with the device's own key, and publishes it in a registry.
package report

import (
	"context"
	"fmt"

	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/artifacts"
)

// Registry publishes the device's current state in a registry. All fields are needed.
type Registry struct {
	Reference string                                                 // "host/path:tag", for people
	Sign      func(statement []byte) (bundle []byte, err error)      // with the device's key
	Push      func(ctx context.Context, a *artifacts.Artifact) error // under the tag of Reference
}

var _ currentstate.Publisher = Registry{}

func (r Registry) Name() string { return r.Reference }

func (r Registry) Publish(ctx context.Context, c *artifacts.CurrentState) error {
	statement, err := c.Encode()
	if err != nil {
		return err
	}
	bundle, err := r.Sign(statement)
	if err != nil {
		return fmt.Errorf("sign the current state: %w", err)
	}
	a, err := artifacts.PackCurrentState(c, bundle)
	if err != nil {
		return err
	}
	return r.Push(ctx, a)
}
