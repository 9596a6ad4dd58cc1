package store

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxSecurity bounds how many different security events are kept, the newest; their counts outlive them.
const maxSecurity = 64

// Keys in the bucket "meta".
var (
	keyProofs         = []byte("proofs")
	keyFresh          = []byte("fresh")
	keySecurityCounts = []byte("securityCounts")
)

// Proofs are the proven times that were kept.
func (t *Tx) Proofs() ([]clock.Proof, error) {
	p, err := get[[]clock.Proof](t.tx.Bucket(bucketMeta), keyProofs)
	if err != nil || p == nil {
		return nil, err
	}
	return *p, nil
}

// SetProofs keeps proven times in place of those that were kept.
func (t *Tx) SetProofs(all []clock.Proof) error { return put(t.tx.Bucket(bucketMeta), keyProofs, all) }

// Fresh is what is known of the freshness of the accepted state.
type Fresh struct {
	Digest   digest.Digest `json:"digest"` // of the state that it is about
	Policy   string        `json:"policy"` // fingerprint of the policy that was asked
	Required bool          `json:"required"`
	By       string        `json:"by,omitempty"`
	IssuedAt time.Time     `json:"issuedAt,omitzero"`
	NotAfter time.Time     `json:"notAfter,omitzero"`  // zero with Required: there is no statement
	LookedAt time.Time     `json:"lookedAt,omitzero"`  // by the device's clock
	Withheld bool          `json:"withheld,omitempty"` // it had ended, and the source had nothing newer: that was reported
}

// Fresh returns what is known of the freshness of the accepted state; nil: nothing.
func (t *Tx) Fresh() (*Fresh, error) { return get[Fresh](t.tx.Bucket(bucketMeta), keyFresh) }

// SetFresh remembers the freshness of the accepted state; nil forgets it.
func (t *Tx) SetFresh(f *Fresh) error { return set(t.tx.Bucket(bucketMeta), keyFresh, f) }

// Security is something that an attack looks like. The same once more is counted.
type Security struct {
	Code       codes.Code    `json:"code"`
	Digest     digest.Digest `json:"digest,omitempty"`     // of the state
	Generation uint64        `json:"generation,omitempty"` // 0: not known
	Message    string        `json:"message"`              // of the last time
	First      time.Time     `json:"first"`
	Last       time.Time     `json:"last"`
	Count      uint64        `json:"count"`
}

func (s Security) key() []byte { return []byte(string(s.Code) + "\x00" + s.Digest.String()) }

// AddSecurity remembers what happened at s.Last, and counts it. Where there are too many the oldest make room, and never the one
// that is added: the device's clock may have been set back.
func (t *Tx) AddSecurity(s Security) error {
	b := t.tx.Bucket(bucketSecurity)
	key := s.key()
	s.First, s.Count = s.Last, 1
	if data := b.Get(key); data != nil {
		var old Security
		if decode("security", data, &old) == nil { // a damaged one is replaced
			s.First, s.Count = old.First, old.Count+1
		}
	}
	if err := put(b, key, s); err != nil {
		return err
	}
	counts, _ := t.SecurityCounts() // a damaged count begins anew
	counts[s.Code]++
	if err := put(t.tx.Bucket(bucketMeta), keySecurityCounts, counts); err != nil {
		return err
	}
	all, err := t.Security()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(old Security) bool { return old.Code == s.Code && old.Digest == s.Digest })
	for ; len(all) >= maxSecurity; all = all[1:] {
		if err := b.Delete(all[0].key()); err != nil {
			return fmt.Errorf("drop security event: %w", err)
		}
	}
	return nil
}

// Security lists the security events that are kept, the last to happen at the end. What cannot be read is left out: these
// records are reported, nothing is decided by them.
func (t *Tx) Security() ([]Security, error) {
	var out []Security
	err := t.tx.Bucket(bucketSecurity).ForEach(func(_, v []byte) error {
		var s Security
		if json.Unmarshal(v, &s) == nil && len(v) <= maxRecord {
			out = append(out, s)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read security events: %w: %w", fault.ErrInvalid, err)
	}
	slices.SortStableFunc(out, func(a, b Security) int { return cmp.Or(a.Last.Compare(b.Last), cmp.Compare(a.Code, b.Code)) })
	return out, nil
}

// SecurityCounts counts security events since the file was made, by code.
func (t *Tx) SecurityCounts() (map[codes.Code]uint64, error) {
	return getMap[codes.Code, uint64](t.tx.Bucket(bucketMeta), keySecurityCounts)
}
