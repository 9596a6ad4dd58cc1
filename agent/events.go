package agent

import (
	"context"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// EventKind names what happened. Kinds are part of the interface: programs match on them.
type EventKind string

// Kinds of events.
const (
	EventAccepted   EventKind = "accepted"    // a generation passed every check
	EventRefused    EventKind = "refused"     // a state failed one; Code says which
	EventPulled     EventKind = "pulled"      // all of a generation is on the device
	EventCommitted  EventKind = "committed"   // a generation runs completely
	EventDeployment EventKind = "deployment"  // an application's state changed; Message is the state
	EventCreated    EventKind = "created"     // container
	EventStarted    EventKind = "started"     // container, for the first time
	EventRestarted  EventKind = "restarted"   // container, again
	EventHealthy    EventKind = "healthy"     // container
	EventUnhealthy  EventKind = "unhealthy"   // container; Message is what the probe said
	EventExited     EventKind = "exited"      // container, by itself; ExitCode
	EventOOM        EventKind = "oom"         // a process of a container was killed for lack of memory
	EventStopped    EventKind = "stopped"     // container, by the agent
	EventRemoved    EventKind = "removed"     // container
	EventSwitched   EventKind = "switched"    // a service's address leads to this container from now on
	EventRolledBack EventKind = "rolled-back" // the device went back to the generation of the event; Code says why
	EventRepaired   EventKind = "repaired"    // something that was not as the agent left it is right again
	EventSource     EventKind = "source"      // the source stopped answering (Code) or answers again (none)
	EventRuntime    EventKind = "runtime"     // the runtime stopped answering (Code) or answers again (none)
	EventTrust      EventKind = "trust"       // another version of the trust policy was taken over, or was not (Code)
	EventStale      EventKind = "stale"       // what is accepted has expired (Code), or is known to be fresh again (none)
	EventSecurity   EventKind = "security"    // what an attack looks like; Code says which. Kept when the agent ends
)

// Event is one thing that happened. Only what belongs to its kind is set.
type Event struct {
	Sequence   uint64    `json:"sequence"` // grows by one; starts anew with the agent
	Time       time.Time `json:"time"`
	Kind       EventKind `json:"kind"`
	Deployment string    `json:"deployment,omitempty"` // name, or id where there is no name any more
	Component  string    `json:"component,omitempty"`
	Service    string    `json:"service,omitempty"`
	Replica    int       `json:"replica,omitempty"`
	Container  string    `json:"container,omitempty"`
	Generation uint64    `json:"generation,omitempty"`
	ExitCode   *uint32   `json:"exitCode,omitempty"`
	Code       Code      `json:"code,omitempty"`
	Message    string    `json:"message,omitempty"`

	Digest digest.Digest `json:"digest,omitempty"` // of the state, of a security event
	Count  uint64        `json:"count,omitempty"`  // of a security event of an earlier run: how often it had happened
}

// EventRequest chooses events.
type EventRequest struct {
	Kind   EventKind // "": all
	Since  time.Time // zero: all that are kept
	Follow bool      // go on until the context ends
}

const (
	// keptEvents is how many events an agent remembers: some hours of a device that is not well.
	keptEvents = 1000
	// keptSecurity is how many of these may be of kind security, in memory.
	keptSecurity = 256
	// maxEventMessage bounds what others say in an event.
	maxEventMessage = 1024
)

// EventSink takes what happens. The agent's own keeps the newest events in memory, counts them by kind, and never blocks.
type EventSink interface{ Emit(e Event) }

// eventRing is the agent's memory of events. Its zero value is not usable: see newEventRing.
type eventRing struct {
	now   func() time.Time
	mu    sync.Mutex
	kept  []Event // of kind security, of keptSecurity at most, oldest first: noise must not push them out
	ring  []Event // of keptEvents at most, oldest at next % len once full
	next  uint64  // sequence number of the next event, from 1
	more  chan struct{}
	count map[EventKind]uint64

	security map[string]uint64 // since the device's database was made, by code; never changed in place
}

var (
	_ EventSink = (*eventRing)(nil)
	_ EventSink = (*Agent)(nil)
)

func newEventRing(now func() time.Time) *eventRing {
	return &eventRing{now: now, next: 1, more: make(chan struct{}), count: map[EventKind]uint64{}}
}

// Emit keeps an event, in place of the oldest.
func (r *eventRing) Emit(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Time = r.now()
	r.keep(e)
}

// recall puts a security event of an earlier run before what happens now.
func (r *eventRing) recall(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(e)
	r.count[e.Kind]-- // it did not happen since the agent started
}

func (r *eventRing) keep(e Event) {
	if len(e.Message) > maxEventMessage {
		e.Message = e.Message[:maxEventMessage] + "…"
	}
	e.Sequence = r.next
	if e.Kind == EventSecurity {
		r.kept = append(r.kept, e)
		if len(r.kept) > keptSecurity {
			r.kept = r.kept[1:]
		}
	}
	if len(r.ring) < keptEvents {
		r.ring = append(r.ring, e)
	} else {
		r.ring[(r.next-1)%keptEvents] = e
	}
	r.next++
	r.count[e.Kind]++
	close(r.more)
	r.more = make(chan struct{})
}

// counted takes over how many security events there were.
func (r *eventRing) counted(by map[string]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.security = by
}

// after returns the kept events from sequence number first on, oldest first, the number to go on with, and what is closed
// when there are more.
func (r *eventRing) after(first uint64) ([]Event, uint64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Event
	if oldest := r.next - uint64(len(r.ring)); first < oldest {
		for _, e := range r.kept {
			if e.Sequence >= first && e.Sequence < oldest {
				out = append(out, e)
			}
		}
		first = oldest
	}
	for n := first; n < r.next; n++ {
		out = append(out, r.ring[(n-1)%keptEvents])
	}
	return out, r.next, r.more
}

// Events calls tell with what happened, oldest first. With Follow it goes on until ctx ends, which is no error, or tell
// fails. An agent remembers the newest thousand events since it started, and before them the security events that were kept
// from earlier on; a follower that is slower than they come misses the
// oldest, which the sequence numbers show.
func (a *Agent) Events(ctx context.Context, r EventRequest, tell func(Event) error) error {
	next := uint64(1)
	for {
		var batch []Event
		var more <-chan struct{}
		batch, next, more = a.events.after(next)
		for _, e := range batch {
			if e.Time.Before(r.Since) || r.Kind != "" && e.Kind != r.Kind {
				continue
			}
			if err := tell(e); err != nil {
				return err
			}
		}
		if !r.Follow {
			return nil
		}
		select {
		case <-more:
		case <-a.done:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Emit adds an event to those that the agent tells. Its time and number are set here.
func (a *Agent) Emit(e Event) { a.events.Emit(e) }

// about completes an event with the container that it is about.
func (l *loop) about(id string, e Event) Event {
	e.Container = id
	if d, c, x := l.target.container(id); x != nil {
		e.Deployment, e.Component, e.Service, e.Replica = d.Name, c.Name, x.Service.Name, x.Replica
		return e
	}
	for _, o := range l.seen.Containers {
		if o.ID == id {
			e.Deployment, e.Component, e.Service, e.Replica = l.nameOf(o.Deployment), o.Component, o.Service, o.Replica
		}
	}
	return e
}

// nameOf is a deployment's name; its id when it has none any more.
func (l *loop) nameOf(id string) string {
	if s, ok := l.before[id]; ok && s.Name != "" {
		return s.Name
	}
	return id
}

// noticed tells which containers ended by themselves between two looks: not those that the agent is stopping.
func (l *loop) noticed(before, after workload.Observed) {
	was := index(before)
	for _, o := range after.Containers {
		old, ok := was[o.ID]
		if !ok || o.Status != workload.Exited || old.Status != workload.Running && old.Status != workload.Paused ||
			l.sup.Busy[Step{Verb: Stop, Container: o.ID}.Subject()] {
			continue
		}
		code := o.ExitCode
		l.events.Emit(l.about(o.ID, Event{Kind: EventExited, ExitCode: &code}))
	}
}

// turnedBack tells that a revision failed and the last good one takes its place again.
func (l *loop) turnedBack(b store.Bad) {
	if b.Pause {
		return
	}
	l.events.Emit(Event{
		Kind: EventRolledBack, Deployment: l.nameOf(b.DeploymentID), Component: b.Source, Generation: l.good[b.DeploymentID].rec.Generation,
		Code: Code(b.Code), Message: b.Message,
	})
}

// did tells of a step that was done.
func (l *loop) did(st Step) {
	kind := map[Verb]EventKind{Create: EventCreated, Start: EventStarted, Stop: EventStopped, Remove: EventRemoved, Switch: EventSwitched}[st.Verb]
	if kind == "" {
		return
	}
	if kind == EventStarted && l.sup.Containers[st.Container].Total > 0 {
		kind = EventRestarted
	}
	l.events.Emit(l.about(st.Container, Event{Kind: kind}))
	if kind == EventStopped || kind == EventRemoved { // its end is told: the next look must not take it for one of its own
		for i := range l.seen.Containers {
			if o := &l.seen.Containers[i]; o.ID == st.Container {
				o.Status = workload.Exited
			}
		}
	}
}
