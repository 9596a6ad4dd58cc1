package rollout_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/testenv"
)

// fails lets the registry go away at one write of one revision's publication, and then for so many more calls of a kind.
// The writes are of blobs and manifest, the history tag, the moving tag; 3 is when all are done.
func (s *stage) fails(revision, write int, then map[string]int) (happened func() bool) {
	writes, at := 0, (revision-1)*4+write
	s.m.Cut = func(repository, _ string) error {
		if !strings.HasSuffix(repository, "/rollouts") {
			return nil
		}
		if writes++; writes != at+1 {
			return nil
		}
		s.m.Lock()
		defer s.m.Unlock()
		s.m.Away = then
		return fmt.Errorf("the connection broke: %w", fault.ErrTemporary)
	}
	return func() bool { return writes > at }
}

// history checks that every revision follows the one before, and that the tag names the last; how many there are.
func (s *stage) history() int {
	s.t.Helper()
	for n := 1; ; n++ {
		d, ok := s.m.Named[fmt.Sprintf("%s/rollouts:acme-plant.v%d", fleettest.Base, n)]
		if !ok {
			if named := s.m.Named[fleettest.Base+"/rollouts:acme-plant"]; named != s.m.Named[fmt.Sprintf("%s/rollouts:acme-plant.v%d", fleettest.Base, n-1)] {
				s.t.Errorf("the tag names %s, which is not revision %d", named, n-1)
			}
			return n - 1
		}
		x, err := artifacts.OpenRollout(s.m.Manifests[d])
		if err != nil {
			s.t.Fatal(err)
		}
		if before := s.m.Named[fmt.Sprintf("%s/rollouts:acme-plant.v%d", fleettest.Base, n-1)]; int(x.Revision) != n || x.Previous != before {
			s.t.Errorf("v%d is revision %d after %s, want %s", n, x.Revision, x.Previous, before)
		}
	}
}

// Whatever write of whatever revision breaks, and however long the registry is away then, the rollout goes on by itself
// as if nothing had been.
func TestRolloutInDoubt(t *testing.T) {
	revisions := 0
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		revisions = s.history()
	})
	for revision := 2; revision <= revisions; revision++ { // the first one is begun again by hand
		for write := range 4 {
			if (revision+2*write)%3 != 0 && !testenv.Nightly() { // what is left has each revision, each write, and each "then"
				continue
			}
			then := []map[string]int{nil, {"resolve": 3}, {"manifest": 2, "publish": 2}}[(revision+write)%3]
			bubble(t, func(t *testing.T, s *stage) {
				happened := s.fails(revision, write, then)
				if err := s.roll(t.Context(), rollout.Start{}); err != nil || !happened() {
					t.Fatalf("revision %d, write %d, then %v: %v, %v\n%s", revision, write, then, happened(), err, s.lines())
				}
				s.want("done", map[uint64]int{2: 20})
				states := 0
				for _, tag := range s.m.Published {
					if strings.HasPrefix(tag, "press-") {
						states++
					}
				}
				if got := s.history(); states != 20 || got != revisions {
					t.Errorf("revision %d, write %d, then %v: %d publications of states, %d revisions, want %d\n%s", revision, write, then, states, got, revisions, s.lines())
				}
			})
		}
	}
}

// Somebody else who takes the rollout up while a revision is in doubt has it.
func TestRolloutInDoubtAmongOthers(t *testing.T) {
	for write := range 4 {
		bubble(t, func(t *testing.T, s *stage) {
			s.fails(3, write, nil)
			broken := s.m.Cut
			s.m.Cut = func(repository, tag string) error {
				err := broken(repository, tag)
				if err != nil {
					s.m.Cut = nil
					if _, halted := rollout.Halt(t.Context(), s.conduct(), "lunch"); halted != nil {
						t.Errorf("write %d: halt: %v", write, halted)
					}
				}
				return err
			}
			if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "ended by machine-2: halted: lunch") {
				t.Errorf("write %d: %v\n%s", write, err, s.lines())
			}
			if err := s.proceed(); err != nil {
				t.Errorf("write %d: continue: %v", write, err)
			}
			s.want("continued", map[uint64]int{2: 20})
			s.history()
		})
	}
}

// What a step has found out is not lost when it cannot be kept: a device that somebody else has published for stays left
// out, and the time in which nobody could be asked does not count as soaking.
func TestRolloutForgetsNothingInDoubt(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		hand := fleettest.Planned(t, s.m, fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 7"), fleet.Options{Devices: func(d *fleet.Device) bool { return d.ID == "press-000" }})
		s.fails(3, 0, nil)
		broken := s.m.Cut
		s.m.Cut = func(repository, tag string) error {
			if hand != nil && tag == "acme-plant.v2" {
				by := hand
				hand = nil
				if _, err := by.Publish(t.Context(), s.m, nil); err != nil {
					t.Error(err)
				}
			}
			return broken(repository, tag)
		}
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Errorf("%v\n%s", err, s.lines())
		}
		if r := s.record(); len(r.Waves[0].Left) != 1 || strings.Count(s.lines(), "press-000 is left out") != 1 {
			t.Errorf("%+v\n%s", r.Waves, s.lines())
		}
	})
	for write := range 4 {
		bubble(t, func(t *testing.T, s *stage) {
			began := time.Now()
			done := make(chan error, 1)
			go func() { done <- s.roll(t.Context(), rollout.Start{}) }()
			time.Sleep(10 * time.Minute) // the canary soaks since 9
			s.devices.set(fmt.Errorf("connection refused: %w", fault.ErrTemporary))
			time.Sleep(3 * time.Hour)
			s.fails(1, write, nil) // the next one that is written
			s.devices.set(nil)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < 3*time.Hour+92*time.Minute || took > 3*time.Hour+97*time.Minute {
				t.Errorf("write %d: took %v\n%s", write, took, s.lines())
			}
		})
	}
}
