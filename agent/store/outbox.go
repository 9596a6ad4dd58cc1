package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Append puts a report at the end of the outbox, in the transaction of the change that it reports, and returns its sequence
// number. A capabilities report takes the place of an older undelivered one: only the newest means anything. When there is
// no room the oldest report is dropped and counted in the [Gap]; but of each subject the newest stays.
func (t *Tx) Append(r Report) (uint64, error) {
	b, meta := t.tx.Bucket(bucketOutbox), t.tx.Bucket(bucketMeta)
	if old := number(meta, keyCapabilities); r.Kind == KindCapabilities && old != 0 {
		if err := t.Delivered(old); err != nil {
			return 0, err
		}
	}
	seq, err := b.NextSequence()
	if err != nil {
		return 0, fmt.Errorf("append report: %w", err)
	}
	r.Sequence = seq
	if err := put(b, seqKey(seq), r); err != nil {
		return 0, err
	}
	depth := number(meta, keyDepth) + 1
	err = errors.Join(meta.Put(newestKey(r), seqKey(seq)), meta.Put(keyDepth, seqKey(depth)))
	if r.Kind == KindCapabilities {
		err = errors.Join(err, meta.Put(keyCapabilities, seqKey(seq)))
	}
	if err != nil {
		return 0, fmt.Errorf("append report: %w", err)
	}
	for ; depth > uint64(t.limit); depth-- {
		if err := t.drop(b, r.At); err != nil {
			return 0, err
		}
	}
	return seq, nil
}

// drop removes the oldest report that a newer one of its subject makes needless; the oldest of all when there is none.
func (t *Tx) drop(b *bbolt.Bucket, at time.Time) error {
	meta := t.tx.Bucket(bucketMeta)
	c := b.Cursor()
	oldest, _ := c.First()
	k := oldest
	for ; k != nil; k, _ = c.Next() {
		var r Report
		if err := decode("outbox", b.Get(k), &r); err != nil {
			return err
		}
		if newest := number(meta, newestKey(r)); newest != 0 && newest != r.Sequence {
			break
		}
	}
	if k == nil {
		k = oldest
	}
	if len(k) != 8 {
		return fmt.Errorf("read record outbox: key %x: %w", k, fault.ErrInvalid)
	}
	seq := binary.BigEndian.Uint64(k)
	if err := t.gap(seq, at); err != nil {
		return err
	}
	return t.Delivered(seq)
}

// newestKey is where the sequence of the newest undelivered report of a subject is.
func newestKey(r Report) []byte { return []byte("newest\x00" + r.Kind + "\x00" + r.Subject) }

// Next returns the oldest undelivered report behind seq; nil when there is none.
func (t *Tx) Next(seq uint64) (*Report, error) {
	k, v := t.tx.Bucket(bucketOutbox).Cursor().Seek(seqKey(seq + 1))
	if k == nil {
		return nil, nil
	}
	var r Report
	if err := decode("outbox", v, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// ToldGap notes that the newest of every subject was appended again.
func (t *Tx) ToldGap() error {
	g, err := t.Gap()
	if err != nil || g == nil {
		return err
	}
	g.Told = true
	return put(t.tx.Bucket(bucketMeta), keyGap, g)
}

// AskRecap notes that the newest of every subject has to be appended again.
func (t *Tx) AskRecap() error {
	g, err := t.Gap()
	if err != nil {
		return err
	}
	g = cmp.Or(g, &Gap{})
	g.Told = false
	return put(t.tx.Bucket(bucketMeta), keyGap, g)
}

// First returns the oldest report that is not delivered; nil when all are.
func (t *Tx) First() (*Report, error) { return t.Next(0) }

// Delivered removes a report. Gone is no error.
func (t *Tx) Delivered(seq uint64) error {
	b := t.tx.Bucket(bucketOutbox)
	data := b.Get(seqKey(seq))
	if data == nil {
		return nil
	}
	var r Report
	known := decode("outbox", data, &r) == nil // damaged ones go, too
	meta := t.tx.Bucket(bucketMeta)
	err := errors.Join(b.Delete(seqKey(seq)), meta.Put(keyDepth, seqKey(number(meta, keyDepth)-1)))
	if known && number(meta, newestKey(r)) == seq {
		err = errors.Join(err, meta.Delete(newestKey(r)))
	}
	if number(meta, keyCapabilities) == seq {
		err = errors.Join(err, meta.Delete(keyCapabilities))
	}
	if err != nil {
		return fmt.Errorf("remove report %d: %w", seq, err)
	}
	return nil
}

// Depth is how many reports wait, and since when the oldest does.
func (t *Tx) Depth() (n int, oldest time.Time, err error) {
	r, err := t.First()
	if err != nil || r == nil {
		return 0, time.Time{}, err
	}
	return int(number(t.tx.Bucket(bucketMeta), keyDepth)), r.At, nil
}

// Gap returns what is known of dropped reports; nil when none was.
func (t *Tx) Gap() (*Gap, error) { return get[Gap](t.tx.Bucket(bucketMeta), keyGap) }

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// number reads a counter; 0 when it was never written.
func number(b *bbolt.Bucket, key []byte) uint64 {
	v := b.Get(key)
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

// NumberCurrent numbers a current state: counter is the next of its own, sequence the next of all reports. It must be on the disk
// before anybody sees the numbers: none is given twice.
func (t *Tx) NumberCurrent() (counter, sequence uint64, err error) {
	meta := t.tx.Bucket(bucketMeta)
	counter = number(meta, keyCounter) + 1
	sequence, err = t.tx.Bucket(bucketOutbox).NextSequence()
	if err = errors.Join(err, meta.Put(keyCounter, seqKey(counter))); err != nil {
		return 0, 0, fmt.Errorf("number the current state: %w", err)
	}
	return counter, sequence, nil
}
