package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Desired is one generation, completely resolved.
type Desired struct {
	Digest      digest.Digest // of the state artifact's manifest
	Generation  uint64
	Deployments []Deployment
	Unplaced    []Unplaced
	Blobs       []digest.Digest // of all its documents, to keep on the device

	kept map[string]bool // deployments whose removal waits, by id, also those whose documents are damaged
}

// Unplaced is an application that is assigned to a device behind this one, which is no gateway: it is reported as failed, and nothing
// is done about it.
type Unplaced struct {
	ID, Name, Device string        // Device: "press-07/sensor-1"; "press-07/*": any behind it
	Digest           digest.Digest // of its document
	Components       []string      // their names
	Revisions        []string      // of Components
}

// trouble is the error that the specification reserves for it.
func (u Unplaced) trouble() (codes.Code, string) {
	if gateway, any := strings.CutSuffix(u.Device, "/*"); any {
		return codes.NoPlacement, fmt.Sprintf("%s does not choose among devices behind it: there are none", gateway)
	}
	return codes.UnknownChild, fmt.Sprintf("no device %s is behind this one", u.Device)
}

// Deployment is one application. Deployments do not depend on each other.
type Deployment struct {
	ID         string
	Name       string
	Digest     digest.Digest   // of its document
	Size       int64           // of its document
	Components []Component     // installed in this order
	Blobs      []digest.Digest // of everything small that it was made of

	// The rest is what [Resolve] makes of what the agent remembers.

	Updating bool       // an update: a last good revision is kept for a rollback
	Refused  *store.Bad // this is the last good revision instead of the refused one; with Pause it is the refused one itself
	Back     uint64     // with Refused: the generation of this revision; 0: it was not replaced
	Deferred bool       // with Refused: it was never started, and may be later
	Blocked  *Trouble   // nothing is created or removed for it; without a code it only waits
	Waiting  *Wait      // why a change is not made yet: that from this revision to Next, or its removal; nil: nothing waits
	Next     *Deployment
}

// Component is one project of a deployment. Make it with [NewComponent].
type Component struct {
	Name        string
	Revision    string
	Digest      digest.Digest // of its manifest
	Values      string        // hash of the values that the deployment gives to its parameters
	Wait        bool          // the next component waits until this one is up, not only started
	Timeout     time.Duration // to be up; 0: none
	Project     *workload.Project
	Containers  []workload.Container // that Project needs
	Identity    string               // hash of everything that determines containers, networks and volumes
	environment string               // of what Prepare makes: networks, volumes, addresses, ports

	// The rest is what [Resolve] makes of what the images say.

	Missing   map[string]bool   // images that were not pulled yet, by name
	Conflicts map[string]string // by service: why start-first is done as stop-first
	Notices   []workload.Notice // of the project, and of Conflicts
}

// NewComponent derives values from the project once, because plans are made often.
func NewComponent(name, revision string, p *workload.Project) Component {
	c := Component{Name: name, Revision: revision, Wait: true, Project: p, Containers: p.Containers()}
	ids := make([]string, 0, len(c.Containers))
	type place struct {
		Service  string
		Networks []workload.Attachment
		Ports    []workload.Port
	}
	var places []place
	for _, x := range c.Containers {
		ids = append(ids, x.ID)
		places = append(places, place{x.Service.Name, x.Service.Networks, x.Service.Ports})
	}
	c.environment = Hash(p.Networks, p.Volumes, places)
	c.Identity = Hash(ids, c.environment)
	return c
}

// Hash is a hash of values; equal hashes mean equal values.
func Hash(parts ...any) string {
	b, err := json.Marshal(parts)
	if err != nil {
		panic(fmt.Sprintf("plan: cannot encode: %v", err)) // only plain values come here
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}

// Images lists every image that the generation needs, each once, in order of use.
func (d *Desired) Images() []workload.Image {
	var out []workload.Image
	seen := map[string]bool{}
	for x := range d.All() {
		for _, img := range x.Images() {
			if n := img.Name(); !seen[n] {
				seen[n] = true
				out = append(out, img)
			}
		}
	}
	return out
}

// Images lists what its services run on, mount, and run first.
func (d *Deployment) Images() []workload.Image {
	var out []workload.Image
	for c := range d.All() {
		out = append(out, c.Project.Images()...)
	}
	return out
}

// Deployment finds one by id; nil when it is not there.
func (d *Desired) Deployment(id string) *Deployment {
	for x := range d.All() {
		if x.ID == id {
			return x
		}
	}
	return nil
}

// All are the deployments; none of a nil state.
func (d *Desired) All() iter.Seq[*Deployment] {
	return func(yield func(*Deployment) bool) {
		for i := 0; d != nil && i < len(d.Deployments); i++ {
			if !yield(&d.Deployments[i]) {
				return
			}
		}
	}
}

// All are the components; none of a nil deployment.
func (d *Deployment) All() iter.Seq[*Component] {
	return func(yield func(*Component) bool) {
		for i := 0; d != nil && i < len(d.Components); i++ {
			if !yield(&d.Components[i]) {
				return
			}
		}
	}
}

// Project finds one by name; nil when it is not there.
func (d *Desired) Project(name string) *workload.Project {
	for x := range d.All() {
		for c := range x.All() {
			if c.Project.Name == name {
				return c.Project
			}
		}
	}
	return nil
}

// Component finds one by name; nil when it is not there.
func (d *Deployment) Component(name string) *Component {
	for c := range d.All() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (c *Component) revision() string {
	if c == nil {
		return ""
	}
	return c.Revision
}

// Containers are those that are needed, with their components.
func (d *Deployment) Containers() iter.Seq2[*Component, *workload.Container] {
	return func(yield func(*Component, *workload.Container) bool) {
		for c := range d.All() {
			for j := range c.Containers {
				if !yield(c, &c.Containers[j]) {
					return
				}
			}
		}
	}
}

// container finds a needed container and its component by id; nil when it is not needed.
func (d *Deployment) container(id string) (*Component, *workload.Container) {
	for c, x := range d.Containers() {
		if x.ID == id {
			return c, x
		}
	}
	return nil, nil
}

func (d *Deployment) needs(id string) bool {
	_, x := d.container(id)
	return x != nil
}

// Container finds a needed container, its deployment and its component by id.
func (d *Desired) Container(id string) (*Deployment, *Component, *workload.Container) {
	for dep := range d.All() {
		if c, x := dep.container(id); x != nil {
			return dep, c, x
		}
	}
	return nil, nil, nil
}
