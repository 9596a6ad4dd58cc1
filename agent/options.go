package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/outbox"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

const minInterval = time.Second

// Options make an [Agent]. The caller opens and closes everything in it; it must outlive [Agent.Run].
type Options struct {
	Device     artifacts.DeviceID
	Repository string // where the device's state is, without scheme: "harbor.example/plant/state"; a manager's name: "margo+https://fleet.example"
	Tag        string // "": Device.Tag()
	Manager    string // URL of the manager that says which state is the current one; "": the tag does. For status

	// Capabilities are what the device reports of itself; deployments' constraints are held against them. Their extensions
	// are completed with the agent's own report and must not be changed afterwards.
	Capabilities margo.DeviceCapabilities
	// Machine looks at the device again and returns what its capabilities are now: it is called once a minute, or each LookEvery, from one
	// goroutine at a time. nil: they never change.
	Machine  func() margo.DeviceCapabilities
	Platform string // "linux/arm64": which images fit

	Interval      time.Duration // between checks, on average; at least 1 s
	Jitter        float64       // how much of Interval a check comes earlier or later by chance, half of it each
	Phase         time.Duration // where in Interval checks are, counted from Monday, 00:00 UTC; Interval stands for its begin; 0: by Device
	TrustInterval time.Duration // between questions for the next trust policy; 0: [DefaultTrustInterval]
	// ReportInterval is how often the fleet endpoint hears the device at least, whole seconds, and the interval it reports to the
	// endpoint; 0: only when something changes.
	ReportInterval time.Duration
	FullInterval   time.Duration // after which the endpoint gets everything once more although nothing changed; 0: never
	Weakened       []string      // what the configuration gives up, in plain words; shown in every status
	RequirePins    bool          // refuse components and images that are named by a tag only
	Probation      time.Duration // a new container that fails this soon after it was up has failed an update; 0: 5 s
	MaxBoots       int           // boots of the device while an update is not complete, after which it is taken back; 0: [DefaultMaxBoots]
	LookEvery      time.Duration // between two looks at the device without an event; 0: 2 min for containers, 1 min for networks, capabilities and disks

	Approvals   approval.Policy  // changes that somebody at the device has to approve; zero: none
	PollWindows schedule.Windows // in which the source is asked, and the repository of the trust policy, but for [Agent.Sync]
	// Changes are when changes are made; they are loaded before. The accepted state may have windows, too: both must be open then.
	Changes schedule.Windows
	// ChangesClockUnknown has these windows count also while the device's clock is in doubt; else they are closed then.
	ChangesClockUnknown bool
	Downtime            schedule.Windows // in which it is no error that something cannot be reached; the zero value: never

	// ChangeWindow reports whether changes are not made at a time, whether that is because the clock is not trusted, and when the next
	// window begins; zero: not known. nil: as Changes and the accepted state say.
	ChangeWindow func(now time.Time) (closed, clockUnknown bool, opens time.Time)

	// Fingerprint names what refusals depend on beside the state: the trust policy, keys, configuration. A state that was
	// refused for good is held against the checks again when it changes. It is called at every check. nil: never changes.
	Fingerprint func() string

	Store    *store.Store
	Source   intake.Source
	Verifier intake.Verifier
	Trust    intake.Trust   // nil: the trust policy does not travel
	Fresher  intake.Fresher // nil: no policy asks for freshness
	Content  intake.Content
	Runtime  Runtime
	Repairer Repairer        // nil: nothing beside the runtime needs looking after
	Reporter outbox.Reporter // nil: there is no fleet endpoint, nothing is kept for one

	Publisher       currentstate.Publisher // of the current state; nil: it is published nowhere
	PublishInterval time.Duration          // after which it is published once more without a change; 0: only when something changes
	BootID          string                 // UUID that the kernel gives each boot; "": not known

	Version string    // of the agent, for reports
	Built   time.Time // when it was built: it is no earlier than that; zero: not known
	Logger  *slog.Logger
	Now     func() time.Time
	Clock   *clock.Clock   // what expiry is held against; it learns what was kept. nil: one is made of Now
	Random  func() float64 // [0,1), for jitter; nil: none
}

func (o *Options) check() error {
	for name, missing := range map[string]bool{
		"Device": o.Device == "", "Repository": o.Repository == "", "Store": o.Store == nil, "Source": o.Source == nil,
		"Verifier": o.Verifier == nil, "Content": o.Content == nil, "Runtime": o.Runtime == nil, "Now": o.Now == nil,
	} {
		if missing {
			return fmt.Errorf("agent: option %s is missing: %w", name, fault.ErrInvalid)
		}
	}
	if d := o.Store.Device(); d != string(o.Device) {
		return fmt.Errorf("agent: store of device %q for device %q: %w", d, o.Device, fault.ErrConflict)
	}
	if o.Interval < minInterval {
		return fmt.Errorf("agent: interval %v is below %v: %w", o.Interval, minInterval, fault.ErrInvalid)
	}
	o.Tag = cmp.Or(o.Tag, o.Device.Tag())
	o.Probation, o.MaxBoots = cmp.Or(o.Probation, 5*time.Second), cmp.Or(o.MaxBoots, DefaultMaxBoots)
	if o.Fingerprint == nil {
		o.Fingerprint = func() string { return "" }
	}
	if o.Random == nil {
		o.Random = func() float64 { return 0.5 }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
