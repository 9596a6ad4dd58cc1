package scenario

import (
	"github.com/longshore-dev/longshore/agent"
)

// rolledBack: the app failed, and what ran before runs again.
func (r *run) rolledBack(app string, code agent.Code, text string) error {
	return r.failed(app, code, text)
}

// notice looks at what was said at admission.
func (r *run) notice(string) error { return errContainers }
