package intake

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Options make an [Intake]. The caller opens and closes everything in it. All are needed but Trust and Fresher.
type Options struct {
	Device       artifacts.DeviceID
	Repository   string // where the device's state is, without scheme
	Tag          string
	Capabilities margo.DeviceCapabilities // deployments' constraints are held against them
	Platform     string                   // "linux/arm64"
	RequirePins  bool                     // refuse components and images that are named by a tag only
	Version      string                   // of the agent
	Fingerprint  func() string            // of the trust policy, keys, configuration

	Store    *store.Store
	Source   Source
	Verifier Verifier
	Trust    Trust   // nil: the trust policy does not travel
	Fresher  Fresher // nil: no policy asks for freshness
	Content  Content
	Times    *Times
	Now      func() time.Time
}

// Intake checks the states of one device. Its methods may be called from several goroutines.
type Intake struct {
	o            Options
	self         atomic.Pointer[self]
	times        *Times
	verdicts     verdicts
	translations translations
}

// self is this device as states are checked against it.
type self struct {
	capabilities margo.DeviceCapabilities
	hash         string // of all that refusals depend on, but for the trust policy
}

// New asks neither the network nor the disk.
func New(o Options) (*Intake, error) {
	in := &Intake{o: o, times: o.Times}
	in.translations.turn()
	encoded, err := o.Capabilities.Encode()
	if err != nil {
		return nil, fmt.Errorf("option Capabilities: %w", err)
	}
	in.SetCapabilities(o.Capabilities, encoded)
	return in, nil
}

// SetCapabilities has states checked against these from now on, also one that was refused. They must not be changed afterwards; encoded is
// what their Encode returns.
func (in *Intake) SetCapabilities(c margo.DeviceCapabilities, encoded []byte) {
	o := in.o
	in.self.Store(&self{c, plan.Hash(o.Version, string(encoded), o.Platform, o.RequirePins, o.Device, o.Repository, o.Tag)})
}

// Fingerprint names all that a refusal depends on beside the state: this program, its configuration and the trust policy.
func (in *Intake) Fingerprint() string { return in.self.Load().hash + "/" + in.o.Fingerprint() }
