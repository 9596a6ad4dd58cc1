package rollout_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// rewrite makes the next revision of the fleet's rollout, as anybody can who may write to a registry where nobody signs.
func (s *stage) rewrite(change func(*artifacts.Rollout)) {
	s.t.Helper()
	l := s.conduct().Store
	rec, err := l.Read(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	r := *rec.Rollout
	r.Targets = append([]artifacts.RolloutTarget{}, r.Targets...)
	change(&r)
	a, err := artifacts.PackRollout(artifacts.RolloutOptions{Rollout: &r, Revision: rec.Revision + 1, Previous: rec.Digest, Created: r.Changed})
	if err != nil {
		s.t.Fatal(err)
	}
	s.m.Push(l.Repository(), artifacts.HistoryTag(r.Fleet, rec.Revision+1), a)
	s.m.Push(l.Repository(), r.Fleet, a)
}

// asked is a registry that knows which repositories it was asked for.
type asked struct {
	*fleettest.Registry
	mu sync.Mutex
	of map[string]bool
}

func (a *asked) note(repository string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[repository] = true
}

func (a *asked) Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	a.note(repository)
	return a.Registry.Resolve(ctx, repository, tag)
}

func (a *asked) Publish(ctx context.Context, repository string, x *artifacts.Artifact, p fleet.Publication) error {
	a.note(repository)
	return a.Registry.Publish(ctx, repository, x, p)
}

// A record that has states elsewhere than the files leads nobody there: not an undo, nor one that is gone on with, and
// nothing is written.
func TestUndoStaysAtHome(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		begun := s.files
		move := func(device artifacts.DeviceID, to string) {
			s.rewrite(func(r *artifacts.Rollout) {
				for i := range r.Targets {
					if r.Targets[i].Device == device {
						r.Targets[i].Repository = to
					}
				}
			})
		}
		at := &asked{Registry: s.m, of: map[string]bool{}}
		conduct := func() rollout.Config {
			k := s.conduct()
			f, err := fleet.Read(s.files)
			if err != nil {
				t.Fatal(err)
			}
			k.Store = rollout.Of(f, at, at, func(_ context.Context, repository string, _ digest.Digest) error {
				at.note(repository)
				return nil
			})
			return k
		}
		refused := func(what, where, want string) {
			t.Helper()
			revision := s.history()
			_, err := rollout.Undo(t.Context(), conduct(), "by hand")
			if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), want) || fault.Hint(err) == "" || at.of[where] || s.history() != revision {
				t.Errorf("%s: %v; asked for %v", what, err, at.of)
			}
		}
		for _, elsewhere := range []string{"evil.example/plant/state", fleettest.Base + "/other"} {
			move("press-003", elsewhere)
			refused("of the files", elsewhere, "has the states of press-003 in "+elsewhere+", and the files have them in "+fleettest.Base+"/state")
		}
		s.files = fleettest.With(begun, fleet.File, "  - {id: press-003, labels: {line: d}}\n", "")
		move("press-003", "evil.example/plant/state")
		refused("of the files no more", "evil.example/plant/state", "the files do not have this device, and their registry is harbor.acme.example")

		// Somebody writes it on the way back; it is not gone on with, neither by who was on the way.
		move("press-003", fleettest.Base+"/state")
		run, err := rollout.Undo(t.Context(), conduct(), "by hand")
		if err != nil {
			t.Fatal(err)
		}
		move("press-003", "evil.example/plant/state") // with the claim of the run
		if err := run.Go(t.Context()); !errors.Is(err, fault.ErrConflict) || at.of["evil.example/plant/state"] {
			t.Errorf("while it went back: %v", err)
		}
		revision := s.history()
		if _, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), conduct(), fleet.Options{}, rollout.Start{}); !errors.Is(err, fault.ErrConflict) || s.history() != revision {
			t.Errorf("taken up: %v", err)
		}
		move("press-003", fleettest.Base+"/old") // the states of fleets move
		s.m.Lock()
		for _, tag := range []string{"press-003", "press-003.v1", "press-003.v2"} {
			s.m.Named[fleettest.Base+"/old:"+tag] = s.m.Named[fleettest.Base+"/state:"+tag]
		}
		s.m.Unlock()
		if run, err = rollout.Undo(t.Context(), conduct(), "by hand"); err == nil {
			err = run.Go(t.Context())
		}
		if !errors.Is(err, fault.ErrRejected) || run.Kept() != 0 || !at.of[fleettest.Base+"/old"] {
			t.Errorf("a device that left the files: %v\n%s", err, s.lines())
		}
	})
}
