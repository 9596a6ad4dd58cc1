package status

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
)

// EventKind names what happened. Kinds are part of the interface: programs match on them.
type EventKind string

const (
	EventAccepted   EventKind = "accepted"    // a generation passed every check
	EventRefused    EventKind = "refused"     // a state failed one; Code says which
	EventPulled     EventKind = "pulled"      // all of a generation is on the device
	EventCommitted  EventKind = "committed"   // a generation runs completely
	EventPhase      EventKind = "phase"       // the change to a state stands elsewhere; Message is the phase, Code why
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
	EventKept       EventKind = "kept"        // volumes of a component that was removed stay; Message names them
	EventSwitched   EventKind = "switched"    // a service's address leads to this container from now on
	EventRolledBack EventKind = "rolled-back" // the device went back to the generation of the event; Code says why
	EventRepaired   EventKind = "repaired"    // something that was not as the agent left it is right again
	EventSource     EventKind = "source"      // the source stopped answering (Code) or answers again (none)
	EventRuntime    EventKind = "runtime"     // the runtime stopped answering (Code) or answers again (none)
	EventTrust      EventKind = "trust"       // another version of the trust policy was taken over, or was not (Code)
	EventStale      EventKind = "stale"       // what is accepted has expired (Code), or is known to be fresh again (none)
	EventChange     EventKind = "change"      // a change waits (Code), somebody decided about one, or an update lock is ignored (none). Decisions are kept when the agent ends
	EventHold       EventKind = "hold"        // the device was rolled back by hand (Code), or released (none). Kept when the agent ends
	EventSecurity   EventKind = "security"    // what an attack looks like; Code says which. Kept when the agent ends

	EventCapabilities EventKind = "capabilities" // hardware was plugged in or out; Message names it
)

func EventKinds() []EventKind {
	return []EventKind{
		EventAccepted, EventRefused, EventPulled, EventCommitted, EventPhase, EventDeployment, EventCreated, EventStarted,
		EventRestarted, EventHealthy, EventUnhealthy, EventExited, EventOOM, EventStopped, EventRemoved, EventKept,
		EventSwitched, EventRolledBack, EventRepaired, EventSource, EventRuntime, EventTrust, EventStale, EventChange, EventHold,
		EventSecurity, EventCapabilities,
	}
}

// Event is one thing that happened. Only what belongs to its kind is set.
type Event struct {
	Sequence   uint64     `json:"sequence"` // grows by one; starts anew with the agent
	Time       time.Time  `json:"time"`
	Kind       EventKind  `json:"kind"`
	Deployment string     `json:"deployment,omitempty"` // name, or id where there is no name any more
	Component  string     `json:"component,omitempty"`
	Service    string     `json:"service,omitempty"`
	Replica    int        `json:"replica,omitempty"`
	Container  string     `json:"container,omitempty"`
	Generation uint64     `json:"generation,omitempty"`
	ExitCode   *uint32    `json:"exitCode,omitempty"`
	Code       codes.Code `json:"code,omitempty"`
	Message    string     `json:"message,omitempty"`

	Digest digest.Digest `json:"digest,omitempty"` // of the state, of a security event
	Count  uint64        `json:"count,omitempty"`  // of a security event of an earlier run: how often it had happened

	Since     time.Time `json:"since,omitzero"`     // when what ended with the event had begun: a check, a step for a container; of an application, its state
	Verifying time.Time `json:"verifying,omitzero"` // since when a check had verified its state; zero: it did not come to that
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
	// MaxMessage bounds what others say in an event.
	MaxMessage = 1024
)

// Ring is the agent's memory of the newest events, which counts them by kind. Its zero value is not usable: see NewRing.
type Ring struct {
	now   func() time.Time
	mu    sync.Mutex
	kept  []Event // of kind security, of keptSecurity at most, oldest first: noise must not push them out
	ring  []Event // of keptEvents at most, oldest at next % len once full
	next  uint64  // sequence number of the next event, from 1
	more  chan struct{}
	count map[EventKind]uint64

	security map[codes.Code]uint64 // since the device's database was made; never changed in place
}

func NewRing(now func() time.Time) *Ring {
	return &Ring{now: now, next: 1, more: make(chan struct{}), count: map[EventKind]uint64{}}
}

// Emit keeps an event, in place of the oldest.
func (r *Ring) Emit(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Time = r.now()
	r.keep(e)
}

// Recall puts a security event of an earlier run before what happens now.
func (r *Ring) Recall(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(e)
	r.count[e.Kind]-- // it did not happen since the agent started
}

func (r *Ring) keep(e Event) {
	e.Message = Cut(e.Message, MaxMessage)
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

// Cut shortens a text to that many bytes: what others wrote may be in it.
func Cut(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "")
}

// SetSecurity takes over how many security events there were.
func (r *Ring) SetSecurity(by map[codes.Code]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.security = by
}

// after returns the kept events from sequence number first on, oldest first, the number to go on with, and what is closed
// when there are more.
func (r *Ring) after(first uint64) ([]Event, uint64, <-chan struct{}) {
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

// Follow calls tell with the events that r chooses, oldest first. With Follow it goes on until ctx ends or stopped is closed, which is
// no error, or tell fails. A follower that is slower than events come misses the oldest, which the sequence numbers show.
func (r *Ring) Follow(ctx context.Context, stopped <-chan struct{}, q EventRequest, tell func(Event) error) error {
	next := uint64(1)
	for {
		var batch []Event
		var more <-chan struct{}
		batch, next, more = r.after(next)
		for _, e := range batch {
			if e.Time.Before(q.Since) || q.Kind != "" && e.Kind != q.Kind {
				continue
			}
			if err := tell(e); err != nil {
				return err
			}
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-more:
		case <-stopped:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Counts are the events since the agent started, by kind, and the security events since its database was made, by code.
func (r *Ring) Counts() (map[EventKind]uint64, map[codes.Code]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.count), r.security
}
