package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// restart is one by hand.
type restart struct {
	ctx    context.Context
	chosen []status.Container // at the end as they are then
	by     string
	before map[string]string // by container id: its [runOf]; nil: it has not begun
	err    error
	reply  chan<- *restart // has room for one
}

// Restart stops the containers that targets mean, as [status.Select] takes them, starts them again, and waits until they have started. One that
// does not run is started without the pause that it may be in, as soon as what it depends on is up. by is the person who wants it.
// fault.ErrConflict: a container is not created yet, is about to be removed, also meanwhile, or depends on one that is not up.
// fault.ErrTemporary: it could not be stopped or started; that is tried again.
func (a *Agent) Restart(ctx context.Context, targets []string, by string) ([]status.Container, error) {
	if len(targets) == 0 {
		return nil, fmt.Errorf("restart: no container is named: %w", fault.ErrInvalid)
	}
	chosen, err := status.SelectAll(a.Containers(), targets)
	if err != nil {
		return nil, fmt.Errorf("restart: %w", err)
	}
	r, err := await(ctx, a, func(l *loop, reply chan<- *restart) {
		l.restarts = append(l.restarts, &restart{ctx: ctx, chosen: chosen, by: by, reply: reply})
	})
	if err == nil {
		err = r.err
	}
	if err != nil {
		return nil, err
	}
	return r.chosen, nil
}

// beginRestarts has the next plan do what was asked for since the last look at the containers.
func (l *loop) beginRestarts(now time.Time) {
	for _, r := range l.restarts {
		if r.before == nil && r.ctx.Err() == nil {
			r.err = l.beginRestart(now, r)
		}
	}
}

func (l *loop) beginRestart(now time.Time, r *restart) error {
	ids, before, seen := map[string]bool{}, map[string]string{}, plan.ByID(l.sight.seen)
	for _, c := range r.chosen {
		if c.State == status.Missing || !l.needs(c.ID) {
			return notToStay(c)
		}
		ids[c.ID], before[c.ID] = true, runOf(seen[c.ID])
	}
	if err := plan.RestartNow(now, l.targetResolved, l.sight.seen, l.sup, l.p, ids); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	r.before = before
	for _, c := range r.chosen {
		l.log.Info("restart by hand", "container", c.ID, "by", r.by)
	}
	return nil
}

// restarted reports whether a restart is over.
func (l *loop) restarted(r *restart) bool {
	if r.err == nil {
		r.err = r.ctx.Err()
	}
	if r.err != nil {
		return true
	}
	if r.before == nil || l.sight.look || l.sight.looking != nil {
		return false
	}
	over, seen := true, plan.ByID(l.sight.seen)
	for _, c := range r.chosen {
		if !l.needs(c.ID) {
			r.err = notToStay(c)
			return true
		}
		_, busy := l.sup.Busy[c.ID]
		_, stops := l.sup.Restarting[c.ID]
		o := seen[c.ID]
		old := runOf(o) == r.before[c.ID]
		if !busy && !stops && o.ID != "" && o.Status != workload.Created && !old {
			continue
		}
		over = false
		failed := l.sup.Retries[plan.Step{Verb: plan.Start, Container: c.ID}.Key()]
		if old && failed.Failures == 0 {
			failed = l.sup.Retries[plan.Step{Verb: plan.Stop, Container: c.ID}.Key()]
		}
		if failed.Failures > 0 {
			r.err = fault.WithHint(fmt.Errorf("restart: %s: %s: %w", c.Path(), failed.Message, fault.ErrTemporary), "it is tried again: longshore-agent ps")
			return true
		}
	}
	if !over {
		return false
	}
	r.chosen = slices.DeleteFunc(slices.Clone(l.Containers()), func(c status.Container) bool { _, ok := r.before[c.ID]; return !ok })
	return true
}

// needs reports whether a container is to stay.
func (l *loop) needs(id string) bool {
	_, _, c := l.targetResolved.Container(id)
	return c != nil
}

func notToStay(c status.Container) error {
	return fmt.Errorf("restart: %s is about to be created or removed: %w", c.Path(), fault.ErrConflict)
}

// runOf names the run of a container, or the end of its last one.
func runOf(o workload.Observation) string { return o.Run + o.End }
