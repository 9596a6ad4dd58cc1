package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Limits of steps. A stop waits for the container's own grace period.
const (
	stepsAtOnce = 8
	stepLimit   = 3 * time.Minute
	stopLimit   = 15 * time.Minute
	// preStartLimit is that of a start whose containers that come before take their time: a migration may last for hours. It
	// ends at once when the container is not wanted any more, as when an update runs into its component's timeout.
	preStartLimit = 24 * time.Hour
	slowStep      = 30 * time.Second // is logged
)

// steps are those in progress. It is part of the loop.
type steps struct {
	slots chan struct{}                 // taken by all but those that mostly wait
	long  map[string]context.CancelFunc // by container id: starts in progress that may take long
	ended int                           // since the start
	wake  time.Time                     // from the last plan
}

// step does one step and brings the result to the loop.
func (l *loop) step(ctx context.Context, st plan.Step) {
	begun := l.o.Now()
	err := l.perform(ctx, st)
	if errors.Is(err, syscall.ENOSPC) && (st.Verb == plan.Remove || st.Verb == plan.Teardown) {
		// containerd needs space to write that something is gone.
		err = l.o.Content.Yield(func() error { return l.perform(ctx, st) })
	}
	l.send(func(l *loop) {
		delete(l.sup.Busy, st.Subject())
		delete(l.steps.long, st.Container)
		l.steps.ended++
		if err == nil {
			l.sup.Done(st)
			l.logStep(st, begun)
			if !l.foreseen(st) {
				l.sight.look = true
			}
			return
		}
		l.sight.look = true
		if st.Verb == plan.Stop {
			l.reported(st.Container) // it may have ended all the same
		}
		r := l.sup.Fail(l.o.Now(), st, err)
		if errors.Is(err, workload.ErrImageGone) {
			l.refill.repair = true
		}
		if r.Failures&(r.Failures-1) == 0 { // the first, and ever fewer of those that follow
			level, text := slog.LevelError, "a step did not succeed; it is tried again"
			if r.Moves {
				level, text = slog.LevelInfo, "a step waits for what a container holds that is to go"
			}
			l.log.Log(l.ctx, level, text, "step", st.Verb, "project", st.Project, "container", st.Container, "tries", r.Failures, "err", err)
		}
	})
}

// foreseen brings what is known of containers up to date after a step, without a look, which would hold up the steps that follow; false: that needs
// one. How a run has ended counts only for a container that is to stay.
func (l *loop) foreseen(st plan.Step) bool {
	switch st.Verb {
	case plan.Prepare:
		return true
	case plan.Create:
		l.sight.seen = l.sight.seen.With(st.Spec, st.Unit)
		return true
	case plan.Stop, plan.Remove: // its end is reported: the next look must not take it for one of its own
		l.sight.seen = l.sight.seen.Stopped(st.Container, endReported)
		return st.Verb == plan.Stop && !l.needs(st.Container)
	}
	return false
}

// begin does a step beside the loop.
func (l *loop) begin(st plan.Step) {
	l.sup.Busy[st.Subject()] = st.Verb
	ctx, cancel := context.WithCancel(l.ctx)
	if st.Verb == plan.Start && st.Waits() {
		l.steps.long[st.Container] = cancel
	}
	l.background(func() {
		defer cancel()
		l.step(ctx, st)
	})
}

// giveUp ends the starts of containers that are not wanted any more.
func (l *loop) giveUp() {
	for id, cancel := range l.steps.long {
		if !l.needs(id) {
			cancel()
		}
	}
}

func (l *loop) perform(ctx context.Context, st plan.Step) error {
	limit := stepLimit
	switch {
	case st.Verb == plan.Stop:
		limit = stopLimit
	case st.Waits():
		limit = preStartLimit
	}
	if !st.Waits() { // those that wait would keep others from beginning
		select {
		case l.steps.slots <- struct{}{}:
			defer func() { <-l.steps.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	slow := time.AfterFunc(slowStep, func() {
		l.log.Warn("a step takes long", "step", st.Verb, "project", st.Project, "container", st.Container, "so far", slowStep)
	})
	defer slow.Stop()
	err := l.call(ctx, st)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return fmt.Errorf("it did not end within %v, the container runtime or the disk is slow: %w", limit, err)
	}
	return err
}

// call does what a step is to do.
func (l *loop) call(ctx context.Context, st plan.Step) error {
	rt := l.o.Runtime
	switch st.Verb {
	case plan.Prepare:
		return rt.Prepare(ctx, st.Spec)
	case plan.Create:
		err := rt.Create(ctx, st.Spec, st.Unit)
		if err == nil && st.Ahead {
			if early := rt.PrepareStart(ctx, st.Spec, st.Unit); early != nil { // its start meets that again, or not
				l.log.Debug("a start could not be prepared", "container", st.Container, "err", early)
			}
		}
		return err
	case plan.Start:
		return rt.Start(ctx, st.Spec, st.Unit)
	case plan.Stop:
		return rt.Stop(ctx, st.Container)
	case plan.Remove:
		return rt.Remove(ctx, st.Container)
	case plan.Activate:
		return rt.Activate(ctx, st.Project, st.Unit.Service.Name, st.Container)
	case plan.Deactivate:
		return rt.Deactivate(ctx, st.Container)
	case plan.Teardown:
		return rt.Teardown(ctx, st.Project)
	}
	return errors.New("agent: unknown step " + string(st.Verb))
}

// logStep logs what changed on the device: one line a change.
func (l *loop) logStep(st plan.Step, begun time.Time) {
	l.did(st, begun)
	switch st.Verb {
	case plan.Create: // which makes the volumes that are missing
		l.volumes.stale = true
	case plan.Start:
		if st.Resume {
			l.log.Info("resumed", "container", st.Container, "project", st.Project)
			break
		}
		l.log.Info("started", "container", st.Container, "project", st.Project, "restarts", l.sup.Containers[st.Container].Total)
	case plan.Activate:
		l.log.Info("the service's address leads to the new container", "container", st.Container, "project", st.Project)
	case plan.Stop, plan.Remove, plan.Teardown:
		if len(l.disks.removedFirst) > 0 && st.Verb != plan.Stop {
			l.pull.nudge() // there is room now
		}
		l.log.Info(map[plan.Verb]string{plan.Stop: "stopped", plan.Remove: "removed", plan.Teardown: "took down"}[st.Verb], "container", st.Container, "project", st.Project)
		if st.Verb == plan.Teardown {
			l.reportKeptVolumes(st.Project)
		}
	default:
		l.log.Debug("done", "step", st.Verb, "container", st.Container, "project", st.Project)
	}
}
