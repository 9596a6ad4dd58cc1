package currentstate

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// maxSentence is how many bytes of a message go into a current state.
const maxSentence = 512

// Facts are what a current state is made of.
type Facts struct {
	Device       artifacts.DeviceID
	Epoch        string        // of the store
	BootID       string        // "": not known
	Interval     time.Duration // in which a current state is published at least; 0: only when something changes
	Repository   string        // of the device's states
	Capabilities []byte        // the document that the device reports

	Accepted, Running, Committed *store.State   // nil: none
	Refused                      *store.Refused // nil: none
	Statuses                     map[string]store.Status
	Resolved                     []*plan.Desired // states in which the digests of components are looked up, the first one first; nil ones are skipped
	Observed                     workload.Observed
}

// Make makes a current state without its numbers and its time.
func Make(f Facts) *artifacts.CurrentState {
	c := &artifacts.CurrentState{
		Device: f.Device, Epoch: f.Epoch, BootID: f.BootID, Every: uint64(f.Interval / time.Second), Repository: f.Repository,
		Accepted: generation(f.Accepted), Running: generation(f.Running), Committed: generation(f.Committed),
		Deployments: []artifacts.CurrentDeployment{}, Capabilities: f.Capabilities,
	}
	if r := f.Refused; r != nil {
		c.Refused = &artifacts.CurrentRefusal{Generation: r.Generation, Digest: r.Digest, Code: r.Code, Message: status.Cut(r.Message, maxSentence), Since: r.Since.UTC()}
	}
	for _, s := range status.ByName(f.Statuses) {
		c.Deployments = append(c.Deployments, f.deployment(s))
	}
	return c
}

// Same compares everything but numbers and the time.
func Same(a, b *artifacts.CurrentState) bool {
	x := *a
	x.Counter, x.Sequence, x.Time = b.Counter, b.Sequence, b.Time
	x.Capabilities = b.Capabilities
	return bytes.Equal(a.Capabilities, b.Capabilities) && reflect.DeepEqual(&x, b)
}

func generation(s *store.State) *artifacts.CurrentGeneration {
	if s == nil {
		return nil
	}
	return &artifacts.CurrentGeneration{Generation: s.Generation, Digest: s.Digest}
}

func (f *Facts) deployment(s store.Status) artifacts.CurrentDeployment {
	d := artifacts.CurrentDeployment{
		ID: s.DeploymentID, Name: s.Name, Generation: s.Generation, State: s.State, Since: s.Since.UTC(), Error: shortened(plan.OverallError(s)),
		Components: []artifacts.CurrentComponent{},
	}
	for _, x := range s.Components {
		c := artifacts.CurrentComponent{Name: x.Name, Revision: x.Revision, State: x.State, Since: x.Since.UTC(), Error: shortened(x.Error), Images: f.images(s.DeploymentID, x.Name)}
		for _, from := range f.Resolved {
			if p := from.Deployment(s.DeploymentID).Component(x.Name); p != nil && p.Identity == x.Identity && c.Digest == "" {
				c.Digest = p.Digest
			}
		}
		d.Components = append(d.Components, c)
	}
	return d
}

// images are those of a component's containers that run, of old and new ones during an update.
func (f *Facts) images(deployment, component string) []artifacts.CurrentImage {
	out := []artifacts.CurrentImage{}
	for _, o := range f.Observed.Containers {
		if o.Deployment != deployment || o.Component != component || o.Status != workload.Running {
			continue
		}
		i := slices.IndexFunc(out, func(x artifacts.CurrentImage) bool { return x.Image == o.Image })
		if i < 0 {
			out = append(out, artifacts.CurrentImage{Image: o.Image})
			i = len(out) - 1
		}
		out[i].Containers++
	}
	slices.SortFunc(out, func(a, b artifacts.CurrentImage) int { return strings.Compare(a.Image, b.Image) })
	return out
}

func shortened(e *margo.StatusError) *margo.StatusError {
	if e == nil {
		return nil
	}
	return &margo.StatusError{Code: e.Code, Source: status.Cut(e.Source, maxSentence), Message: status.Cut(e.Message, maxSentence)}
}

// Transition is that a deployment came to the status that it has now.
func Transition(now time.Time, s store.Status) artifacts.CurrentTransition {
	x := artifacts.CurrentTransition{
		At: now.UTC(), Deployment: s.DeploymentID, Generation: s.Generation, State: s.State, Error: shortened(cmp.Or(plan.OverallError(s), plan.PendingReason(s))),
	}
	if x.Error != nil {
		x.Error.Source, x.Error.Message = status.Cut(x.Error.Source, maxSentence/4), status.Cut(x.Error.Message, maxSentence/4)
	}
	return x
}

// Decision is what a person at the device decided.
func Decision(d store.Decided) artifacts.CurrentDecision {
	return artifacts.CurrentDecision{
		At: d.At.UTC(), Verdict: string(d.Verdict), Deployment: d.Deployment, Generation: d.Generation, Digest: d.Digest, By: d.By, Via: d.Via, Reason: status.Cut(d.Reason, maxSentence),
	}
}
