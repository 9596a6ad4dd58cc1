package status

import (
	"time"

	"github.com/longshore-dev/longshore/artifacts"
)

// Extension is the member of the capabilities report that says what the agent is doing. It is an [Extra].
const Extension = "x-longshore-extensions"

// Extra is what a device reports of itself beyond Margo, in its capabilities report under [Extension].
type Extra struct {
	AgentVersion        string                    `json:"agentVersion"`
	AcceptedGeneration  uint64                    `json:"acceptedGeneration"` // 0: none
	Digest              string                    `json:"digest,omitempty"`   // of the accepted state
	RunningGeneration   uint64                    `json:"runningGeneration"`  // that it runs or changes to: not one whose changes all wait
	CommittedGeneration uint64                    `json:"committedGeneration"`
	Refused             *artifacts.CurrentRefusal `json:"refused,omitempty"`
	Hold                *Hold                     `json:"hold,omitempty"`    // a person at the device keeps it at an earlier generation
	Waiting             []artifacts.CurrentWait   `json:"waiting,omitempty"` // changes that are not made yet

	Decisions   []artifacts.CurrentDecision   `json:"decisions,omitempty"`   // of people at the device, the newest few, the last at the end
	Transitions *artifacts.CurrentTransitions `json:"transitions,omitempty"` // in a current state

	Progress     *Progress `json:"progress,omitempty"` // of the change to the accepted state; nil: none was ever found
	Stale        bool      `json:"stale"`
	StaleSince   time.Time `json:"staleSince,omitzero"`
	Insecure     []string  `json:"insecure"`
	TrustVersion uint64    `json:"trustVersion,omitempty"` // of the trust policy; 0: it does not travel
	ReportsLost  uint64    `json:"reportsLost"`

	ReportIntervalSeconds int64 `json:"reportIntervalSeconds,omitempty"` // the device reports at least so often; 0: only changes
	FullIntervalSeconds   int64 `json:"fullIntervalSeconds,omitempty"`   // and at least so often everything; 0: only what changes

	Security []SecurityEvent `json:"security,omitempty"` // the newest few, the last at the end
}
