// Package status is what a device reports and shows of itself: its status, its containers and what they use, their output, and what
// happened. Functions make it from values; the loop of the agent has them.
package status

import (
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Phase is what the device is at, in one word: where a change stands, as in [store.Phase], while it is under way.
type Phase string

// Phases of a device beside those of a change.
const (
	PhaseEmpty       Phase = "empty"       // nothing was ever accepted
	PhaseHeld        Phase = "held"        // somebody rolled the device back by hand
	PhaseInSync      Phase = "in sync"     // what is accepted runs
	PhaseDegraded    Phase = "degraded"    // what is accepted does not run completely
	PhaseUnavailable Phase = "unavailable" // the agent cannot see the device's containers
)

// Status is all that a technician or a program wants to know of a device. Its JSON keys are stable.
type Status struct {
	Device     string `json:"device"`
	Repository string `json:"repository"` // of the states; "margo+https://…": a manager, whose states are not signed
	Tag        string `json:"tag"`
	Manager    string `json:"manager,omitempty"` // URL of the manager that says which state is the current one; "": the tag does
	Version    string `json:"agentVersion"`
	Epoch      string `json:"epoch"` // of the agent's database
	Phase      Phase  `json:"phase"`

	Progress *Progress `json:"progress"` // of the change to the accepted state; null: none was ever found

	Problems []Problem `json:"problems"` // the worst first

	CheckedAt time.Time `json:"checkedAt,omitzero"` // last time that the registry answered; zero: not since the agent started
	NextCheck time.Time `json:"nextCheck,omitzero"`
	Checking  bool      `json:"checking"`

	Accepted  *Generation `json:"accepted"`  // newest that passed every check; null: none
	Running   *Generation `json:"running"`   // that it runs or changes to; one whose changes all wait is not; null: nothing
	Committed *Generation `json:"committed"` // newest that ran completely
	Trust     *Trust      `json:"trust"`     // the policy that decides what is taken; null: not known
	Stale     bool        `json:"stale"`     // what the device is kept at has expired, or Accepted is not known to be the current one

	StaleSince time.Time  `json:"staleSince,omitzero"`
	Freshness  *Freshness `json:"freshness"` // null: the policy does not ask for it
	Clock      *Clock     `json:"clock"`     // null: nothing is known against the device's clock

	Hold         *Hold   `json:"hold"`         // null: the accepted state is applied
	PollWindow   *Window `json:"pollWindow"`   // in which the registry is asked; null: at any time
	ChangeWindow *Window `json:"changeWindow"` // in which changes are made; null: at any time
	Downtime     *Window `json:"downtime"`     // that is declared, now: nothing that cannot be reached is a problem; null: none is now

	Changes []Change `json:"changes"` // that the accepted state makes, on a device that holds changes back

	Insecure []string `json:"insecure"` // what was taken unsigned because the policy says so

	Deployments []Deployment    `json:"deployments"`
	Security    []SecurityEvent `json:"security"`    // what looked like an attack, the last at the end; kept when the agent ends
	KeptVolumes []Volume        `json:"keptVolumes"` // that nothing uses any more
	Loading     *Loading        `json:"loading"`     // null: nothing is being pulled
	Outbox      Outbox          `json:"outbox"`

	CurrentReport *CurrentReport `json:"currentReport"` // null: the current state is not put into the registry

	Now time.Time `json:"now"`
}

// Window is what windows of time say.
type Window struct {
	Windows      []string  `json:"windows"` // for people
	Open         bool      `json:"open"`
	Until        time.Time `json:"until,omitzero"` // when Open changes; zero: no such time is in sight
	ClockUnknown bool      `json:"clockUnknown"`   // it is closed because the device's clock is in doubt

	Sources []WindowSource `json:"sources,omitempty"` // of the windows for changes: each of them must be open
}

// WindowSource is who says windows for changes.
type WindowSource struct {
	From       string   `json:"from"`                 // one of the constants
	Generation uint64   `json:"generation,omitempty"` // of a state
	Windows    []string `json:"windows"`              // for people
}

// Sources of windows for changes.
const (
	WindowsOfOwner = "agent.yaml"
	WindowsOfState = "state" // the accepted one
)

// Trust is the trust policy that decides what the device takes.
type Trust struct {
	Version    uint64        `json:"version"`              // 0: it has none, and does not travel
	Digest     digest.Digest `json:"digest"`               // of the artifact that it came in; of the file when Source is "file"
	Source     string        `json:"source"`               // "file" or "registry"
	File       string        `json:"file"`                 // the policy file of this device, its root of trust
	Repository string        `json:"repository,omitempty"` // where the next version comes from; "": it does not travel
	Since      time.Time     `json:"since,omitzero"`       // when it was taken over, or the file was written
	SignedBy   []string      `json:"signedBy,omitempty"`   // who signed this version, by the one before
	Expires    time.Time     `json:"expires,omitzero"`
	Expired    bool          `json:"expired"`
	CheckedAt  time.Time     `json:"checkedAt,omitzero"` // last time that the repository answered; zero: not since the agent started
	NextCheck  time.Time     `json:"nextCheck,omitzero"`
	Problem    string        `json:"problem,omitempty"` // why there is no policy that could be used; "": there is one
	Note       string        `json:"note,omitempty"`    // what of the file does not count

	Generations *GenerationReset `json:"generations,omitempty"` // null: generations only rise
}

// GenerationReset is what the trust policy says about a generation that a stolen key signed: a device that accepted one above
// To takes To for it, once, with the version that says so.
type GenerationReset struct {
	To      uint64 `json:"resetTo"`
	Version uint64 `json:"version"` // of the policy that it came with
}

// Sources of a trust policy.
const (
	TrustFromFile     = "file"
	TrustFromRegistry = "registry"
)

// Freshness is what is known of how long Accepted is the current state.
type Freshness struct {
	By        string    `json:"by"` // "": there is no good statement
	IssuedAt  time.Time `json:"issuedAt,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	CheckedAt time.Time `json:"checkedAt,omitzero"`
	Stale     bool      `json:"stale"`
	Error     string    `json:"error,omitempty"` // why the last look found nothing
}

// Clock is a clock that is wrong, or may be.
type Clock struct {
	Clock    time.Time `json:"clock"`    // what it says
	Believed time.Time `json:"believed"` // what the device goes by
	ProvenBy string    `json:"provenBy,omitempty"`
	From     string    `json:"from,omitempty"` // who says otherwise without a proof
	Said     time.Time `json:"said,omitzero"`
}

// Generation is one state of the device.
type Generation struct {
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"`
	Repository string        `json:"repository"`
	SignedBy   []string      `json:"signedBy"`
	Insecure   bool          `json:"insecure"`
	Created    time.Time     `json:"created,omitzero"`
	AcceptedAt time.Time     `json:"acceptedAt"`
	Expires    time.Time     `json:"expires,omitzero"`
	Repeats    digest.Digest `json:"repeats,omitempty"` // of the earlier generation whose content it has again
}

// Deployment is one application.
type Deployment struct {
	ID         string             `json:"id"`
	Name       string             `json:"name"`
	Generation uint64             `json:"generation"`
	State      margo.State        `json:"state"`
	Since      time.Time          `json:"since"`
	Error      *margo.StatusError `json:"error"`
	Refused    *RefusedRevision   `json:"refused"` // what the state asks for, and that does not run; null: nothing was refused
	Components []Component        `json:"components"`

	// Running is what runs while Components are of a revision that is loaded or waits; none: Components run.
	Running []RunningComponent `json:"running,omitempty"`
}

// RunningComponent is a component that runs until another revision takes its place.
type RunningComponent struct {
	Name     string    `json:"name"`
	Revision string    `json:"revision"`
	Services []Service `json:"services"`
}

// RefusedRevision is a revision of a deployment that did not run, or that may not run now.
type RefusedRevision struct {
	Digest            digest.Digest `json:"digest"` // of the deployment's document
	Generation        uint64        `json:"generation"`
	Component         string        `json:"component"` // that failed
	Revision          string        `json:"revision"`  // of the component
	Code              codes.Code    `json:"code"`
	Message           string        `json:"message"`
	Since             time.Time     `json:"since,omitzero"`
	Paused            bool          `json:"paused"`            // it stays as it is, not rolled back
	Waiting           bool          `json:"waiting"`           // it was not begun, and is tried again when there is room
	RunningGeneration uint64        `json:"runningGeneration"` // that what runs in its place came with; 0: nothing does
}

// Component is one component of a deployment.
type Component struct {
	Name     string             `json:"name"`
	Revision string             `json:"revision"`
	State    margo.State        `json:"state"`
	Since    time.Time          `json:"since"`
	Error    *margo.StatusError `json:"error"`
	Services []Service          `json:"services"`
	Notices  []workload.Notice  `json:"notices,omitempty"` // what is done in another way than its author may expect
}

// Service is one container.
type Service struct {
	Name      string          `json:"name"`
	Container string          `json:"container"`
	Replica   int             `json:"replica"`
	Image     string          `json:"image"`
	Status    workload.Status `json:"status"` // "" when there is no container yet
	Health    plan.Health     `json:"health"` // "" without a health check
	Restarts  int             `json:"restarts"`
	ExitCode  uint32          `json:"exitCode"`
	PID       uint32          `json:"pid"`
	StartedAt time.Time       `json:"startedAt,omitzero"`
	NextStart time.Time       `json:"nextStart,omitzero"` // when a restart waits
	Output    string          `json:"output,omitempty"`   // of a failing health check
}

// Loading is how far the images of the accepted generation are here.
type Loading struct {
	Generation uint64    `json:"generation"`
	Images     int       `json:"images"`
	Ready      int       `json:"ready"`
	Done       int64     `json:"done"`  // bytes, of the images being pulled
	Total      int64     `json:"total"` // bytes, as far as known
	NextTry    time.Time `json:"nextTry,omitzero"`
}

// Outbox is what waits for the fleet endpoint.
type Outbox struct {
	Enabled   bool      `json:"enabled"`
	Depth     int       `json:"depth"`
	Oldest    time.Time `json:"oldest,omitzero"`
	Lost      uint64    `json:"lost"` // reports dropped because there was no room
	LastError string    `json:"lastError,omitempty"`
	NextTry   time.Time `json:"nextTry,omitzero"`
	NextDue   time.Time `json:"nextDue,omitzero"` // when the endpoint hears the device although nothing changed; left out: never
}

// CurrentReport is how the device's current state gets into the registry.
type CurrentReport struct {
	Reference string    `json:"reference"`
	Counter   uint64    `json:"counter"`          // of the last one that was published; 0: none since the agent started
	At        time.Time `json:"at,omitzero"`      // when that was
	NextDue   time.Time `json:"nextDue,omitzero"` // when it is published once more although nothing changed; left out: never
	LastError string    `json:"lastError,omitempty"`
	NextTry   time.Time `json:"nextTry,omitzero"`
}

// SyncResult is how a requested check ended.
type SyncResult struct {
	Outcome    string     `json:"outcome"` // one of the constants
	Generation uint64     `json:"generation"`
	Code       codes.Code `json:"code,omitempty"`
	Message    string     `json:"message,omitempty"`
	Hint       string     `json:"hint,omitempty"`
}

const (
	SyncUnchanged   = "unchanged"   // the device is where the registry wants it
	SyncInstalled   = "installed"   // a generation came and runs completely
	SyncRefused     = "refused"     // what the tag points at was refused
	SyncWaiting     = "waiting"     // the accepted generation has changes that wait: for an approval, a lock, a window
	SyncFailed      = "failed"      // the accepted generation does not run completely
	SyncUnreachable = "unreachable" // the registry could not be asked
)

// LogRequest chooses containers' output.
type LogRequest struct {
	Targets []string // as [Select] takes them; none: every container
	Prefix  bool     // begin each line with its container's name, also where there is only one
	workload.LogOptions
}
