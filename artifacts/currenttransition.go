package artifacts

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// MaxTransitions is how many transitions a device reports, the newest.
const MaxTransitions = 64

// CurrentTransition is that a deployment came to another state, generation or error.
type CurrentTransition struct {
	Sequence   uint64             `json:"sequence"` // the place among the reports to a fleet endpoint: the status has it there, too
	At         time.Time          `json:"at"`       // by the device's clock
	Deployment string             `json:"deployment"`
	Generation uint64             `json:"generation"`
	State      margo.State        `json:"state"`
	Error      *margo.StatusError `json:"error,omitempty"`
}

// Same reports whether nothing lies between two: they differ in their texts at most.
func (x CurrentTransition) Same(as CurrentTransition) bool {
	return x.Deployment == as.Deployment && x.Generation == as.Generation && x.State == as.State && (x.Error == nil) == (as.Error == nil) &&
		(x.Error == nil || x.Error.Code == as.Error.Code && x.Error.Source == as.Error.Source)
}

// Status is the report on it that the device sends to a fleet endpoint, without components.
func (x CurrentTransition) Status(device DeviceID) margo.DeploymentStatus {
	return CurrentDeployment{ID: x.Deployment, Generation: x.Generation, State: x.State, Error: x.Error}.Status(device)
}

// CurrentTransitions are the newest transitions of a device's deployments: the member "transitions" in the extension of the capabilities of a
// current state. They are there as long as they are among the newest, so that whoever reads a current state now and then has all of them.
type CurrentTransitions struct {
	After uint64              `json:"after,omitempty"` // the sequence of the last one that is not in the list any more; 0: none was left out
	List  []CurrentTransition `json:"list"`            // in order, the newest at the end
}

// Transitions are those that a current state reports; none where an older agent made it. A transition that cannot be read, or is not in order,
// is left out: it must not hide what else the report says.
func (c *CurrentState) Transitions() CurrentTransitions {
	var doc struct {
		Extra struct {
			Transitions struct {
				After uint64            `json:"after"`
				List  []json.RawMessage `json:"list"`
			} `json:"transitions"`
		} `json:"x-longshore-extensions"`
	}
	if err := json.Unmarshal(c.Capabilities, &doc); err != nil {
		return CurrentTransitions{}
	}
	in := doc.Extra.Transitions
	out := CurrentTransitions{After: in.After}
	last := in.After
	for _, one := range in.List {
		var x CurrentTransition
		if json.Unmarshal(one, &x) != nil || x.Sequence <= last || x.Sequence >= c.Sequence || !epochFormat.MatchString(x.Deployment) || !slices.Contains(runStates, string(x.State)) {
			continue
		}
		last = x.Sequence
		out.List = append(out.List, x)
	}
	if n := len(out.List) - MaxTransitions; n > 0 {
		out.After, out.List = out.List[n-1].Sequence, out.List[n:]
	}
	return out
}
