package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Volume is a named volume on the disk. Its JSON keys are stable.
type Volume struct {
	Name         string `json:"name"`         // on the device: "project/volume", or that of a shared volume
	Volume       string `json:"volume"`       // in the Compose file; of a shared volume its name
	Project      string `json:"project"`      // "": shared
	Deployment   string `json:"deployment"`   // name, or id where there is no name; "": not known
	DeploymentID string `json:"deploymentId"` // "": not known
	Component    string `json:"component"`    // "": not known
	InUse        bool   `json:"inUse"`        // by an application, or not known
	Bytes        int64  `json:"bytes"`        // on the disk; 0 in a [Status], which measures nothing
}

// SortVolumes brings volumes that nothing uses before the others, and orders them by deployment and name.
func SortVolumes(all []Volume) {
	slices.SortFunc(all, func(a, b Volume) int {
		if a.InUse != b.InUse {
			if a.InUse {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.Deployment, b.Deployment), cmp.Compare(a.Name, b.Name))
	})
}

// SelectVolume finds the volume that a person names: by its name on the device, DEPLOYMENT/VOLUME, or VOLUME where there is one of
// that name. fault.ErrNotFound: there is none; fault.ErrInvalid: there are several.
func SelectVolume(all []Volume, name string) (Volume, error) {
	for _, is := range []func(v Volume) bool{
		func(v Volume) bool { return v.Name == name },
		func(v Volume) bool { return v.Deployment+"/"+v.Volume == name },
		func(v Volume) bool { return v.Volume == name },
	} {
		var found []Volume
		var names []string
		for _, v := range all {
			if is(v) {
				found, names = append(found, v), append(names, v.Name)
			}
		}
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0], nil
		}
		return Volume{}, fault.WithHint(fmt.Errorf("%q is the name of several volumes: %w", name, fault.ErrInvalid), "name one of them: "+strings.Join(names, ", "))
	}
	return Volume{}, fault.WithHint(fmt.Errorf("there is no volume %q: %w", name, fault.ErrNotFound), "list them: longshore-agent volumes list")
}
