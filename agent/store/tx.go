package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// State returns the generation under a mark; nil when there is none.
func (t *Tx) State(m Mark) (*State, error) {
	return get[State](t.tx.Bucket(bucketMarks), []byte(m))
}

// SetState moves a mark. The accepted mark never falls below its [Tx.Floor], and an equal generation keeps its digest:
// [fault.ErrRollback].
func (t *Tx) SetState(m Mark, s State) error {
	if m == Accepted {
		if err := t.rise(s); err != nil {
			return err
		}
	}
	return put(t.tx.Bucket(bucketMarks), []byte(m), s)
}

// Refused returns the state that was refused last; nil when the tag points at an accepted one.
func (t *Tx) Refused() (*Refused, error) {
	return get[Refused](t.tx.Bucket(bucketMarks), keyRefused)
}

// SetRefused remembers a refused state; nil forgets it.
func (t *Tx) SetRefused(r *Refused) error { return set(t.tx.Bucket(bucketMarks), keyRefused, r) }

// Statuses lists what was last reported about each deployment, by deployment id.
func (t *Tx) Statuses() ([]Status, error) { return list[Status](t.tx.Bucket(bucketStatus)) }

// SetStatus remembers what is reported about a deployment.
func (t *Tx) SetStatus(s Status) error {
	return put(t.tx.Bucket(bucketStatus), []byte(s.DeploymentID), s)
}

func (t *Tx) DeleteStatus(deployment string) error {
	return t.tx.Bucket(bucketStatus).Delete([]byte(deployment))
}

// Damage is a record that cannot be read and that the agent can do without.
type Damage struct {
	Err    error // what is wrong with it
	bucket []byte
	key    []byte
}

// Damaged lists the reported statuses, the refusals, the last good revisions, undelivered reports, the gap, what images say, proven
// times, freshness, decisions about changes, a hold, the progress, restarts, transitions and counts of security events that cannot be
// read. The marks are not among them: who loses those loses the protection against rollback.
func (t *Tx) Damaged() []Damage {
	return slices.Concat(
		damagedAt[Refused](t, bucketMarks, keyRefused),
		damagedAt[Gap](t, bucketMeta, keyGap),
		damagedAt[[]clock.Proof](t, bucketMeta, keyProofs),
		damagedAt[Fresh](t, bucketMeta, keyFresh),
		damagedAt[map[string]uint64](t, bucketMeta, keyAiling),
		damagedAt[map[string]string](t, bucketMeta, keyAgain),
		damagedAt[Hold](t, bucketMeta, keyHold),
		damagedAt[Attempts](t, bucketMeta, keyAttempts),
		damagedAt[Progress](t, bucketMeta, keyProgress),
		damagedAt[map[string]uint64](t, bucketMeta, keySecurityCounts),
		damagedIn[Status](t, bucketStatus),
		damagedIn[Bad](t, bucketBad),
		damagedIn[workload.ImageInfo](t, bucketImageInfo),
		damagedIn[Good](t, bucketGood),
		damagedIn[Change](t, bucketChanges),
		damagedIn[Decided](t, bucketDecided),
		damagedIn[Report](t, bucketOutbox),
		damagedIn[artifacts.CurrentTransition](t, bucketTransitions),
	)
}

// damagedAt reads one record.
func damagedAt[T any](t *Tx, bucket, key []byte) []Damage {
	if _, err := get[T](t.tx.Bucket(bucket), key); err != nil {
		return []Damage{{err, bucket, key}}
	}
	return nil
}

// damagedIn reads every record of a bucket.
func damagedIn[T any](t *Tx, bucket []byte) []Damage {
	var out []Damage
	c := t.tx.Bucket(bucket).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if err := decode(fmt.Sprintf("%s %q", bucket, k), v, new(T)); err != nil {
			out = append(out, Damage{err, bucket, bytes.Clone(k)})
		}
	}
	return out
}

// OfHold reports whether the record is that of a hold.
func (d Damage) OfHold() bool {
	return bytes.Equal(d.bucket, bucketMeta) && bytes.Equal(d.key, keyHold)
}

func (t *Tx) Drop(d Damage) error {
	if bytes.Equal(d.bucket, bucketOutbox) && len(d.key) == 8 {
		return t.Delivered(binary.BigEndian.Uint64(d.key)) // it is counted, too
	}
	if err := t.tx.Bucket(d.bucket).Delete(d.key); err != nil {
		return fmt.Errorf("drop a damaged record: %w", err)
	}
	return nil
}

// Pins returns the digests that the references of a state were resolved to when it was accepted.
func (t *Tx) Pins(state digest.Digest) (map[string]digest.Digest, error) {
	out := map[string]digest.Digest{}
	prefix := []byte(state.String() + "\x00")
	c := t.tx.Bucket(bucketPins).Cursor()
	for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		d := digest.Digest(v)
		if err := d.Validate(); err != nil {
			return nil, fmt.Errorf("read record pin %q: %w: %w", k, fault.ErrInvalid, err)
		}
		out[string(k[len(prefix):])] = d
	}
	return out, nil
}

// SetPins remembers what the references of a state were resolved to.
func (t *Tx) SetPins(state digest.Digest, pins map[string]digest.Digest) error {
	b := t.tx.Bucket(bucketPins)
	for ref, d := range pins {
		if err := b.Put([]byte(state.String()+"\x00"+ref), []byte(d)); err != nil {
			return fmt.Errorf("write pin %q: %w", ref, err)
		}
	}
	return nil
}

// RetainPins forgets the pins of every state but these.
func (t *Tx) RetainPins(states ...digest.Digest) error {
	return t.retain(bucketPins, func(key []byte) bool {
		state, _, _ := bytes.Cut(key, []byte{0})
		return slices.Contains(states, digest.Digest(state))
	})
}

// retain deletes the records of a bucket whose key is not to be kept.
func (t *Tx) retain(bucket []byte, keep func(key []byte) bool) error {
	b := t.tx.Bucket(bucket)
	var gone [][]byte
	err := b.ForEach(func(k, _ []byte) error {
		if !keep(k) {
			gone = append(gone, bytes.Clone(k))
		}
		return nil
	})
	for _, k := range gone {
		if derr := b.Delete(k); derr != nil {
			err = errors.Join(err, fmt.Errorf("forget record %s %q: %w", bucket, k, derr))
		}
	}
	return err
}

// exactly has a bucket hold these records and no others.
func exactly[K ~string, T any](t *Tx, bucket []byte, all map[K]T) error {
	err := t.retain(bucket, func(key []byte) bool { _, ok := all[K(key)]; return ok })
	for key, x := range all {
		err = errors.Join(err, put(t.tx.Bucket(bucket), []byte(key), x))
	}
	return err
}

func list[T any](b *bbolt.Bucket) (out []T, err error) {
	err = each(b, "", func(_ string, x T) { out = append(out, x) })
	return out, err
}

// each reads the records of a bucket; what names them in errors, before their keys.
func each[T any](b *bbolt.Bucket, what string, f func(key string, x T)) error {
	return b.ForEach(func(k, v []byte) error {
		var x T
		err := decode(what+string(k), v, &x)
		if err == nil {
			f(string(k), x)
		}
		return err
	})
}

// gap widens the record of dropped reports.
func (t *Tx) gap(seq uint64, at time.Time) error {
	b := t.tx.Bucket(bucketMeta)
	g, err := get[Gap](b, keyGap)
	if err != nil {
		return err
	}
	if g == nil || g.Count == 0 {
		g = &Gap{First: seq, Since: at}
	}
	g.First, g.Last, g.Count, g.Told = min(g.First, seq), max(g.Last, seq), g.Count+1, false
	return put(b, keyGap, g)
}
