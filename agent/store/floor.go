package store

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxResets bounds the resets of generations that are remembered as done, the newest.
const maxResets = 256

var keyReset = []byte("generations") // in the bucket "trust": resets

// Reset is a lowering of the accepted mark that the trust policy asks for. It acts once, so what it names is its identity.
type Reset struct {
	To      uint64 `json:"to"`
	Version uint64 `json:"version"` // of the policy that it came with
}

// resets is what became of them.
type resets struct {
	Done []Reset `json:"done"`
	// State is the accepted state whose generation Floor stands in for; "": the accepted generation is its own floor.
	State digest.Digest `json:"state,omitempty"`
	Floor uint64        `json:"floor,omitempty"`
	From  uint64        `json:"from,omitempty"` // generation of State, for people
	At    time.Time     `json:"at,omitzero"`
}

// ResetGenerations has r.To taken for the accepted generation when that is above it. What is accepted, and runs, stays. It
// does so once for each r: acted is false afterwards, also when the first time there was nothing above.
func (t *Tx) ResetGenerations(r Reset, at time.Time) (acted bool, err error) {
	x, err := t.resets()
	if err != nil {
		return false, err
	}
	x = cmp.Or(x, &resets{})
	if slices.Contains(x.Done, r) {
		return false, nil
	}
	x.Done = append(x.Done, r)
	x.Done = x.Done[max(0, len(x.Done)-maxResets):]
	s, err := t.State(Accepted)
	if err != nil {
		return false, err
	}
	if s != nil && x.floor(s) > r.To {
		x.State, x.Floor, x.From, x.At, acted = s.Digest, r.To, s.Generation, at.UTC(), true
	}
	lost, err := t.Lost()
	if err != nil {
		return false, err
	}
	if s == nil && lost != nil && lost.Floor > r.To+1 {
		lost.Floor, acted = r.To+1, true
		if err := t.SetLost(lost); err != nil {
			return false, err
		}
	}
	return acted, put(t.tx.Bucket(bucketTrust), keyReset, x)
}

// WasReset reports whether a reset has been asked for before.
func (t *Tx) WasReset(r Reset) (bool, error) {
	x, err := t.resets()
	return x != nil && slices.Contains(x.Done, r), err
}

// Floor is the generation that a state of a repository has to be above of to be accepted in the place of another: the accepted one,
// unless that was reset, and 0 where its count begins ([State.Continues]). With nothing accepted it is the least generation that may
// be: that of [Tx.Lost], or 0.
func (t *Tx) Floor(repository string) (uint64, error) {
	s, err := t.State(Accepted)
	if err != nil {
		return 0, err
	}
	if s == nil {
		return t.lostFloor()
	}
	x, err := t.resets()
	if err != nil {
		return 0, err
	}
	if !s.Continues(repository) {
		return 0, nil
	}
	return x.floor(s), nil
}

func (t *Tx) resets() (*resets, error) { return get[resets](t.tx.Bucket(bucketTrust), keyReset) }

func (x *resets) floor(s *State) uint64 {
	if x != nil && x.State == s.Digest {
		return min(x.Floor, s.Generation)
	}
	return s.Generation
}

// rise holds a state that is to be accepted against the one that is, and ends a reset of that one's generation.
func (t *Tx) rise(s State) error {
	old, err := t.State(Accepted)
	if err != nil {
		return err
	}
	if old == nil {
		floor, err := t.lostFloor()
		if err == nil && s.Generation < floor {
			err = fmt.Errorf("accept generation %d below %d, which this device had accepted: %w", s.Generation, floor, fault.ErrRollback)
		}
		return err
	}
	x, err := t.resets()
	if err != nil {
		return err
	}
	switch {
	case s.Digest == old.Digest && s.Generation == old.Generation:
		return nil
	case old.Continues(s.Repository) && s.Generation <= x.floor(old):
		return fmt.Errorf("accept generation %d (%s) over %d (%s): %w", s.Generation, s.Digest, x.floor(old), old.Digest, fault.ErrRollback)
	case x == nil || x.State == "":
		return nil
	}
	x.State, x.Floor, x.From, x.At = "", 0, 0, time.Time{}
	return put(t.tx.Bucket(bucketTrust), keyReset, x)
}
