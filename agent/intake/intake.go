package intake

import (
	"fmt"
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
	self         string // what refusals depend on and stays while the agent runs
	times        *Times
	verdicts     verdicts
	translations translations
}

// New asks neither the network nor the disk.
func New(o Options) (*Intake, error) {
	capabilities, err := o.Capabilities.Encode()
	if err != nil {
		return nil, fmt.Errorf("option Capabilities: %w", err)
	}
	self := plan.Hash(o.Version, string(capabilities), o.Platform, o.RequirePins, o.Device, o.Repository, o.Tag)
	return &Intake{o: o, self: self, times: o.Times}, nil
}

// Fingerprint names all that a refusal depends on beside the state: this program, its configuration and the trust policy.
func (in *Intake) Fingerprint() string { return in.self + "/" + in.o.Fingerprint() }
