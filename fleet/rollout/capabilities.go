package rollout

import (
	"context"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet"
)

// LoadCapabilities gives devices of which the files say "capabilities: reported" what they have told the endpoint. Of one that has
// told nothing, nothing is known. Without such devices nobody is asked, and from may be nil.
func LoadCapabilities(ctx context.Context, f *fleet.Fleet, from Endpoint) error {
	var ask []artifacts.DeviceID
	for _, d := range f.Devices {
		if !d.Reported {
			continue
		}
		if from == nil {
			return fault.WithHint(fmt.Errorf("%s: capabilities: reported: there is no fleet endpoint to ask: %w", d.ID, fault.ErrInvalid),
				"name it with --endpoint, or as endpoint in fleet.yaml")
		}
		ask = append(ask, d.ID)
	}
	if len(ask) == 0 {
		return nil
	}
	told, err := from.Capabilities(ctx, ask)
	if err != nil {
		return fmt.Errorf("ask what devices can do: %w", err)
	}
	for _, d := range f.Devices {
		data, ok := told[d.ID]
		if !d.Reported || !ok {
			continue
		}
		if d.Capabilities, err = margo.ParseDeviceCapabilities("reported by "+string(d.ID), data); err != nil {
			return err
		}
	}
	return nil
}
