package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

var keyLost = []byte("lost") // in the bucket "meta"

// damagedSuffix ends the name of a damaged file that was set aside. The newest one is kept.
const damagedSuffix = ".damaged"

// Lost says that this file took the place of a damaged one, or of one that lost its records.
type Lost struct {
	File   string    `json:"file"`   // the damaged one; "": nothing of it is left
	Reason string    `json:"reason"` // what was wrong with it
	At     time.Time `json:"at"`
	// Floor is the generation that the device had accepted at least; Known is false until it was looked for.
	Floor uint64 `json:"floor"`
	Known bool   `json:"known"`
}

// Lost returns what is known of the damaged file before this one; nil: there was none, or a state was accepted since.
func (t *Tx) Lost() (*Lost, error) { return get[Lost](t.tx.Bucket(bucketMeta), keyLost) }

// SetLost remembers it; nil forgets it.
func (t *Tx) SetLost(x *Lost) error { return set(t.tx.Bucket(bucketMeta), keyLost, x) }

// lostFloor is the generation below which nothing is accepted although nothing is known to be accepted.
func (t *Tx) lostFloor() (uint64, error) {
	x, err := t.Lost()
	if x == nil || err != nil {
		return 0, err
	}
	return x.Floor, nil
}

// replace renames a damaged file, keeps it, and opens a new one in its place.
func replace(o Options, why error) (*Store, error) {
	if err := setAside(o.Path, o.Path+damagedSuffix); err != nil {
		return nil, errors.Join(why, fmt.Errorf("set %s aside: %w", o.Path, err))
	}
	return open(o, why)
}

// before returns what a file without records took the place of, to be saved with its first ones: a power cut must not leave one
// that does not know. nil: there was no file. why is the damage that was just found; nil: none was.
func before(o Options, why error) (*Lost, error) {
	if o.Replace == nil {
		return nil, nil
	}
	lost := &Lost{At: o.Replace().UTC()}
	_, aside := os.Stat(o.Path + damagedSuffix)
	_, here := os.Stat(o.Path)
	if aside == nil {
		lost.File = o.Path + damagedSuffix
	}
	switch {
	case why != nil:
		lost.Reason = why.Error()
	case aside == nil:
		lost.Reason = "the agent ended while it replaced the damaged file"
	case here == nil:
		lost.Reason = o.Path + " was there and held no records"
	case os.IsNotExist(aside) && os.IsNotExist(here):
		return nil, nil
	default:
		return nil, fmt.Errorf("open %s: %w", o.Path, errors.Join(aside, here))
	}
	return lost, nil
}

// setAside renames a file that no process uses. Two that find the same damage do not rename each other's new file.
func setAside(path, aside string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process holds it: %w", fault.ErrConflict)
	}
	held, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(held, now) {
		return fmt.Errorf("another process has replaced it: %w", fault.ErrConflict)
	}
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// readable reads every page that holds records, and the records without which an agent does not start.
func (s *Store) readable() error {
	return s.View(func(tx *Tx) error {
		err := tx.tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
		for _, m := range []Mark{Accepted, Target, Committed, LastGood} {
			_, merr := tx.State(m)
			err = errors.Join(err, merr)
		}
		_, serr := tx.Security()
		_, ferr := tx.Floor("")
		return errors.Join(err, serr, ferr)
	})
}
