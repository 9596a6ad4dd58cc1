package store

import (
	"fmt"
	"slices"

	"github.com/longshore-dev/longshore/artifacts"
)

var bucketTransitions = []byte("transitions") // sequence, big endian -> artifacts.CurrentTransition

// AddTransition remembers a transition in place of the oldest. Without a sequence it gets the next one of all reports.
func (t *Tx) AddTransition(x artifacts.CurrentTransition) error {
	if x.Sequence == 0 {
		var err error
		if x.Sequence, err = t.tx.Bucket(bucketOutbox).NextSequence(); err != nil {
			return fmt.Errorf("number a transition: %w", err)
		}
	}
	b := t.tx.Bucket(bucketTransitions)
	var old [][]byte
	n, c := 0, b.Cursor()
	for k, _ := c.Last(); k != nil; k, _ = c.Prev() {
		if n++; n > artifacts.MaxTransitions { // one more than is told: it says where the list begins
			old = append(old, slices.Clone(k))
		}
	}
	for _, k := range old {
		if err := b.Delete(k); err != nil {
			return fmt.Errorf("forget a transition: %w", err)
		}
	}
	return put(b, seqKey(x.Sequence), x)
}

// Transitions are the newest ones.
func (t *Tx) Transitions() (out artifacts.CurrentTransitions, err error) {
	out.List, err = list[artifacts.CurrentTransition](t.tx.Bucket(bucketTransitions))
	if n := len(out.List) - artifacts.MaxTransitions; n > 0 {
		out.After, out.List = out.List[n-1].Sequence, out.List[n:]
	}
	return out, err
}
