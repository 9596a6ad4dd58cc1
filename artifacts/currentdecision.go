package artifacts

import (
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
)

// CurrentDecision is what somebody at a device decided: one of the member "decisions" in the extension of the capabilities that longshore-agent
// reports, the newest at the end.
type CurrentDecision struct {
	At         time.Time     `json:"at"`                   // by the device's clock
	Verdict    string        `json:"verdict"`              // approved, rejected, postponed, rolled-back, released
	Deployment string        `json:"deployment,omitempty"` // its name, or trust-policy; "": it is about the whole state
	Generation uint64        `json:"generation,omitempty"` // of a rollback, or that a release applies
	Digest     digest.Digest `json:"digest"`               // of the change that was decided on, or of that generation's state
	By         string        `json:"by"`                   // "user ana (1000)"
	Via        string        `json:"via"`                  // command, file, panel
	Reason     string        `json:"reason,omitempty"`
}

// String is the decision in one line: "rejected line-monitor: ana at the panel at 2026-11-26T10:00:00Z: camera 2 is not calibrated".
func (d CurrentDecision) String() string {
	what := d.Deployment
	if what == "" {
		what = fmt.Sprintf("generation %d", d.Generation)
	}
	out := fmt.Sprintf("%s %s: %s at %s", d.Verdict, what, d.By, d.At.UTC().Format(time.RFC3339))
	if d.Reason != "" {
		out += ": " + d.Reason
	}
	return out
}
