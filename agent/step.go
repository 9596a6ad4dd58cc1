package agent

import (
	"context"
	"errors"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Limits of one step. A stop waits for the container's own grace period.
const (
	stepLimit = 3 * time.Minute
	stopLimit = 15 * time.Minute
	slowStep  = 30 * time.Second // is told
)

// step does one step and brings the result to the loop.
func (l *loop) step(st Step) {
	err := l.perform(st)
	l.post(func(l *loop) {
		delete(l.sup.Busy, st.Subject())
		l.look = true
		if err == nil {
			l.sup.done(st)
			l.tell(st)
			return
		}
		r := l.sup.fail(l.o.Now(), st, err, l.p)
		if st.Verb == Create && errors.Is(err, fault.ErrNotFound) {
			l.pull.again()
		}
		if r.Failures&(r.Failures-1) == 0 { // the first, and ever fewer of those that follow
			l.log.Error("a step did not succeed; it is tried again", "step", st.Verb, "project", st.Project, "container", st.Container, "tries", r.Failures, "err", err)
		}
	})
}

func (l *loop) perform(st Step) error {
	limit := stepLimit
	if st.Verb == Stop {
		limit = stopLimit
	} else {
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	slow := time.AfterFunc(slowStep, func() {
		l.log.Warn("a step takes long", "step", st.Verb, "project", st.Project, "container", st.Container, "so far", slowStep)
	})
	defer slow.Stop()
	rt := l.o.Runtime
	switch st.Verb {
	case Prepare:
		return rt.Prepare(ctx, st.spec)
	case Create:
		return rt.Create(ctx, st.spec, st.unit)
	case Start:
		return rt.Start(ctx, st.spec, st.unit)
	case Stop:
		return rt.Stop(ctx, st.Container)
	case Remove:
		return rt.Remove(ctx, st.Container)
	case Switch:
		return rt.Switch(ctx, st.Project, st.unit.Service.Name, st.Container)
	case Leave:
		return rt.Leave(ctx, st.Container)
	case Teardown:
		return rt.Teardown(ctx, st.Project)
	}
	return errors.New("agent: unknown step " + string(st.Verb))
}

// tell logs what changed on the device: one line a change.
func (l *loop) tell(st Step) {
	l.did(st)
	switch st.Verb {
	case Start:
		l.log.Info("started", "container", st.Container, "project", st.Project, "restarts", l.sup.Containers[st.Container].Total)
	case Switch:
		l.log.Info("the service's address leads to the new container", "container", st.Container, "project", st.Project)
	case Stop, Remove, Teardown:
		l.log.Info(map[Verb]string{Stop: "stopped", Remove: "removed", Teardown: "took down"}[st.Verb], "container", st.Container, "project", st.Project)
	default:
		l.log.Debug("done", "step", st.Verb, "container", st.Container, "project", st.Project)
	}
}
