package store

import (
	"time"

	"github.com/opencontainers/go-digest"
)

// Phase is where the change of the device to a state stands.
type Phase string

// Phases, in the order in which a change usually meets them.
const (
	PhaseResolved    Phase = "resolved"    // the source has a state that the device does not know; its documents are fetched
	PhaseVerifying   Phase = "verifying"   // it is held against the trust policy and everything else that a state must pass
	PhaseDownloading Phase = "downloading" // it is accepted; its images are being loaded, and what ran runs on
	PhaseStaged      Phase = "staged"      // all of it is on the device, and nothing of it has begun

	PhaseAwaitingApproval Phase = "awaiting-approval" // somebody at the device decides
	PhaseAwaitingLock     Phase = "awaiting-lock"     // an application keeps changes away
	PhaseAwaitingWindow   Phase = "awaiting-window"   // for the next window for changes

	PhaseApplying    Phase = "applying"     // containers are being replaced
	PhaseProbation   Phase = "probation"    // all of its containers run, and must stay up for a while
	PhaseCommitted   Phase = "committed"    // it runs completely
	PhaseRollingBack Phase = "rolling-back" // it failed, or somebody rolled the device back: what ran before is being restored
	PhaseRolledBack  Phase = "rolled-back"  // what ran before runs again, and it is not tried again
	PhaseFailed      Phase = "failed"       // some of it does not run, and there is nothing to go back to, or going back is not wanted
	PhaseSuperseded  Phase = "superseded"   // a newer state was accepted before it came to an end; only in [Progress.History]
)

// Found reports whether a phase is of a state that is not accepted yet.
func (p Phase) Found() bool { return p == PhaseResolved || p == PhaseVerifying }

// Ended reports whether a change has come to its end. A failed one may still succeed.
func (p Phase) Ended() bool { return p == PhaseCommitted || p == PhaseRolledBack || p == PhaseFailed }

// Progress is where the change of the device to the newest state stands, and what became of the states before.
type Progress struct {
	Phase      Phase         `json:"phase"`
	Since      time.Time     `json:"since"`
	Generation uint64        `json:"generation,omitempty"` // 0: not known yet
	Digest     digest.Digest `json:"digest"`
	Attempt    int           `json:"attempt,omitempty"` // from 1; each boot of the device before it is committed is one more; 0: none yet
	Code       string        `json:"code,omitempty"`    // what it waits for, or why it failed
	Message    string        `json:"message,omitempty"`
	Until      time.Time     `json:"until,omitzero"` // when waiting ends by itself; zero: it does not, or it is not known

	History []Outcome `json:"history"` // the last few states that came to an end, the newest last
}

// Outcome is what became of a state.
type Outcome struct {
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"`
	Outcome    Phase         `json:"outcome"` // committed, rolled-back, failed or superseded
	At         time.Time     `json:"at"`
	Code       string        `json:"code,omitempty"`
	Message    string        `json:"message,omitempty"`
}

var keyProgress = []byte("progress") // in the bucket "meta"

// Progress returns what was saved; nil when nothing was.
func (t *Tx) Progress() (*Progress, error) {
	return get[Progress](t.tx.Bucket(bucketMeta), keyProgress)
}

// SetProgress saves it; nil forgets it.
func (t *Tx) SetProgress(p *Progress) error { return set(t.tx.Bucket(bucketMeta), keyProgress, p) }
