package agent

import (
	"sync/atomic"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// counts only grow while the agent runs.
type counts struct {
	polls, pollErrors atomic.Uint64
}

// about completes an event with the container that it is about.
func (l *loop) about(id string, e status.Event) status.Event {
	e.Container = id
	if d, c, x := l.targetResolved.Container(id); x != nil {
		e.Deployment, e.Component, e.Service, e.Replica = d.Name, c.Name, x.Service.Name, x.Replica
		return e
	}
	for _, o := range l.sight.seen.Containers {
		if o.ID == id {
			e.Deployment, e.Component, e.Service, e.Replica = status.NameOf(l.told.statuses, o.Deployment), o.Component, o.Service, o.Replica
		}
	}
	return e
}

// endReported stands for the end of a run that the agent itself has brought about.
const endReported = "told"

// reported has the next look not take the end of a container's run for one by itself.
func (l *loop) reported(id string) {
	for i := range l.sight.seen.Containers {
		if o := &l.sight.seen.Containers[i]; o.ID == id {
			o.End = endReported
		}
	}
}

// noticed emits which containers ended by themselves between two looks: not those that the agent is stopping.
func (l *loop) noticed(before, after workload.Observed) {
	was := plan.ByID(before)
	for _, o := range after.Containers {
		old, ok := was[o.ID]
		if !ok || o.Status != workload.Exited || old.End == o.End || old.End == endReported ||
			l.sup.Busy[o.ID] == plan.Stop {
			continue
		}
		code := o.ExitCode
		l.events.Emit(l.about(o.ID, status.Event{Kind: status.EventExited, ExitCode: &code}))
	}
}

// emitRollBack emits that a revision failed and the last good one takes its place again.
func (l *loop) emitRollBack(b store.Bad) {
	if b.Pause {
		return
	}
	l.events.Emit(status.Event{
		Kind: status.EventRolledBack, Deployment: status.NameOf(l.told.statuses, b.DeploymentID), Component: b.Source, Generation: l.good[b.DeploymentID].Record.Generation,
		Code: codes.Code(b.Code), Message: b.Message,
	})
}

// did emits a step that was done.
func (l *loop) did(st plan.Step, begun time.Time) {
	kind := map[plan.Verb]status.EventKind{plan.Create: status.EventCreated, plan.Start: status.EventStarted, plan.Stop: status.EventStopped, plan.Remove: status.EventRemoved, plan.Activate: status.EventSwitched}[st.Verb]
	if kind == "" || st.Resume {
		return
	}
	if kind == status.EventStarted && l.sup.Containers[st.Container].Total > 0 {
		kind = status.EventRestarted
	}
	l.events.Emit(l.about(st.Container, status.Event{Kind: kind, Since: begun}))
}
