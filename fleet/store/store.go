// Package store stores the reports of devices: their capabilities and deployments; their tokens;
// the last State Manifest of each; and the enrolled keys.
//
// [Store] is the contract, which contract_test.go tests, so that another database can follow. [Open] is SQLite in one
// file. Bodies of reports are kept as they arrived; only what queries need is beside them.
//
// # Order
//
// A report of our agent carries a [Stamp]: the epoch of the agent's database and a sequence number within it. A report
// that is not newer than what is held about the same subject changes nothing and is answered like an accepted one, so
// an agent may send whatever it is not sure of again. An epoch seen for the first time is newer than all before it, unless
// the device registers with it at an earlier time than that of its last report: somebody shows an old report ([Older]).
// Reports without a stamp come from other vendors' agents: the last one wins.
//
// # Durability
//
// When a call that writes returns nil, the write survives a crash of the process and of the machine. Reports that
// arrive together share one transaction and one fsync, see writer.go.
package store

import (
	"cmp"
	"context"
	"time"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Store is everything. Errors wrap fault.ErrNotFound, fault.ErrConflict or fault.ErrTemporary.
type Store interface {
	Reports
	View
	Tokens
	Manifests
	Enrollments
	// Close waits for calls under way. Calls after it are fault.ErrTemporary.
	Close() error
}

// Reports stores the reports of devices.
type Reports interface {
	// PutCapabilities registers a device or updates it. fault.ErrNotFound: the device is a child and its parent is not
	// registered. A [*QuotaError], which wraps fault.ErrFull: the device has too much here already; so has PutStatus.
	PutCapabilities(ctx context.Context, r Capabilities) (Outcome, error)
	// DeleteDevice removes a device, the children behind it, and their deployments. fault.ErrNotFound: not registered.
	DeleteDevice(ctx context.Context, id string) error
	// PutStatus records the state of a deployment. fault.ErrNotFound: r.Registered is asked for and the device is not.
	PutStatus(ctx context.Context, r Status) (Outcome, error)
}

// View is the read access of pages and programs.
type View interface {
	Device(ctx context.Context, id string) (Device, error) // with its capabilities
	// Devices lists devices by id; more reports whether there are others after them.
	Devices(ctx context.Context, q DeviceQuery) (list []Device, more bool, err error)
	// Deployments lists deployments by device and id, or as q says.
	Deployments(ctx context.Context, q DeploymentQuery) (list []Deployment, more bool, err error)
	// Counts counts the deployments of devices by state; a device that has none is not in the answer.
	Counts(ctx context.Context, devices []string) (map[string]map[margo.State]int, error)
	Summary(ctx context.Context, s Silence) (Summary, error)
}

// Tokens has the tokens of devices. A token itself is never stored.
type Tokens interface {
	// AddTokens stores all or none. It fails with fault.ErrConflict when an id is taken.
	AddTokens(ctx context.Context, tokens ...Token) error
	// Token finds a token that is not revoked.
	Token(ctx context.Context, id string) (Token, error)
	// ListTokens lists the tokens of a device, revoked ones and those of several devices too; "" lists all.
	ListTokens(ctx context.Context, device string) ([]Token, error)
	// RevokeToken ends a token. Ending it again is no error.
	RevokeToken(ctx context.Context, id string, at time.Time) error
	// TokenChanges is a number that is another one after each change of tokens, also by another process.
	TokenChanges(ctx context.Context) (int64, error)
}

// Manifests has the last State Manifest of each client.
type Manifests interface {
	// Manifest finds that of a client. fault.ErrNotFound: it was given none.
	Manifest(ctx context.Context, client string) (Manifest, error)
	ListManifests(ctx context.Context) ([]Manifest, error)
	// PutManifest remembers the next one. fault.ErrConflict: one of a higher version, or another one of this version, is there.
	PutManifest(ctx context.Context, m Manifest) error
	// Children are the devices behind a device that it registered itself, sorted. One that registered itself is a client of its own.
	Children(ctx context.Context, device string) ([]string, error)
}

// Stamp orders the reports of one agent. The zero Stamp is a report without order.
type Stamp struct {
	Epoch    string // UUID of the agent's database
	Sequence uint64
}

// Capabilities is a device's report about itself.
type Capabilities struct {
	Device   string
	Body     []byte        // the JSON as it arrived
	Summary  []byte        // its entry in lists
	Alarm    bool          // it reports a rejection
	Interval time.Duration // in which it reports at least once; 0: it does not say
	Stamp    Stamp
	By       string // the device whose token was used: the device or a gateway above it
	At       time.Time
	Now      time.Time // by the endpoint's clock; zero: At
}

// Status is a device's report about a deployment.
type Status struct {
	Device     string
	Deployment string
	State      margo.State
	Body       []byte        // its part in views
	Registered bool          // only for a device that is registered; else an unknown one is noted without capabilities
	Interval   time.Duration // of a device that is not known yet, until its capabilities say; 0: it does not say
	Stamp      Stamp
	By         string
	At         time.Time
	Now        time.Time // by the endpoint's clock; zero: At
}

// Outcome is the result of a report.
type Outcome int

// Outcomes.
const (
	Updated  Outcome = iota // of what was known
	Created                 // first report of its subject
	Repeated                // not newer than what is held: nothing changed
	Older                   // capabilities of an epoch that is not known, from before the device's last report: nothing changed
)

// Device is the record of a device.
type Device struct {
	ID           string
	Registered   bool   // it reported its capabilities; else only a status
	Capabilities []byte // nil where they were not asked for, or are not there
	Summary      []byte
	Alarm        bool
	Interval     time.Duration // in which it reports at least once; 0: it does not say
	FirstHeard   time.Time
	LastHeard    time.Time // any report, repeated ones too
	Stamp        Stamp     // of its capabilities; only in [View.Device]
}

// Silence is how long a device may be silent before it counts as offline: [MissedIntervals] of its own intervals, or After
// if it has reported none, and never for a time in which the endpoint did not run. When it was heard in a time yet to come, because the
// endpoint's clock was ahead, is not known: it counts as silent since the endpoint runs.
type Silence struct {
	Now   time.Time
	Since time.Time     // since when reports are taken
	After time.Duration // 0: a device that has reported no interval is never offline
}

// MissedIntervals is how many of its own intervals a device may miss.
const MissedIntervals = 3

// Offline reports whether a device is silent for too long.
func (s Silence) Offline(d Device) bool {
	allowed := cmp.Or(MissedIntervals*d.Interval, s.After)
	heard := d.LastHeard
	if heard.Before(s.Since) || heard.After(s.Now.Add(clockSlack)) {
		heard = s.Since
	}
	return allowed > 0 && s.Now.Sub(heard) > allowed
}

// Deployment is the record of a deployment on a device.
type Deployment struct {
	Device   string
	ID       string
	State    margo.State
	Body     []byte    // the last report
	Since    time.Time // when the state became this one, as far as is known from reports
	Reported time.Time // when the last report was accepted
	Stamp    Stamp     // of the last report; only with [DeploymentQuery.Device]
}

// DeviceQuery chooses devices.
type DeviceQuery struct {
	After        string   // ids greater than this
	Limit        int      // > 0
	Bytes        int      // of what is returned, about: the list ends with the device that reaches it; 0: no limit
	Alarm        bool     // only those with an alarm
	Offline      *Silence // only those that are offline; nil: all
	Capabilities bool     // with their capabilities
}

// DeploymentQuery chooses deployments. All conditions must hold.
type DeploymentQuery struct {
	Device string      // "": all
	After  [2]string   // device and deployment greater than this
	State  margo.State // "": all
	Limit  int         // > 0
	Bytes  int         // of what is returned, about: the list ends with the deployment that reaches it; 0: no limit
	Worst  bool        // those that are not installed or removed first, each part by id; with Device, without After
}

// Summary counts.
type Summary struct {
	Devices     int
	Alarms      int
	Offline     int
	Deployments map[margo.State]int
}

// Manifest is a State Manifest as a client was given it.
type Manifest struct {
	Client  string
	Version uint64
	Digest  string // of its bytes
	Made    string // its sources, for its creator
}

// Token authenticates a device. Only a hash of its secret is stored.
type Token struct {
	ID      string
	Devices []string // and the children behind each; at least one
	Hash    []byte   // SHA-256 of the secret
	Created time.Time
	Revoked time.Time // zero: valid
}
