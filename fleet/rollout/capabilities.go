package rollout

import (
	"context"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet"
)

// LoadCapabilities sets the capabilities of devices with "capabilities: reported" to what they have reported to the endpoint; those of
// a device that has reported nothing stay unknown. Without such devices there is no request, and from may be nil.
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
	reported, err := from.Capabilities(ctx, ask)
	if err != nil {
		return fmt.Errorf("read the capabilities of devices: %w", err)
	}
	for _, d := range f.Devices {
		data, ok := reported[d.ID]
		if !d.Reported || !ok {
			continue
		}
		if d.Capabilities, err = margo.ParseDeviceCapabilities("reported by "+string(d.ID), data); err != nil {
			return err
		}
	}
	return nil
}
