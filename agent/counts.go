package agent

import (
	"maps"
	"sync/atomic"
)

// counts only grow while the agent runs.
type counts struct {
	polls, pollErrors atomic.Uint64
}

// Counts are what an agent has counted since it started.
type Counts struct {
	Polls       uint64 // checks of the source that ended
	PollErrors  uint64 // of these, those where it could not be asked
	BytesPulled uint64 // of images
	Events      map[EventKind]uint64
	Security    map[Code]uint64 // security events since the device's database was made
}

// Counts tells what the agent has counted.
func (a *Agent) Counts() Counts {
	a.progress.mu.Lock()
	loaded := a.progress.loaded
	a.progress.mu.Unlock()
	a.events.mu.Lock()
	defer a.events.mu.Unlock()
	security := map[Code]uint64{}
	for c, n := range a.events.security {
		security[Code(c)] = n
	}
	return Counts{
		Polls: a.counts.polls.Load(), PollErrors: a.counts.pollErrors.Load(), BytesPulled: loaded,
		Events: maps.Clone(a.events.count), Security: security,
	}
}
