package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

// planVersion is the version of the plan file.
const planVersion = 1

// Document is a plan as JSON, for display, and for [ReadSavedPlan], to publish exactly this plan.
type Document struct {
	Version int           `json:"version"`
	Fleet   string        `json:"fleet"`
	Devices int           `json:"devices"`
	Publish int           `json:"publish"`
	Same    int           `json:"same"`
	Cannot  int           `json:"cannot"`
	Expires *time.Time    `json:"expires,omitempty"` // of the states; left out: never
	Alike   []*Alike      `json:"alike"`
	States  []*SavedState `json:"states"`
	Waves   []SavedWave   `json:"waves,omitempty"` // left out: all are published at once
}

// SavedWave is one step in which states are to be published.
type SavedWave struct {
	Name    string `json:"name"`
	Group   string `json:"group,omitempty"`
	Devices int    `json:"devices"`
}

// SavedState is one state that is to be published.
type SavedState struct {
	Device     string        `json:"device"`
	Repository string        `json:"repository"`
	Tag        string        `json:"tag"`
	Tagged     digest.Digest `json:"tagged,omitempty"` // digest of the tag; missing: there is no tag
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"`            // of the state that is published
	Content    digest.Digest `json:"content,omitempty"` // what Digest would be if the state did not say of which commit it is; left out: the same
}

// Document makes the plan's JSON.
func (p *Plan) Document() *Document {
	d := &Document{
		Version: planVersion, Fleet: p.Fleet, Devices: len(p.Devices), Publish: p.Count(Publish), Same: p.Count(Same), Cannot: p.Count(Cannot),
		Alike: p.Alike(), States: []*SavedState{},
	}
	if at := p.o.Expires; !at.IsZero() {
		d.Expires = new(at.UTC())
	}
	if d.Alike == nil {
		d.Alike = []*Alike{}
	}
	for _, w := range p.Waves() {
		d.Waves = append(d.Waves, SavedWave{w.Name, w.Group, len(w.Devices)})
	}
	for _, x := range p.Devices {
		if x.Action == Publish {
			d.States = append(d.States, &SavedState{
				Device: string(x.Device), Repository: x.Repository, Tag: x.Device.Tag(), Tagged: x.Tagged, Generation: x.Generation, Digest: x.Digest,
			})
			if x.Content != x.Digest {
				d.States[len(d.States)-1].Content = x.Content
			}
		}
	}
	return d
}

// MaxPlan bounds a plan file: one of 100,000 devices has 40 MB.
const MaxPlan = 64 << 20

// SavedPlan is the content of a plan file.
type SavedPlan struct {
	Fleet   string
	Expires time.Time // of the states; zero: never

	states map[string]*SavedState
}

// State is the planned state of a device; nil: none.
func (p *SavedPlan) State(id artifacts.DeviceID) *SavedState { return p.states[string(id)] }

// ReadSavedPlan reads a plan file.
func ReadSavedPlan(file string, data []byte) (*SavedPlan, error) {
	fail := func(why string) (*SavedPlan, error) {
		return nil, fault.WithHint(fmt.Errorf("%s: %s: %w", file, why, fault.ErrInvalid), "write it with: longshore fleet plan --out FILE")
	}
	var d Document
	if len(data) > MaxPlan {
		return fail("it is too large")
	}
	if err := json.Unmarshal(data, &d); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Offset == int64(len(data)) {
			return fail("it is empty, or its end is missing")
		}
		return fail("it is no plan")
	}
	if d.Version != planVersion || d.Fleet == "" {
		return fail(fmt.Sprintf("it is no plan of version %d", planVersion))
	}
	p := &SavedPlan{Fleet: d.Fleet, states: map[string]*SavedState{}}
	if d.Expires != nil {
		p.Expires = *d.Expires
	}
	for _, s := range d.States {
		if s == nil || s.Device == "" || s.Digest.Validate() != nil || p.states[s.Device] != nil {
			return fail("its states are not those of a plan")
		}
		p.states[s.Device] = s
	}
	return p, nil
}

// Keep narrows the plan to what was promised: states that are published already are left out. A state may come from another
// commit than the one that was looked at, as after a merge, if nothing else of it is different. Anything that is not as it
// was shown is an error that wraps fault.ErrConflict: the files, a tag that an application is named by, or a device's
// state have changed since.
func (p *Plan) Keep(promise *SavedPlan) error {
	if promise.Fleet != p.Fleet {
		return fmt.Errorf("the plan is of the fleet %s, not of %s: %w", promise.Fleet, p.Fleet, fault.ErrConflict)
	}
	var moved []string
	seen := map[string]bool{}
	for _, d := range p.Devices {
		s := promise.states[string(d.Device)]
		seen[string(d.Device)] = true
		switch {
		case s == nil && d.Action == Publish, s != nil && d.Action == Cannot:
			moved = append(moved, string(d.Device))
		case s == nil:
		case d.Action == Same && s.isOf(d): // done by a run before
		case d.Action == Publish && s.isOf(d) && d.Generation == s.Generation && d.Repository == s.Repository && d.Tagged == s.Tagged:
		default:
			moved = append(moved, string(d.Device))
		}
	}
	for _, device := range sortedKeys(promise.states) {
		if !seen[device] {
			moved = append(moved, device)
		}
	}
	if len(moved) > 0 {
		return fault.WithHint(fmt.Errorf("publish the plan: %w: %s would not become what was shown (%s)", fault.ErrConflict, some(moved), printable.Counted(len(moved), "device")),
			"the files, a version, or what is published has changed since; plan again and look")
	}
	return nil
}
