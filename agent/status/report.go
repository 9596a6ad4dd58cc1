package status

import (
	"cmp"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Report is the report that a status of a deployment on a device makes, a Margo document.
func Report(device string, s store.Status) ([]byte, error) {
	if s.Child != "" && !strings.HasSuffix(s.Child, "/*") { // a single device behind this one
		device = s.Child
	}
	d := margo.DeploymentStatus{
		DeploymentID: s.DeploymentID, DeviceID: device, AdoptedManifestVersion: s.Generation,
		Status:     margo.OverallStatus{State: s.State, Error: cmp.Or(plan.OverallError(s), plan.PendingReason(s))},
		Components: []margo.ComponentStatus{},
	}
	for _, c := range s.Components {
		d.Components = append(d.Components, margo.ComponentStatus{Name: c.Name, State: c.State, Error: c.Error})
	}
	return d.Encode()
}

// Same compares everything but times, which follow from the rest.
func Same(a, b store.Status) bool {
	return a.DeploymentID == b.DeploymentID && a.Name == b.Name && a.Digest == b.Digest && a.Generation == b.Generation &&
		a.State == b.State && slices.EqualFunc(a.Components, b.Components, func(x, y store.Component) bool {
		return x.Name == y.Name && x.Revision == y.Revision && x.Identity == y.Identity && x.State == y.State && sameError(x.Error, y.Error)
	})
}

func sameError(a, b *margo.StatusError) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
