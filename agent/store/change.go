package store

import (
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
)

// Change is what the device remembers of a change that it may make: since when it knows it, what was decided, and whether it was begun.
type Change struct {
	ID         digest.Digest `json:"id"` // as plan.Change has it
	Deployment string        `json:"deployment"`
	Since      time.Time     `json:"since"`
	Decision   *Decision     `json:"decision,omitempty"` // the last one; nil: none
	Begun      time.Time     `json:"begun,omitzero"`     // from then on nothing holds it back; zero: it waits
	For        digest.Digest `json:"for,omitempty"`      // the state for which it was begun
	Waited     time.Duration `json:"waited,omitempty"`   // while the agent ran, by a clock that nobody sets; as it was when it was saved
	Trust      *TrustChange  `json:"trust,omitempty"`    // a version of the trust policy, whose digest is ID; nil: the change is of a deployment
}

// TrustChange is a version of the trust policy that the device has not taken over yet.
type TrustChange struct {
	Version  uint64   `json:"version"`
	SignedBy []string `json:"signedBy"`
	Changes  []string `json:"changes"` // for people, one sentence each
}

// Verdict is what somebody decided.
type Verdict string

const (
	Approved  Verdict = "approved"
	Rejected  Verdict = "rejected"
	Postponed Verdict = "postponed"

	RolledBack Verdict = "rolled-back" // a rollback by hand
	Released   Verdict = "released"    // from one
)

// Decision is what somebody at the device decided about a change.
type Decision struct {
	Verdict Verdict   `json:"verdict"`
	By      string    `json:"by"`  // "user ana (1000)"
	Via     string    `json:"via"` // "command", "file", "panel", "automatic"
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
	Until   time.Time `json:"until,omitzero"` // of an approval: when it expires; of Postponed: when it ends; zero: never
}

// Counts reports whether a decision holds: an approval that has expired and a postponement that is over do not. nil does not.
func (d *Decision) Counts(now time.Time) bool {
	return d != nil && (d.Until.IsZero() || now.Before(d.Until))
}

var bucketChanges = []byte("changes") // change id -> Change

func (t *Tx) Changes() ([]Change, error) { return list[Change](t.tx.Bucket(bucketChanges)) }

// SetChanges remembers exactly these.
func (t *Tx) SetChanges(all map[digest.Digest]Change) error { return exactly(t, bucketChanges, all) }

// Decided is what somebody at the device did, for those who ask later: nothing is decided by it.
type Decided struct {
	At         time.Time     `json:"at"`
	Kind       string        `json:"kind"` // of its event
	Deployment string        `json:"deployment,omitempty"`
	Generation uint64        `json:"generation,omitempty"`
	Digest     digest.Digest `json:"digest"` // of the change, or of the state
	Code       string        `json:"code,omitempty"`
	Message    string        `json:"message"` // what, by whom and why
	// The same apart; empty in records of earlier versions.
	Verdict Verdict `json:"verdict,omitempty"`
	By      string  `json:"by,omitempty"`
	Via     string  `json:"via,omitempty"`
	Reason  string  `json:"reason,omitempty"`
}

// maxDecided bounds how many are kept, the newest.
const maxDecided = 100

var bucketDecided = []byte("decided") // sequence, big endian -> Decided

// AddDecided remembers what somebody did, in place of the oldest.
func (t *Tx) AddDecided(d Decided) error {
	b := t.tx.Bucket(bucketDecided)
	seq, err := b.NextSequence()
	if err != nil {
		return fmt.Errorf("number a decision: %w", err)
	}
	if seq > maxDecided {
		if err := b.Delete(seqKey(seq - maxDecided)); err != nil {
			return fmt.Errorf("forget a decision: %w", err)
		}
	}
	return put(b, seqKey(seq), d)
}

// Decided lists what people did, oldest first.
func (t *Tx) Decided() ([]Decided, error) { return list[Decided](t.tx.Bucket(bucketDecided)) }

// Hold keeps the device at a generation that somebody chose by hand, until another state is accepted or the hold is released.
type Hold struct {
	Generation uint64        `json:"generation"`
	State      digest.Digest `json:"state"` // of the generation
	Over       digest.Digest `json:"over"`  // the accepted state that is not applied
	By         string        `json:"by"`
	Via        string        `json:"via"`
	Reason     string        `json:"reason,omitempty"`
	At         time.Time     `json:"at"`
}

var keyHold = []byte("hold") // in the bucket "meta"

// Hold returns the hold; nil when there is none.
func (t *Tx) Hold() (*Hold, error) { return get[Hold](t.tx.Bucket(bucketMeta), keyHold) }

// SetHold remembers a hold; nil forgets it.
func (t *Tx) SetHold(h *Hold) error { return set(t.tx.Bucket(bucketMeta), keyHold, h) }

// Attempts count the boots of a device while an update is not complete.
type Attempts struct {
	State digest.Digest `json:"state"` // the target
	Boot  string        `json:"boot"`  // the last boot's id
	Boots int           `json:"boots"`
}

var keyAttempts = []byte("attempts") // in the bucket "meta"

// Attempts returns the count; nil when there is none.
func (t *Tx) Attempts() (*Attempts, error) {
	return get[Attempts](t.tx.Bucket(bucketMeta), keyAttempts)
}

func (t *Tx) SetAttempts(a Attempts) error { return put(t.tx.Bucket(bucketMeta), keyAttempts, a) }
