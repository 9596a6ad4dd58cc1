package agent

import "github.com/longshore-dev/longshore/agent/status"

// Emit adds an event, as the loop does.
func (a *Agent) Emit(e status.Event) { a.events.Emit(e) }
