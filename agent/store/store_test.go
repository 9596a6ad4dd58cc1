package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, path string, edit func(*store.Options)) *store.Store {
	t.Helper()
	o := store.Options{Path: path, Device: "press-07"}
	if edit != nil {
		edit(&o)
	}
	s, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func update(t *testing.T, s *store.Store, f func(*store.Tx) error) {
	t.Helper()
	if err := s.Update(f); err != nil {
		t.Fatal(err)
	}
}

func state(generation uint64) store.State {
	return store.State{
		Digest: digest.FromString(fmt.Sprint(generation)), Size: 7, MediaType: "m", Generation: generation, Repository: "r.example/state",
		AcceptedAt: t0, Expires: t0.Add(time.Hour), SignedBy: []string{"release"},
	}
}

func TestEverythingSurvivesReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	epoch := s.Epoch()
	refused := &store.Refused{Digest: digest.FromString("x"), Generation: 9, Code: "c", Message: "m", Since: t0, Policy: "p"}
	status := store.Status{DeploymentID: "d", Name: "n", State: margo.StateFailed, Since: t0, Components: []store.Component{
		{Name: "c", Identity: "i", State: margo.StateFailed, Since: t0, Error: &margo.StatusError{Code: "c", Source: "s", Message: "m"}},
	}}
	pins := map[string]digest.Digest{"r.example/c:1": digest.FromString("pin")}
	images := map[string]workload.ImageInfo{"r.example/i@sha256:1": {Health: &workload.Health{Probe: workload.Probe{TCP: 80}, Retries: 3}, Volumes: []string{"/data"}}}
	update(t, s, func(tx *store.Tx) error {
		return errors.Join(
			tx.SetState(store.Accepted, state(1<<63+1)), tx.SetState(store.Target, state(1)), tx.SetState(store.Committed, state(2)),
			tx.SetState(store.LastGood, state(3)), tx.SetRefused(refused), tx.SetStatus(status),
			tx.AddBad(store.Bad{Digest: digest.FromString("bad"), Message: "r", Since: t0}), tx.SetPins(state(1).Digest, pins),
			tx.SetImages(map[string]workload.ImageInfo{"gone": {}}), tx.SetImages(images),
		)
	})
	if err := errors.Join(s.Unpacking("a"), s.Unpacking("b"), s.Durable("b"), s.Unpacking("c"), s.Durable("c"),
		s.Durable("c linux/arm"), s.Durable("c linux/s390x"), s.Durable("c2"), s.Forget("c"), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, nil)
	if s.Epoch() != epoch || len(epoch) != 36 {
		t.Errorf("epoch %q, was %q", s.Epoch(), epoch)
	}
	err := s.View(func(tx *store.Tx) error {
		for m, want := range map[store.Mark]uint64{store.Accepted: 1<<63 + 1, store.Target: 1, store.Committed: 2, store.LastGood: 3} {
			got, err := tx.State(m)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(state(want), *got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", m, diff)
			}
		}
		r, err1 := tx.Refused()
		st, err2 := tx.Statuses()
		bad, err3 := tx.Bad()
		p, err4 := tx.Pins(state(1).Digest)
		other, err5 := tx.Pins(state(2).Digest)
		i, err6 := tx.Images()
		if diff := cmp.Diff([]any{refused, []store.Status{status}, 1, pins, 0, images}, []any{r, st, len(bad), p, len(other), i}); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		return errors.Join(err1, err2, err3, err4, err5, err6)
	})
	if err != nil {
		t.Error(err)
	}
	for image, want := range map[string]bool{"a": false, "b": true, "c": false, "d": false, "c linux/arm": false, "c linux/s390x": false, "c2": true} {
		if got, err := s.IsDurable(image); got != want || err != nil {
			t.Errorf("IsDurable(%s) = %v, %v, want %v", image, got, err, want)
		}
	}
}

func TestAcceptedOnlyRises(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), nil)
	set := func(st store.State) error {
		return s.Update(func(tx *store.Tx) error { return tx.SetState(store.Accepted, st) })
	}
	other := state(5)
	other.Digest = digest.FromString("other")
	for _, tc := range []struct {
		name string
		st   store.State
		ok   bool
	}{
		{"first", state(5), true},
		{"again", state(5), true},
		{"same generation, other content", other, false},
		{"older", state(4), false},
		{"newer", state(6), true},
	} {
		if err := set(tc.st); (err == nil) != tc.ok || err != nil && !errors.Is(err, fault.ErrRollback) {
			t.Errorf("%s: %v, want ok %v", tc.name, err, tc.ok)
		}
	}
}

func TestOutbox(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, func(o *store.Options) { o.OutboxLimit = 3 })
	add := func(kind, subject string) (seq uint64) {
		update(t, s, func(tx *store.Tx) (err error) {
			seq, err = tx.Append(store.Report{Kind: kind, Subject: subject, Body: []byte(subject), At: t0})
			return err
		})
		return seq
	}
	drain := func() (got []string) {
		for {
			var r *store.Report
			update(t, s, func(tx *store.Tx) (err error) {
				if r, err = tx.First(); err != nil || r == nil {
					return err
				}
				return errors.Join(tx.Delivered(r.Sequence), tx.Delivered(r.Sequence))
			})
			if r == nil {
				return got
			}
			got = append(got, fmt.Sprintf("%d %s", r.Sequence, r.Subject))
		}
	}
	add(store.KindCapabilities, "press-07")
	add(store.KindStatus, "a")
	add(store.KindCapabilities, "press-07")
	depth := func() (n int) {
		if err := s.View(func(tx *store.Tx) (err error) { n, _, err = tx.Depth(); return err }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if got := depth(); got != 2 {
		t.Errorf("depth = %d, want 2: the newer capabilities take the place of the older", got)
	}
	if diff := cmp.Diff([]string{"2 a", "3 press-07"}, drain()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
	if seq := add(store.KindStatus, "b"); seq != 4 {
		t.Errorf("sequence = %d, want 4: never used twice", seq)
	}
	for range 4 {
		add(store.KindStatus, "c")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, func(o *store.Options) { o.OutboxLimit = 3 })
	var gap *store.Gap
	if err := s.View(func(tx *store.Tx) (err error) { gap, err = tx.Gap(); return err }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&store.Gap{First: 5, Last: 6, Count: 2, Since: t0}, gap); diff != "" {
		t.Errorf("gap (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"4 b", "7 c", "8 c"}, drain()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
	if got := depth(); got != 0 {
		t.Errorf("depth = %d, want 0", got)
	}
}

func TestTheNewestReportOfEachSubjectIsNotDropped(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), func(o *store.Options) { o.OutboxLimit = 5 })
	var got []string
	update(t, s, func(tx *store.Tx) error {
		for i := range 50 {
			subject := "busy"
			if i < 3 {
				subject = fmt.Sprint("quiet ", i)
			}
			if _, err := tx.Append(store.Report{Kind: store.KindStatus, Subject: subject, Body: []byte("{}"), At: t0}); err != nil {
				return err
			}
		}
		for r, err := tx.First(); r != nil; r, err = tx.Next(r.Sequence) {
			if err != nil {
				return err
			}
			got = append(got, fmt.Sprint(r.Sequence, " ", r.Subject))
		}
		return nil
	})
	if diff := cmp.Diff([]string{"1 quiet 0", "2 quiet 1", "3 quiet 2", "49 busy", "50 busy"}, got); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
	update(t, s, func(tx *store.Tx) error { // more subjects than room: the bound holds
		for i := range 20 {
			if _, err := tx.Append(store.Report{Kind: store.KindStatus, Subject: fmt.Sprint("new ", i), Body: []byte("{}"), At: t0}); err != nil {
				return err
			}
		}
		n, _, err := tx.Depth()
		if n != 5 {
			t.Errorf("%d reports are kept, want 5", n)
		}
		return err
	})
}

func TestBoundsOfBadAndPins(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), nil)
	update(t, s, func(tx *store.Tx) error {
		keep := map[digest.Digest]bool{}
		for i := range 70 {
			d := digest.FromString(fmt.Sprint(i))
			keep[d] = i < 3
			if err := tx.AddBad(store.Bad{Digest: d, Since: t0.Add(time.Duration(i))}); err != nil {
				return err
			}
		}
		return errors.Join(
			tx.RetainBad(keep),
			tx.SetPins(state(1).Digest, map[string]digest.Digest{"x": digest.FromString("x")}),
			tx.SetPins(state(2).Digest, map[string]digest.Digest{"x": digest.FromString("y")}),
			tx.RetainPins(state(2).Digest),
		)
	})
	update(t, s, func(tx *store.Tx) error {
		bad, err := tx.Bad()
		p1, err1 := tx.Pins(state(1).Digest)
		p2, err2 := tx.Pins(state(2).Digest)
		if len(bad) != 3 || len(p1) != 0 || len(p2) != 1 {
			t.Errorf("%d bad, %d and %d pins, want 3, 0 and 1", len(bad), len(p1), len(p2))
		}
		return errors.Join(err, err1, err2)
	})
}

func TestRevisionsAndRestartsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	if err := s.View(func(tx *store.Tx) error { // a file that an older agent wrote has none of it
		good, err := tx.Good()
		again, err2 := tx.Again()
		if len(good)+len(again) != 0 {
			t.Errorf("good %v, again %v, want none", good, again)
		}
		return errors.Join(err, err2)
	}); err != nil {
		t.Fatal(err)
	}
	g := store.Good{DeploymentID: "a", Digest: digest.FromString("a"), Size: 7, Generation: 4, State: digest.FromString("s"), Since: t0}
	gone := store.Good{DeploymentID: "b"}
	update(t, s, func(tx *store.Tx) error {
		return errors.Join(tx.SetGood(g), tx.SetGood(gone), tx.DeleteGood("b"), tx.SetAgain(map[string]string{"x": "1"}), tx.SetAgain(map[string]string{"y": "2", "z": ""}))
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, nil)
	if err := s.View(func(tx *store.Tx) error {
		good, err := tx.Good()
		again, err2 := tx.Again()
		if diff := cmp.Diff([]any{[]store.Good{g}, map[string]string{"y": "2", "z": ""}}, []any{good, again}); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		return errors.Join(err, err2)
	}); err != nil {
		t.Fatal(err)
	}
}

func TestOneAgentADevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	if _, err := store.Open(store.Options{Path: path, Device: "press-07"}); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("second Open = %v, want a conflict with a hint", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(store.Options{Path: path, Device: "other"}); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Open for another device = %v, want a conflict", err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", fi.Mode(), err)
	}
}

func TestDamageIsTold(t *testing.T) {
	dir := t.TempDir()
	raw := func(name string, edit func(*bbolt.Tx) error) string {
		path := filepath.Join(dir, name)
		if err := open(t, path, nil).Close(); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(edit), db.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	newer := raw("newer", func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte{0, 0, 0, 2}) })
	if _, err := store.Open(store.Options{Path: newer, Device: "press-07"}); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("newer schema: %v, want unsupported", err)
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(store.Options{Path: garbage, Device: "press-07"}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no database: %v, want invalid", err)
	}
	half := raw("half", func(tx *bbolt.Tx) error { return tx.Bucket([]byte("marks")).Put([]byte("accepted"), []byte(`{"gen`)) })
	err := open(t, half, nil).View(func(tx *store.Tx) error { _, err := tx.State(store.Accepted); return err })
	if !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("half a record: %v, want invalid", err)
	}
}

func TestDamagedRecordsAreDropped(t *testing.T) {
	for bucket, tt := range map[string]struct {
		key  string
		read func(tx *store.Tx) (int, error)
	}{
		"meta":        {"again", func(tx *store.Tx) (int, error) { again, err := tx.Again(); return len(again), err }},
		"transitions": {"\x00\x00\x00\x00\x00\x00\x00\x01", func(tx *store.Tx) (int, error) { turned, err := tx.Transitions(); return len(turned.List), err }},
	} {
		t.Run(bucket, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.db")
			if err := open(t, path, nil).Close(); err != nil {
				t.Fatal(err)
			}
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			half := func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(tt.key), []byte(`{"c":`)) }
			if err := errors.Join(db.Update(half), db.Close()); err != nil {
				t.Fatal(err)
			}
			s, err := store.Open(store.Options{Path: path, Device: "press-07", Replace: func() time.Time { return t0 }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			update(t, s, func(tx *store.Tx) error {
				lost, err := tx.Lost()
				damaged := tx.Damaged()
				if lost != nil || len(damaged) != 1 {
					t.Fatalf("lost %+v, damaged %v, want the file kept and one damaged record", lost, damaged)
				}
				return errors.Join(err, tx.Drop(damaged[0]))
			})
			update(t, s, func(tx *store.Tx) error {
				n, err := tt.read(tx)
				if n+len(tx.Damaged()) != 0 {
					t.Errorf("%d records, damaged %v, want none", n, tx.Damaged())
				}
				return err
			})
		})
	}
}

// A file of a program that did not know one of the buckets can be used. A file that lacks one without which generations or sequence
// numbers would begin anew is damaged.
func TestMissingBucketsAreMade(t *testing.T) {
	for _, name := range []string{"bad", "status", "images", "pins", "good", "trust", "image-info", "security", "marks", "outbox"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.db")
			first := open(t, path, nil)
			epoch := first.Epoch()
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(name)) }), db.Close()); err != nil {
				t.Fatal(err)
			}
			if name == "marks" || name == "outbox" {
				if _, err := store.Open(store.Options{Path: path, Device: "press-07"}); !errors.Is(err, fault.ErrInvalid) {
					t.Errorf("Open = %v, want %v", err, fault.ErrInvalid)
				}
				return
			}
			s := open(t, path, nil)
			if s.Epoch() != epoch {
				t.Errorf("epoch %s, was %s", s.Epoch(), epoch)
			}
			update(t, s, func(tx *store.Tx) error {
				d := digest.FromString("d")
				_, err1 := tx.Images()
				_, err2 := tx.Again()
				_, err3 := tx.Trust()
				_, err4 := tx.ResetGenerations(store.Reset{To: 1}, t0)
				if damaged := tx.Damaged(); len(damaged) != 0 {
					t.Errorf("damaged records %v", damaged)
				}
				return errors.Join(err1, err2, err3, err4,
					tx.SetImages(map[string]workload.ImageInfo{"i": {}}), tx.SetAgain(map[string]string{"c": "run"}), tx.SetTrust(store.Trust{Version: 1}),
					tx.AddBad(store.Bad{Digest: d}), tx.SetStatus(store.Status{DeploymentID: "a"}), tx.SetGood(store.Good{DeploymentID: "a"}),
					tx.SetPins(d, map[string]digest.Digest{"r": d}), tx.AddSecurity(store.Security{Code: "c", Last: t0}))
			})
			if err := s.Durable("i"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpeningAWholeFileWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	var before []byte
	for range 2 {
		if err := open(t, path, nil).Close(); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if before != nil && !bytes.Equal(before, now) {
			t.Error("the file was written")
		}
		before = now
	}
}

func TestFlippedBitsDoNotPanic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.db")
	s := open(t, path, nil)
	update(t, s, func(tx *store.Tx) error {
		_, err := tx.Append(store.Report{Kind: store.KindStatus, Subject: "d", Body: []byte("{}"), At: t0})
		return errors.Join(err, tx.SetState(store.Accepted, state(1)))
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(good); at += 1 + at%97 {
		bad := append([]byte(nil), good...)
		bad[at] ^= 0xa5
		file := filepath.Join(dir, "bad.db")
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(store.Options{Path: file, Device: "press-07"})
		if err != nil {
			continue
		}
		_ = s.View(func(tx *store.Tx) error { // whatever it says, it says it
			_, err := tx.First()
			_, err2 := tx.State(store.Accepted)
			return errors.Join(err, err2)
		})
		_ = s.Close()
	}
}

// A page that points outside of the file makes the library read where nothing is mapped.
func TestReadsOutsideOfTheFileAreErrors(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), nil)
	page, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(page) }()
	read := func(*store.Tx) error {
		_, err := fmt.Fprintln(io.Discard, page[0])
		return err
	}
	if err := s.View(read); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("View = %v, want %v", err, fault.ErrInvalid)
	}
	if err := s.Update(read); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Update = %v, want %v", err, fault.ErrInvalid)
	}
	if debug.SetPanicOnFault(false) {
		t.Error("faults of others are panics, too, afterwards")
	}
}

// Slips of this program are not taken for a damaged file.
func TestOwnPanicsGoOn(t *testing.T) {
	var none *store.State
	var (
		empty  []int
		counts map[string]int
	)
	for name, slip := range map[string]func(*store.Tx) error{
		"panic":       func(*store.Tx) error { panic("ours") },
		"nil pointer": func(*store.Tx) error { return errors.New(none.Repository) },
		"nil map":     func(*store.Tx) error { counts["x"]++; return nil },
		"index": func(*store.Tx) error {
			slices.SortFunc([]int{2, 1}, func(a, _ int) int { return empty[a] })
			return nil
		},
	} {
		s := open(t, filepath.Join(t.TempDir(), "agent.db"), nil)
		for way, call := range map[string]func(func(*store.Tx) error) error{"View": s.View, "Update": s.Update} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s in %s does not go on", name, way)
					}
				}()
				if err := call(slip); err != nil {
					t.Errorf("%s in %s = %v", name, way, err)
				}
			}()
		}
	}
}

// A file that is damaged below the open store: the library panics, and again as it undoes the write, and keeps its lock.
func TestNobodyWaitsAfterAWriteThatPanicked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s, err := store.Open(store.Options{Path: path, Device: "press-07"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	metas := int64(2 * os.Getpagesize())
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, int(fi.Size()-metas)), metas); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	write := func(tx *store.Tx) error { return tx.SetState(store.Target, state(1)) }
	results := make(chan error)
	for range 3 {
		go func() { results <- s.Update(write) }()
	}
	limit := time.After(time.Minute)
	for range 3 {
		select {
		case err := <-results:
			if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
				t.Errorf("Update = %v", err)
			}
		case <-limit:
			t.Fatal("a write waits for the one that panicked")
		}
	}
	if err := s.View(func(*store.Tx) error { return nil }); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("View = %v", err)
	}
	if err := s.Close(); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Close = %v", err)
	}
}

func TestAFailedUpdateChangesNothing(t *testing.T) {
	var fail error
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), func(o *store.Options) { o.Commit = func(bool) error { return fail } })
	fail = errors.New("power cut")
	if err := s.Update(func(tx *store.Tx) error { return tx.SetState(store.Target, state(1)) }); !errors.Is(err, fail) {
		t.Errorf("Update = %v", err)
	}
	err := s.View(func(tx *store.Tx) error {
		st, err := tx.State(store.Target)
		if st != nil {
			t.Errorf("state = %v, want none", st)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func FuzzRecords(f *testing.F) {
	for _, s := range []string{"", "{}", "null", `{"generation":18446744073709551615}`, `{"generation":-1}`, `{"digest":"sha256:x","components":[{}]} x`, `[[[[`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, err := range store.DecodeAll(data) {
			if err != nil && !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrTooLarge) {
				t.Errorf("decode %s: %v has no kind", name, err)
			}
		}
	})
}

// Whatever a power cut leaves of the exchange of a damaged file, the new one knows that it took another's place.
func TestReplaceCutOff(t *testing.T) {
	for name, left := range map[string]struct {
		aside bool   // the damaged file was renamed
		here  []byte // of the new file; nil: there is none
		fresh bool   // the new file was made, and nothing written to it
	}{
		"after the rename":            {aside: true},
		"after the new file was made": {aside: true, here: []byte{}},
		"before its first records":    {aside: true, fresh: true},
		"an empty file":               {here: []byte{}},
		"a file without records":      {fresh: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.db")
			if left.aside {
				if err := os.WriteFile(path+".damaged", make([]byte, 1<<16), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if left.here != nil {
				if err := os.WriteFile(path, left.here, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if left.fresh {
				db, err := bbolt.Open(path, 0o600, nil)
				if err := errors.Join(err, db.Close()); err != nil {
					t.Fatal(err)
				}
			}
			s, err := store.Open(store.Options{Path: path, Device: "press-07", Replace: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.View(func(tx *store.Tx) error {
				x, err := tx.Lost()
				if err != nil || x == nil || x.Known || x.Reason == "" || (x.File != "") != left.aside {
					return fmt.Errorf("lost = %+v, %w", x, err)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	s, err := store.Open(store.Options{Path: filepath.Join(t.TempDir(), "agent.db"), Device: "press-07", Replace: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.View(func(tx *store.Tx) error {
		x, err := tx.Lost()
		if x != nil || err != nil {
			return fmt.Errorf("a new database: lost = %+v, %w", x, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A damaged file is renamed and kept; what another process holds, or another device owns, is left alone.
func TestADamagedFileIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"garbage": func(t *testing.T, path string) {
			if err := os.WriteFile(path, make([]byte, 1<<16), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"half a mark": func(t *testing.T, path string) {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("marks")).Put([]byte("accepted"), []byte(`{"gen`)) })
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.db")
			if err := open(t, path, nil).Close(); err != nil {
				t.Fatal(err)
			}
			spoil(t, path)
			o := store.Options{Path: path, Device: "press-07", Replace: time.Now}
			s, err := store.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path + ".damaged"); err != nil {
				t.Error(err)
			}
			if _, err := store.Open(o); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("second Open = %v, want a conflict", err)
			}
			low, high := store.State{Digest: digest.FromString("a"), Generation: 6}, store.State{Digest: digest.FromString("b"), Generation: 7}
			if err := s.Update(func(tx *store.Tx) error {
				x, err := tx.Lost()
				if err != nil || x == nil || x.Known || x.File != path+".damaged" || x.Reason == "" {
					return fmt.Errorf("lost = %+v, %w", x, err)
				}
				x.Known, x.Floor = true, 7
				return tx.SetLost(x)
			}); err != nil {
				t.Fatal(err)
			}
			if err := s.Update(func(tx *store.Tx) error { return tx.SetState(store.Accepted, low) }); !errors.Is(err, fault.ErrRollback) {
				t.Errorf("an older generation: %v, want a rollback", err)
			}
			if err := s.Update(func(tx *store.Tx) error { return tx.SetState(store.Accepted, high) }); err != nil {
				t.Errorf("the same generation: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			o.Device = "other"
			if _, err := store.Open(o); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("Open for another device = %v, want a conflict", err)
			}
		})
	}
}
