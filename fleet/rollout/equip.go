package rollout

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet"
)

// asks is how many devices' capabilities are asked for at a time.
const asks = 8

// Equip gives devices of which the files say "capabilities: reported" what they have told the endpoint. Of one that has
// told nothing, nothing is known. Without such devices nobody is asked, and from may be nil.
func Equip(ctx context.Context, f *fleet.Fleet, from Endpoint) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(asks)
	for _, d := range f.Devices {
		switch {
		case !d.Reported:
			continue
		case from == nil:
			return fault.WithHint(fmt.Errorf("%s: capabilities: reported: there is no fleet endpoint to ask: %w", d.ID, fault.ErrInvalid),
				"name it with --endpoint, or as endpoint in fleet.yaml")
		case ctx.Err() != nil:
			return g.Wait()
		}
		g.Go(func() error {
			data, err := from.Capabilities(ctx, d.ID)
			if errors.Is(err, fault.ErrNotFound) {
				return nil
			}
			if err == nil {
				d.Capabilities, err = margo.ParseDeviceCapabilities("reported by "+string(d.ID), data)
			}
			if err != nil {
				return fmt.Errorf("ask what %s can do: %w", d.ID, err)
			}
			return nil
		})
	}
	return g.Wait()
}
