package fleet

import (
	"cmp"
	"context"

	"github.com/longshore-dev/longshore/artifacts"
)

// Loader checks whether devices could load and run published states. It is safe for concurrent use, and asks for each
// thing once.
type Loader struct{ p *planner }

// NewLoader creates a loader with the checks of plans with these options: see [Options.Content] and [Options.Trusted].
func NewLoader(from Registry, o Options) *Loader { return &Loader{newPlanner(nil, from, o)} }

// Look returns what of the deployments a device could not load. d is nil if nothing is known of the device. The error says that
// something could not be asked.
func (l *Loader) Look(ctx context.Context, d *Device, deployments []artifacts.Deployment) (Finding, error) {
	a := assigned(d, deployments)
	return l.p.prefetch(ctx, a, platformOf(a.Device))
}

func assigned(d *Device, deployments []artifacts.Deployment) *Assignment {
	d = cmp.Or(d, &Device{})
	a := &Assignment{Device: d}
	for i := range deployments {
		a.Placements = append(a.Placements, placementOf(&deployments[i]))
	}
	return a
}
