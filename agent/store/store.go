// Package store keeps what the agent must not forget, in one bbolt file: agent.db.
//
// Every [Store.Update] is one transaction that is on the disk when it returns, or has not happened. The file is locked
// for as long as the store is open, so a second agent on the same directory gets an error. Records are JSON in buckets of
// their own; what other documents say (states, archives) is not here but in the agent's content store. Everything is
// bounded: reports that were never delivered make room for newer ones and leave a visible [Gap].
//
// The entry point is [Open]. Only this package knows bbolt.
package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Schema is the version of the records that this package writes. A file with a higher one is refused, untouched.
const Schema = 1

// lockWait is how long Open waits for another process to let go of the file: long enough for a restart of the agent.
const lockWait = 2 * time.Second

// roomAhead is how many bytes the file has on the disk beyond what it uses, at least half of that.
const roomAhead = 4 << 20

var (
	bucketMeta   = []byte("meta")   // schema, device, epoch, gap
	bucketMarks  = []byte("marks")  // accepted, target, committed, last-good, refused
	bucketBad    = []byte("bad")    // deployment digest -> Bad
	bucketStatus = []byte("status") // deployment id -> Status
	bucketOutbox = []byte("outbox") // sequence, big endian -> Report
	bucketImages = []byte("images") // image name -> journal entry
	bucketPins   = []byte("pins")   // state digest + NUL + reference -> digest
	bucketGood   = []byte("good")   // deployment id -> Good
	bucketTrust  = []byte("trust")  // what keyTrust… and keyReset name

	bucketImageInfo = []byte("image-info") // image name -> workload.ImageInfo
	bucketSecurity  = []byte("security")   // code + NUL + digest -> Security
)

// Keys in the bucket "meta".
var (
	keySchema = []byte("schema")
	keyDevice = []byte("device")
	keyEpoch  = []byte("epoch")
	keyGap    = []byte("gap")

	keyDepth        = []byte("depth")        // of the outbox
	keyCapabilities = []byte("capabilities") // sequence of the undelivered capabilities report
	keyCounter      = []byte("counter")      // of the current states that were numbered
)

// Options open a store.
type Options struct {
	Path   string // of the file; its folder must exist
	Device string // device id; a file of another device is refused
	// OutboxLimit is how many undelivered reports are kept; 0: 10,000.
	OutboxLimit int
	// Replace has a damaged file renamed and kept, and a new one made in its place: see [Tx.Lost]. A file without records is a
	// damaged one, too. It returns the time. nil: a damaged file is an error.
	Replace func() time.Time
	// Commit is called before and after each transaction that writes, for tests that stop the agent there. An error before
	// it undoes the transaction. nil: nothing.
	Commit func(after bool) error
}

// Store is an open agent.db. Its methods may be called from several goroutines.
type Store struct {
	db     *bbolt.DB
	epoch  string
	device string
	limit  int
	commit func(after bool) error

	writing sync.Mutex            // one at a time, so that the next one learns that the one before panicked
	room    int64                 // bytes of the file that have their place on the disk
	broken  atomic.Pointer[error] // a write panicked: bbolt may hold its locks for good
}

// Open opens or creates the file. It fails with [fault.ErrConflict] when another process holds it or when it belongs to
// another device, with [fault.ErrUnsupported] when a newer agent wrote it, with [fault.ErrInvalid] when it is damaged, unless
// it is to be replaced then.
func Open(o Options) (*Store, error) {
	if o.OutboxLimit <= 0 {
		o.OutboxLimit = 10_000
	}
	s, err := open(o, nil)
	if err == nil && o.Replace != nil {
		if err = s.readable(); err != nil {
			err = fmt.Errorf("open %s: %w", o.Path, errors.Join(err, s.Close()))
		}
	}
	if o.Replace != nil && errors.Is(err, fault.ErrInvalid) {
		return replace(o, err)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// open opens the file, or makes it; why is the damage of the one before it, nil: none is known.
func open(o Options, why error) (*Store, error) {
	lost, err := before(o, why)
	if err != nil {
		return nil, err
	}
	db, err := openFile(o.Path)
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fault.WithHint(fmt.Errorf("open %s: another process holds it: %w", o.Path, fault.ErrConflict),
			"another longshore-agent runs on this data directory; stop it first")
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, fault.WithHint(fmt.Errorf("open %s: %w: %w", o.Path, fault.ErrInvalid, err),
			"move the file away: the agent then starts anew, adopts what runs, and accepts the state that the registry holds, whatever "+
				"its generation: the protection against an older one begins anew")
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", o.Path, err)
	}
	s := &Store{db: db, device: o.Device, limit: o.OutboxLimit, commit: o.Commit}
	if err := s.prepare(o, lost); err != nil {
		_ = db.Close() // the first error says it
		return nil, err
	}
	err = s.View(func(tx *Tx) error { s.keepRoom(tx.tx.Size()); return nil })
	return s, err
}

func openFile(path string) (db *bbolt.DB, err error) {
	defer damaged(&err, nil)()
	return bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType})
}

// prepare makes what a new file has to have, with lost, or reads it, and makes the buckets that the program that wrote it did not
// know.
func (s *Store) prepare(o Options, lost *Lost) (err error) {
	defer damaged(&err, nil)()
	ready, missing := false, [][]byte{ // each bucket exists in an open file
		bucketMeta, bucketMarks, bucketBad, bucketStatus, bucketOutbox, bucketImages, bucketPins, bucketGood, bucketTrust,
		bucketImageInfo, bucketSecurity, bucketChanges, bucketDecided, bucketTransitions,
	}
	err = s.db.View(func(tx *bbolt.Tx) error {
		m := tx.Bucket(bucketMeta)
		if m == nil {
			return nil
		}
		v := m.Get(keySchema)
		if len(v) != 4 {
			return fmt.Errorf("open %s: schema record: %w", o.Path, fault.ErrInvalid)
		}
		if n := binary.BigEndian.Uint32(v); n > Schema {
			return fault.WithHint(fmt.Errorf("open %s: schema %d, this program knows %d: %w", o.Path, n, Schema, fault.ErrUnsupported),
				"a newer longshore-agent wrote it; install that version again")
		}
		if d := string(m.Get(keyDevice)); d != o.Device {
			return fault.WithHint(fmt.Errorf("open %s: it belongs to device %q, not %q: %w", o.Path, d, o.Device, fault.ErrConflict),
				"give each device a data directory of its own, or remove this one to start anew")
		}
		for _, b := range [][]byte{bucketMarks, bucketOutbox} { // generations and sequence numbers never begin anew in one file
			if tx.Bucket(b) == nil {
				return fmt.Errorf("open %s: there is no bucket %s: %w", o.Path, b, fault.ErrInvalid)
			}
		}
		s.epoch = string(m.Get(keyEpoch))
		ready, missing = true, slices.DeleteFunc(missing, func(b []byte) bool { return tx.Bucket(b) != nil })
		return nil
	})
	if err != nil || ready && len(missing) == 0 { // the usual start writes nothing
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, b := range missing {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return fmt.Errorf("prepare %s: %w", o.Path, err)
			}
		}
		if ready {
			return nil
		}
		id, err := uuid.NewRandom()
		if err != nil {
			return fmt.Errorf("prepare %s: epoch: %w", o.Path, err)
		}
		s.epoch = id.String()
		m := tx.Bucket(bucketMeta)
		if lost != nil {
			if err := put(m, keyLost, lost); err != nil {
				return fmt.Errorf("prepare %s: %w", o.Path, err)
			}
		}
		return errors.Join(
			m.Put(keySchema, binary.BigEndian.AppendUint32(nil, Schema)),
			m.Put(keyDevice, []byte(o.Device)),
			m.Put(keyEpoch, []byte(s.epoch)),
		)
	})
}

// Close lets go of the file. After a write that met damage that is left to the end of the process: bbolt would wait for itself.
func (s *Store) Close() error {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return s.db.Close()
}

// Device is the device that the file belongs to.
func (s *Store) Device() string { return s.device }

// Epoch names this file, a UUID made when it was created. Sequence numbers count within it.
func (s *Store) Epoch() string { return s.epoch }

// Tx is one transaction. It must not be used after the function that it was given to.
type Tx struct {
	tx    *bbolt.Tx
	limit int
}

// Saved calls f when all that the transaction did is on the disk, and not at all if it fails.
func (t *Tx) Saved(f func()) { t.tx.OnCommit(f) }

// View reads.
func (s *Store) View(f func(*Tx) error) (err error) {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	defer damaged(&err, nil)()
	return s.db.View(func(tx *bbolt.Tx) error { return f(&Tx{tx, s.limit}) })
}

// Update writes. When it returns nil, all that f did is on the disk; when not, nothing of it is.
func (s *Store) Update(f func(*Tx) error) error {
	if s.commit != nil {
		if err := s.commit(false); err != nil {
			return err
		}
	}
	err := s.write(f)
	if err == nil && s.commit != nil {
		return s.commit(true)
	}
	if errors.Is(err, os.ErrPermission) {
		return fault.WithHint(err, "the agent must run as root, and its data directory must be writable")
	}
	return err
}

func (s *Store) write(f func(*Tx) error) (err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.broken.Load(); err != nil {
		return *err
	}
	defer damaged(&err, func(err error) { s.broken.Store(&err) })()
	var used int64
	err = s.db.Update(func(tx *bbolt.Tx) error {
		err := f(&Tx{tx, s.limit})
		used = tx.Size()
		return err
	})
	s.keepRoom(used)
	return err
}

// keepRoom has the file system keep room for what the file will need: the state that frees a full disk must be saved first. Where
// the file system cannot, or has no room, a write that needs it says so. The caller holds writing, or nothing else knows the store.
func (s *Store) keepRoom(used int64) {
	if used+roomAhead/2 <= s.room {
		return
	}
	f, err := os.OpenFile(s.db.Path(), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if allocate(f, used+roomAhead) == nil {
		s.room = used + roomAhead
	}
}

// damaged makes an error of what bbolt does about pages that make no sense: it panics, or reads where the mapped file has
// no bytes, and what dies in a loop that systemd starts again and again is of no use. Other panics are slips of this program and
// go on. met gets the error. What it returns is to be deferred.
func damaged(err *error, met func(error)) func() {
	before := debug.SetPanicOnFault(true) // of this goroutine: without it a read outside of the file ends the process
	return func() {
		debug.SetPanicOnFault(before)
		p := recover()
		if p == nil {
			return
		}
		if _, outside := p.(interface{ Addr() uintptr }); !outside && !inBolt() { // a nil pointer has no address
			panic(p)
		}
		*err = fault.WithHint(fmt.Errorf("agent.db: %w: %v", fault.ErrInvalid, p),
			"move agent.db away: the agent then starts anew and accepts the state that the registry holds")
		if met != nil {
			met(*err)
		}
	}
}

// inBolt reports, in a deferred function during a panic, whether that began in bbolt, or in the standard library for it.
func inBolt() bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	for panics, more := false, true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		switch host, _, path := strings.Cut(f.Function, "/"); {
		case f.Function == "runtime.gopanic":
			panics = true
		case panics && path && strings.Contains(host, "."):
			return strings.HasPrefix(f.Function, "go.etcd.io/bbolt")
		}
	}
	return false
}
