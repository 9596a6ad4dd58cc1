package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Kind says what a change touches.
type Kind string

const (
	Install       Kind = "install"       // the deployment has not run completely on this device yet
	Images        Kind = "images"        // a service gets another image
	Parameters    Kind = "parameters"    // a component gets other values
	Configuration Kind = "configuration" // a component has another revision, or comes or goes
	Removal       Kind = "removal"       // the deployment leaves the device
	TrustPolicy   Kind = "trust"         // the next version of the trust policy; no deployment has it
)

// Kinds lists those of deployments.
func Kinds() []Kind { return []Kind{Install, Images, Parameters, Configuration, Removal} }

// Change is the difference between what runs of a deployment and what a state wants of it.
type Change struct {
	ID         digest.Digest // names all that the change brings: a decision about it holds for nothing else
	Deployment string        // id
	Name       string        // of the deployment
	Kinds      []Kind        // sorted
	Components []ComponentChange
	Images     []ImageChange
	Restarted  int // containers that are replaced or removed
	Containers int // that run of the deployment now
}

// ComponentChange is a component that gets another revision.
type ComponentChange struct {
	Component string `json:"component"`
	From      string `json:"from,omitempty"` // "": it is new
	To        string `json:"to,omitempty"`   // "": it is removed
}

// ImageChange is a service that gets another image. From is the zero value for a service that is new.
type ImageChange struct {
	Component, Service string
	From, To           workload.Image
}

// Wait is why a change is not made yet.
type Wait struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
	Until   time.Time  `json:"until,omitzero"` // when that ends by itself; zero: it does not, or it is not known
}

// Changes lists what a state changes on a device, by the name of the deployment. Revisions that only their documents tell apart, and those
// that run already, are no change.
func Changes(want *Desired, good map[string]GoodRevision) []Change {
	if want == nil {
		return nil
	}
	var out []Change
	for d := range want.All() {
		g, ok := good[d.ID]
		if ok && g.Record.Digest == d.Digest {
			continue
		}
		c := changeOf(g.Deployment, d)
		if ok && g.Deployment == nil { // its documents are damaged: it may change anything
			c.Kinds = []Kind{Images, Parameters, Configuration}
		}
		if len(c.Kinds) > 0 {
			out = append(out, c)
		}
	}
	for id, g := range good {
		if want.Deployment(id) == nil {
			out = append(out, removalOf(g))
		}
	}
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Deployment, b.Deployment))
	})
	return out
}

// changeOf compares two revisions; old is nil when there is none that ran completely.
func changeOf(old, d *Deployment) Change {
	out := Change{Deployment: d.ID, Name: d.Name}
	kinds := map[Kind]bool{Install: old == nil}
	parts := []any{d.ID, d.Digest}
	for c := range d.All() {
		parts = append(parts, c.Name, c.Digest, c.Identity)
		o := old.Component(c.Name)
		if o == nil || o.Digest != c.Digest {
			kinds[Configuration] = true
			out.Components = append(out.Components, ComponentChange{c.Name, o.revision(), c.Revision})
		}
		kinds[Parameters] = kinds[Parameters] || o != nil && (o.Values != c.Values || o.Digest == c.Digest && o.Identity != c.Identity)
		out.Images = append(out.Images, imageChanges(o, c)...)
		kinds[Images] = kinds[Images] || o != nil && !maps.Equal(imagesOf(o), imagesOf(c))
	}
	for o := range old.All() {
		if d.Component(o.Name) == nil {
			kinds[Configuration] = true
			out.Components = append(out.Components, ComponentChange{Component: o.Name, From: o.Revision})
		}
		out.Containers += len(o.Containers)
		for _, x := range o.Containers {
			if !d.needs(x.ID) {
				out.Restarted++
			}
		}
	}
	kinds[Images] = kinds[Images] || len(out.Images) > 0
	if old == nil {
		kinds = map[Kind]bool{Install: true}
	}
	for _, k := range Kinds() {
		if kinds[k] {
			out.Kinds = append(out.Kinds, k)
		}
	}
	out.ID = digest.FromString(Hash(parts...))
	return out
}

// imagesOf are the images that a component runs, mounts, or runs first.
func imagesOf(c *Component) map[digest.Digest]bool {
	out := map[digest.Digest]bool{}
	for _, img := range c.Project.Images() {
		out[img.Digest] = true
	}
	return out
}

func imageChanges(old, c *Component) []ImageChange {
	before := map[string]workload.Image{}
	if old != nil {
		for i := range old.Project.Services {
			s := &old.Project.Services[i]
			before[s.Name] = s.Image
		}
	}
	var out []ImageChange
	for i := range c.Project.Services {
		s := &c.Project.Services[i]
		if from := before[s.Name]; from.Digest != s.Image.Digest {
			out = append(out, ImageChange{Component: c.Name, Service: s.Name, From: from, To: s.Image})
		}
	}
	return out
}

func removalOf(g GoodRevision) Change {
	out := Change{Deployment: g.Record.DeploymentID, Name: g.Record.Name, Kinds: []Kind{Removal}}
	for c := range g.Deployment.All() {
		out.Components = append(out.Components, ComponentChange{Component: c.Name, From: c.Revision})
		out.Containers += len(c.Containers)
	}
	out.Restarted = out.Containers
	out.ID = digest.FromString(Hash("removal", g.Record.DeploymentID, g.Record.Digest))
	return out
}

// waiting is the revision that a device runs while a change waits: the last good one, or as much of the wanted one as is there.
func (k Memory) waiting(d *Deployment, w Wait) Deployment {
	if good := k.Good[d.ID]; good.Deployment != nil && good.Record.Digest != d.Digest {
		g := *good.Deployment
		g.Name, g.Next, g.Waiting = d.Name, d, &w
		return g
	}
	out := *d
	out.Next, out.Waiting, out.Blocked = d, &w, &Trouble{}
	return out
}

// remaining are the deployments that a state does not have any more, and whose removal waits.
func (k Memory) remaining(want *Desired) []Deployment {
	var out []Deployment
	for id, w := range k.Waits {
		if g := k.Good[id]; g.Deployment != nil && want.Deployment(id) == nil {
			d := *g.Deployment
			d.Waiting = &w
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Deployment) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// waits is the status of a deployment whose change waits; now is what runs of it.
func (q AssessmentInput) waits(d *Deployment, now store.Status) store.Status {
	out := now
	switch {
	case d.Next == nil: // it is removed later
		for i := range out.Components {
			if c := &out.Components[i]; c.State != margo.StateFailed {
				c.State, c.Error = margo.StatePending, nil
				q.stamp(c, componentOf(q.Before[d.ID], c.Name))
			}
		}
	case d.Digest == d.Next.Digest: // nothing else runs
		now = store.Status{Generation: now.Generation}
		out = q.next(d.Next, now, now.Generation)
	default:
		out = q.next(d.Next, now, now.Generation)
	}
	for i := range out.Components {
		c := &out.Components[i]
		if old := componentOf(now, c.Name); c.State == margo.StatePending && old.State == margo.StateFailed { // what runs fails meanwhile
			c.State, c.Error, c.Since = old.State, old.Error, old.Since
		} else if c.State == margo.StatePending && d.Waiting.Code != "" {
			c.Error = &margo.StatusError{Code: string(d.Waiting.Code), Source: c.Name, Message: d.Waiting.Message}
		}
	}
	return q.sum(out, q.Before[d.ID])
}

// PendingReason is why a deployment that is pending waits, as far as it waits for somebody or for a time; nil: for nothing such.
func PendingReason(s store.Status) *margo.StatusError {
	if s.State != margo.StatePending {
		return nil
	}
	for _, c := range s.Components {
		if c.State == margo.StatePending && c.Error != nil {
			return &margo.StatusError{Code: c.Error.Code, Source: s.Name, Message: c.Error.Message}
		}
	}
	return nil
}
