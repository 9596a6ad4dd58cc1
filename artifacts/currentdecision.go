package artifacts

import (
	"encoding/json"
	"fmt"
	"strings"
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
	Via        string        `json:"via"`                  // command, file, panel, automatic
	Reason     string        `json:"reason,omitempty"`
}

// CurrentDecisions are those of a report. One that cannot be read is left out: it must not hide what else the report says.
type CurrentDecisions []CurrentDecision

// UnmarshalJSON implements [json.Unmarshaler]. It does not fail.
func (all *CurrentDecisions) UnmarshalJSON(data []byte) error {
	*all = nil
	var each []json.RawMessage
	_ = json.Unmarshal(data, &each) // no list: no decision can be read
	for _, one := range each {
		var d CurrentDecision
		if json.Unmarshal(one, &d) == nil {
			*all = append(*all, d)
		}
	}
	return nil
}

// String is the decision in one line: "2026-11-26T10:00:00Z: ana at the panel rejected line-monitor: camera 2 is not calibrated".
func (d CurrentDecision) String() string {
	what := d.Deployment
	if what == "" {
		what = fmt.Sprintf("to generation %d", d.Generation)
	}
	out := fmt.Sprintf("%s: %s %s %s", d.At.UTC().Format(time.RFC3339), d.By, strings.ReplaceAll(d.Verdict, "-", " "), what)
	if d.Reason != "" {
		out += ": " + d.Reason
	}
	return out
}
