package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

var (
	// errRestarted ends the wait for containers.
	errRestarted = errors.New("all containers were restarted")
	// errUnseen: what the loop knows of containers may be older than their last start.
	errUnseen = errors.New("the containers are being looked at")
)

const unseenPause = 50 * time.Millisecond // between two tries while containers are looked at

// Restart stops the containers that targets mean, as [status.Select] takes them, starts them again, and waits until they have started. One that
// does not run is started without the pause that it may be in, as soon as what it depends on is up. by is the person who wants it.
// fault.ErrConflict: a container is not created yet, is about to be removed, was removed meanwhile, or depends on one that is not up.
func (a *Agent) Restart(ctx context.Context, targets []string, by string) ([]status.Container, error) {
	if len(targets) == 0 {
		return nil, fmt.Errorf("restart: no container is named: %w", fault.ErrInvalid)
	}
	chosen, err := status.SelectAll(a.Containers(), targets)
	if err != nil {
		return nil, fmt.Errorf("restart: %w", err)
	}
	waits := map[string]bool{}
	begin := func(l *loop) (before uint64, err error) { // the number of the newest event: the clock may jump
		if l.sight.look || l.sight.looking != nil {
			return 0, errUnseen
		}
		if err = l.restart(chosen, waits, by); err == nil {
			err = a.Events(ctx, status.EventRequest{}, func(e status.Event) error { before = e.Sequence; return nil })
		}
		return before, err
	}
	before, err := ask(ctx, a, begin)
	for errors.Is(err, errUnseen) {
		if err = delay.For(ctx, unseenPause); err == nil {
			before, err = ask(ctx, a, begin)
		}
	}
	if err != nil {
		return nil, err
	}
	err = a.Events(ctx, status.EventRequest{Follow: true}, func(e status.Event) error {
		switch {
		case e.Sequence <= before || !waits[e.Container]:
			return nil
		case e.Kind == status.EventRemoved:
			return fmt.Errorf("restart: %s was removed meanwhile: %w", e.Container, fault.ErrConflict)
		case e.Kind == status.EventStarted || e.Kind == status.EventRestarted:
			delete(waits, e.Container)
		}
		if len(waits) == 0 {
			return errRestarted
		}
		return nil
	})
	switch {
	case errors.Is(err, errRestarted):
		return a.again(ctx, chosen)
	case err == nil && ctx.Err() == nil:
		err = errStopped
	}
	return nil, errors.Join(err, ctx.Err())
}

// again are containers as they are after their restart, which the loop may not have observed yet.
func (a *Agent) again(ctx context.Context, chosen []status.Container) ([]status.Container, error) {
	seen, err := a.o.Runtime.Observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("restart: the containers have started: %w", err)
	}
	all, err := ask(ctx, a, func(l *loop) ([]status.Container, error) {
		return status.View{Target: l.targetResolved, Supervision: l.sup, Observed: plan.ByID(seen), Reported: l.told.statuses}.Containers(), nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]status.Container, 0, len(chosen))
	for _, c := range all {
		i := slices.IndexFunc(chosen, func(x status.Container) bool { return x.ID == c.ID })
		if i < 0 {
			continue
		}
		if c.Health != "" && c.Health == chosen[i].Health && c.PID != chosen[i].PID { // of the run before
			c.Health, c.Output = plan.HealthStarting, ""
		}
		out = append(out, c)
	}
	return out, nil
}

// restart has the next plan restart containers; waits are their ids.
func (l *loop) restart(chosen []status.Container, waits map[string]bool, by string) error {
	for _, c := range chosen {
		if _, _, needed := l.targetResolved.Container(c.ID); needed == nil || c.State == status.Missing {
			return fmt.Errorf("restart: %s is about to be created or removed: %w", c.Path(), fault.ErrConflict)
		}
	}
	for _, c := range chosen {
		waits[c.ID] = true
	}
	if err := plan.RestartNow(l.o.Now(), l.targetResolved, l.sight.seen, l.sup, l.p, waits); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	for _, c := range chosen {
		l.log.Info("restart by hand", "container", c.ID, "by", by)
	}
	return nil
}
