package rollout_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// A wave whose devices are being published, one after the other, ends when somebody else halts or undoes the rollout.
func TestWaveThatIsTaken(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(context.Context, rollout.Config) error
		tell string
		want func(map[uint64]int) bool
	}{
		{"halted", func(ctx context.Context, k rollout.Config) error {
			_, err := rollout.Halt(ctx, k, "lunch")
			return err
		}, "was ended by machine-2: halted: lunch", func(by map[uint64]int) bool { return by[2] >= 4 && by[2] <= 6 && by[1] == 20-by[2] }},
		{"undone", func(ctx context.Context, k rollout.Config) error {
			run, err := rollout.Undo(ctx, k, "bad")
			if err != nil {
				return err
			}
			if err := run.Go(ctx); !errors.Is(err, fault.ErrRejected) {
				return err
			}
			return nil
		}, "", func(by map[uint64]int) bool { return by[2] == 0 && by[3] >= 4 && by[3] <= 6 && by[1] == 20-by[3] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				began := make(chan struct{})
				var n atomic.Int64
				s.m.Cut = func(repository, tag string) error {
					if repository != fleettest.Base+"/state" || tag != "" {
						return nil
					}
					if n := n.Add(1); n == 4 { // of the wave of nine; the other process begins while this one is on its way
						close(began)
					}
					if n.Load() >= 4 {
						<-time.After(time.Second)
					}
					return nil
				}
				ended := make(chan error, 1)
				k := s.conduct()
				run, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), k, fleet.Options{Concurrency: 1}, rollout.Start{})
				if err != nil {
					t.Fatal(err)
				}
				go func() { ended <- run.Go(t.Context()) }()
				<-began
				if err := c.do(t.Context(), s.conduct()); err != nil {
					t.Fatal(err)
				}
				err = <-ended
				var text string
				if err != nil {
					text = err.Error()
				}
				if err == nil || errors.Is(err, fault.ErrTemporary) || !strings.Contains(text, c.tell) {
					t.Errorf("the run that published: %v", err)
				}
				if by := s.generations(); !c.want(by) {
					t.Errorf("devices by generation: %v\n%s", by, s.lines())
				}
				if r := s.record(); r.Phase != artifacts.RolloutHalted && r.Phase != artifacts.RolloutRolledBack {
					t.Errorf("%s", r.Phase)
				}
			})
		})
	}
}
