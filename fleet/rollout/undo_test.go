package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// undo undoes the rollout, and wants that it is.
func (s *stage) undo() *rollout.Run {
	s.t.Helper()
	run, err := rollout.Undo(s.t.Context(), s.conduct(), "by hand")
	if err == nil {
		err = run.Go(s.t.Context())
	}
	if !errors.Is(err, fault.ErrRejected) || s.record().Phase != artifacts.RolloutRolledBack {
		s.t.Fatalf("undo: %v, %s\n%s", err, s.record().Phase, s.lines())
	}
	return run
}

// A device that was left out has what it had, and nobody is publishing for it: nobody waits for it.
func TestUndoDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.m.Refused["press-003"] = true
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		s.want("one is left out", map[uint64]int{1: 1, 2: 19})
		began := time.Now()
		s.undo()
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
		s.want("undone", map[uint64]int{1: 1, 3: 19})
		if !strings.Contains(s.lines(), "rolled back: 20 devices") {
			t.Errorf("said:\n%s", s.lines())
		}
	})
}

// Where a wave went back by itself, the one before it kept the release, and can be undone, too.
func TestUndoAfterAWaveWentBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.devices.sick = func(d artifacts.DeviceID, g uint64) bool { return g == 2 && d != "press-000" }
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) {
			t.Fatal(err)
		}
		s.want("rolled back", map[uint64]int{1: 10, 2: 1, 3: 9})
		l := s.conduct().Store
		if needs, err := l.Needs(t.Context()); err != nil || needs == nil {
			t.Errorf("needs %v, %v", needs, err)
		}
		s.undo()
		s.want("undone", map[uint64]int{1: 10, 3: 10})
		if needs, err := l.Needs(t.Context()); err != nil || needs != nil {
			t.Errorf("needs %v, %v", needs, err)
		}
		if _, err := rollout.Undo(t.Context(), s.conduct(), ""); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("again: %v", err)
		}
	})
}

// A device whose tag somebody has deleted keeps what it has, and that is said.
func TestUndoWithoutATag(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		delete(s.m.Named, fleettest.Base+"/state:press-003")
		if run := s.undo(); run.Kept() != 1 || !strings.Contains(s.lines(), "press-003: its tag was deleted") {
			t.Errorf("%d kept\n%s", run.Kept(), s.lines())
		}
	})
}

// Who halts a rollout on its way back wants nothing more of it published.
func TestUndoThatIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		began := make(chan struct{})
		var n atomic.Int64
		s.m.Cut = func(repository, tag string) error {
			if repository != fleettest.Base+"/state" || tag != "" {
				return nil
			}
			if n.Add(1) == 4 {
				close(began)
			}
			<-time.After(time.Second)
			return nil
		}
		k := s.conduct()
		k.Parallel = 1
		run, err := rollout.Undo(t.Context(), k, "bad")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- run.Go(t.Context()) }()
		<-began
		if _, err := rollout.Halt(t.Context(), s.conduct(), "lunch"); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "halted: lunch") {
			t.Errorf("the run that went back: %v", err)
		}
		if by := s.generations(); by[3] < 4 || by[3] > 7 {
			t.Errorf("devices by generation: %v", by)
		}
		s.m.Cut = nil
		s.undo()
		s.want("undone", map[uint64]int{3: 20})
	})
}

// Whatever write of it breaks, a halt that is repeated is done: who runs the rollout sees it by the tag.
func TestHaltInDoubt(t *testing.T) {
	for write := range 4 {
		bubble(t, func(t *testing.T, s *stage) {
			done := make(chan error, 1)
			go func() { done <- s.roll(t.Context(), rollout.Start{}) }()
			<-time.After(10 * time.Minute) // the canary soaks
			s.fails(1, write, nil)         // the next one that is written
			if _, err := rollout.Halt(t.Context(), s.conduct(), "lunch"); !errors.Is(err, fault.ErrTemporary) {
				t.Errorf("write %d: %v", write, err)
			}
			_, err := rollout.Halt(t.Context(), s.conduct(), "lunch")
			if write == 3 { // all was done, and the answer lost
				if !errors.Is(err, fault.ErrConflict) {
					t.Errorf("write %d: again: %v", write, err)
				}
			} else if err != nil {
				t.Errorf("write %d: again: %v", write, err)
			}
			if err := <-done; !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "halted: lunch") {
				t.Errorf("write %d: who ran it: %v", write, err)
			}
			s.want(fmt.Sprintf("write %d", write), map[uint64]int{1: 19, 2: 1})
			s.history()
			if err := s.proceed(); err != nil {
				t.Errorf("write %d: continue: %v", write, err)
			}
			s.want("continued", map[uint64]int{2: 20})
		})
	}
}

// verified wants each publication to say by whose check somebody else's may be followed.
type verified struct {
	fleet.Publisher
	t     *testing.T
	tags  map[string]bool // of the publications
	asked *string         // what the ledger's check was asked of last
}

func (v verified) Publish(ctx context.Context, repository string, a *artifacts.Artifact, p fleet.Publication) error {
	d := digest.FromString(p.HistoryTag)
	switch {
	case p.Verify == nil:
		v.t.Errorf("%s:%s: nobody is asked", repository, p.HistoryTag)
	case p.Verify(ctx, d) != nil || *v.asked != repository+"@"+d.String():
		v.t.Errorf("%s:%s: %s is asked for", repository, p.HistoryTag, *v.asked)
	}
	v.tags[p.Tag] = true
	return v.Publisher.Publish(ctx, repository, a, p)
}

// Records and what devices get back follow nothing that nobody who may publish has signed.
func TestPublicationsAreVerified(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		k, tags, asked := s.conduct(), map[string]bool{}, ""
		k.Parallel = 1
		k.Store.Verify = func(_ context.Context, repository string, d digest.Digest) error {
			asked = repository + "@" + d.String()
			return nil
		}
		k.Store.To = verified{k.Store.To, t, tags, &asked}
		o := fleet.Options{Concurrency: 1, Verify: k.Store.Verify}
		run, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), k, o, rollout.Start{})
		if err == nil {
			err = run.Go(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		published := len(tags)
		clear(tags)
		back, err := rollout.Undo(t.Context(), k, "by hand")
		if err == nil {
			err = back.Go(t.Context())
		}
		if !errors.Is(err, fault.ErrRejected) || published != 21 || len(tags) != 21 {
			t.Errorf("undo: %v; %d tags published, %d undone, want 20 devices and the record each", err, published, len(tags))
		}
	})
}

// Without the key that signed the former states, no device would get its own again, and the rollout would pass for rolled back.
func TestUndoWithoutTheFormerKey(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		former := map[digest.Digest]bool{}
		for _, target := range s.record().Targets {
			former[target.Former] = true
		}
		k := s.conduct()
		k.Loader = fleet.NewLoader(s.m, fleet.Options{})
		k.Store.Verify = func(_ context.Context, _ string, d digest.Digest) error {
			if former[d] {
				return fmt.Errorf("no trusted key has signed it: %w", fault.ErrUnsigned)
			}
			return nil
		}
		if _, err := rollout.Undo(t.Context(), k, "by hand"); !errors.Is(err, fault.ErrUnsigned) || !strings.Contains(fault.Hint(err), "--verify-key") {
			t.Errorf("undo: %v, want ErrUnsigned and a hint", err)
		}
		s.want("nothing is published", map[uint64]int{2: 20})
		s.undo()
		s.want("undone", map[uint64]int{3: 20})
	})
}

// failsOnce is a registry that is away when a manifest is read for the first time.
type failsOnce struct {
	fleet.Registry
	of     func() digest.Digest // "": none yet
	failed *atomic.Bool
}

func (f failsOnce) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if d == f.of() && f.failed.CompareAndSwap(false, true) {
		return ocispec.Descriptor{}, nil, fmt.Errorf("fetch %s: connection refused: %w", d, fault.ErrTemporary)
	}
	return f.Registry.Manifest(ctx, repository, d)
}

// A way back that was cut off between two tags is gone on with, also where the registry is away at the first look at it: that
// nobody could look is no sign of somebody else.
func TestUndoCouldNotLook(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		s.m.Cut = func(_, tag string) error {
			if tag != "press-003" {
				return nil
			}
			s.m.Cut = nil
			return fmt.Errorf("the connection broke: %w", fault.ErrTemporary)
		}
		k := s.conduct()
		k.Parallel = 1
		var failed atomic.Bool
		k.Store.From = failsOnce{k.Store.From, func() digest.Digest {
			s.m.Lock()
			defer s.m.Unlock()
			return s.m.Named[fleettest.Base+"/state:press-003.v3"]
		}, &failed}
		run, err := rollout.Undo(t.Context(), k, "by hand")
		if err == nil {
			err = run.Go(t.Context())
		}
		if !errors.Is(err, fault.ErrRejected) || run.Kept() != 0 || !failed.Load() {
			t.Errorf("undo: %v, %d kept, failed once: %v\n%s", err, run.Kept(), failed.Load(), s.lines())
		}
		s.want("undone", map[uint64]int{3: 20})
	})
}
