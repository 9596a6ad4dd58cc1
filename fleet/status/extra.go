package status

import (
	"time"

	"github.com/longshore-dev/longshore/artifacts"
)

// Extension is the member of the capabilities in which longshore-agent reports more than Margo specifies.
const Extension = "x-longshore-extensions"

// Extra is what longshore-agent reports beyond Margo. Unknown members are ignored.
type Extra struct {
	AgentVersion        string                     `json:"agentVersion"`
	AcceptedGeneration  uint64                     `json:"acceptedGeneration"` // newest that passed every check; 0: none
	Digest              string                     `json:"digest"`             // of the accepted state
	RunningGeneration   uint64                     `json:"runningGeneration"`
	CommittedGeneration uint64                     `json:"committedGeneration"` // newest that ran completely
	Refused             *ExtraRefused              `json:"refused"`             // null: the device accepts its published state
	Hold                *artifacts.CurrentHold     `json:"hold,omitempty"`      // null: the accepted state is applied
	Waiting             []artifacts.CurrentWait    `json:"waiting,omitempty"`   // changes that wait at the device
	Decisions           artifacts.CurrentDecisions `json:"decisions,omitempty"` // of people at the device, the newest few, the last at the end
	Progress            *artifacts.CurrentProgress `json:"progress,omitempty"`  // of the change to the newest state; null: it does not say
	Stale               bool                       `json:"stale"`               // the running state has expired
	Insecure            []string                   `json:"insecure"`            // unsigned content that the policy accepts
	ReportsLost         uint64                     `json:"reportsLost"`         // reports dropped because the outbox was full

	ReportIntervalSeconds int64 `json:"reportIntervalSeconds,omitempty"` // it reports at least so often; 0: it does not say

	Unreadable []string        `json:"unreadable,omitempty"` // members of the report that cannot be read, but for hold and waiting, which say so
	StaleSince time.Time       `json:"staleSince,omitzero"`
	Security   []ExtraSecurity `json:"security,omitempty"` // possible attacks, the last at the end
}

// Decided is the newest decision of somebody at the device while a change waits there; nil: none, or the hold tells it.
func (x Extra) Decided() *artifacts.CurrentDecision {
	if len(x.Decisions) == 0 || len(x.Waiting) == 0 || x.Hold != nil {
		return nil
	}
	return &x.Decisions[len(x.Decisions)-1]
}

// ExtraSecurity is a possible attack; repetitions are counted.
type ExtraSecurity struct {
	Code       string    `json:"code"`
	Digest     string    `json:"digest,omitempty"`     // of the state
	Generation uint64    `json:"generation,omitempty"` // 0: not known
	Message    string    `json:"message"`
	First      time.Time `json:"first"`
	Last       time.Time `json:"last"`
	Count      uint64    `json:"count"`
}

// ExtraRefused is a published state that a device does not take.
type ExtraRefused struct {
	Digest     string    `json:"digest"`
	Generation uint64    `json:"generation"` // 0: not known
	Code       string    `json:"code"`
	Message    string    `json:"message"`
	Since      time.Time `json:"since"`
}
