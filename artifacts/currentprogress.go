package artifacts

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	// maxPhase bounds the bytes of a phase, and of a code: both are a few words with dashes between them.
	maxPhase = 40
	// maxProgressText bounds the message of a progress.
	maxProgressText = 512

	phaseCommitted = "committed"
)

var phaseFormat = strict.Expression(`^[a-z]+(-[a-z]+)*$`)

// CurrentProgress is where the change of a device to its newest state stands: the member "progress" in the extension of the
// capabilities that longshore-agent reports. A device of another vendor, or with an older agent, has none.
//
// Reading one fails for nothing but bytes that are no JSON, so that the rest of a report counts whatever a device says here: what is
// not as it should be is left out, and without a phase all of it. Texts are cut to a few hundred bytes.
type CurrentProgress struct {
	Phase      string        `json:"phase"`                // "": none; also one that this version does not know
	Since      time.Time     `json:"since,omitzero"`       // by the device's clock
	Generation uint64        `json:"generation,omitempty"` // 0: not known yet
	Digest     digest.Digest `json:"digest,omitempty"`     // of the state; "": not known
	Attempt    int           `json:"attempt,omitempty"`    // from 1: each boot before the change is complete is one more; 0: none yet
	Code       string        `json:"code,omitempty"`       // what it waits for, or why it failed
	Message    string        `json:"message,omitempty"`
	Until      time.Time     `json:"until,omitzero"`  // when waiting ends by itself; zero: it does not, or it is not known
	Done       int64         `json:"done,omitempty"`  // bytes of images, when the device last said so
	Total      int64         `json:"total,omitempty"` // as far as known; 0: nothing is known of bytes
}

// UnmarshalJSON implements [json.Unmarshaler].
func (p *CurrentProgress) UnmarshalJSON(data []byte) error {
	type plain CurrentProgress
	var x plain
	*p = CurrentProgress{}
	if err := json.Unmarshal(data, &x); err != nil || len(x.Phase) > maxPhase || !phaseFormat.MatchString(x.Phase) {
		return nil
	}
	if !margo.ValidDigest(x.Digest) {
		x.Digest = ""
	}
	if len(x.Code) > maxPhase || !phaseFormat.MatchString(x.Code) {
		x.Code = ""
	}
	if len(x.Message) > maxProgressText {
		x.Message = strings.ToValidUTF8(x.Message[:maxProgressText], "") + "…"
	}
	if x.Done < 0 || x.Done > x.Total {
		x.Done, x.Total = 0, 0
	}
	x.Attempt = max(0, x.Attempt)
	*p = CurrentProgress(x)
	return nil
}

// Uncommitted reports whether there is a change that is not complete: it is under way, waits, failed or was taken back.
func (p *CurrentProgress) Uncommitted() bool {
	return p != nil && p.Phase != "" && p.Phase != phaseCommitted
}

// Loaded is how far images are on the device: "12.0 of 40.0 MB"; "": it does not say.
func (p *CurrentProgress) Loaded() string {
	if p.Total == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f of %.1f MB", float64(p.Done)/1e6, float64(p.Total)/1e6)
}

// String is the progress in one line: "generation 3: downloading since 2026-11-26T10:00:00Z, 12.0 of 40.0 MB".
func (p *CurrentProgress) String() string {
	out := "a newer state: "
	if p.Generation > 0 {
		out = fmt.Sprintf("generation %d: ", p.Generation)
	}
	out += p.Phase
	if !p.Since.IsZero() {
		out += " since " + p.Since.UTC().Format(time.RFC3339)
	}
	if s := p.Loaded(); s != "" {
		out += ", " + s
	}
	if p.Attempt > 1 {
		out += fmt.Sprintf(", boot %d", p.Attempt)
	}
	if !p.Until.IsZero() {
		out += ", until " + p.Until.UTC().Format(time.RFC3339)
	}
	if p.Code != "" {
		out += " (" + p.Code + ")"
	}
	return out
}
