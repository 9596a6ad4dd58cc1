package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/workload"
)

// rolledBack is nil when the app's newest revision failed with code, and one of an earlier generation runs completely.
func (r *run) rolledBack(app string, code codes.Code, text string) error {
	if err := r.failed(app, code, text); err != nil {
		return err
	}
	d, err := r.deployment(app)
	if err != nil {
		return err
	}
	if d.Refused == nil || d.Refused.Paused || d.Refused.Waiting || d.Refused.RunningGeneration == 0 || d.Refused.RunningGeneration >= d.Refused.Generation {
		return fmt.Errorf("%s is not told to be rolled back: %+v", app, d.Refused)
	}
	if d.Refused.Code != code || !strings.Contains(d.Refused.Message, text) {
		return fmt.Errorf("%s was refused with %s: %s", app, d.Refused.Code, d.Refused.Message)
	}
	if d.Error == nil || !strings.Contains(d.Error.Message, "; rolled back to generation ") {
		return fmt.Errorf("%s is not yet back: %+v", app, d.Error)
	}
	for _, c := range d.Components {
		for _, s := range c.Services {
			if s.Status != workload.Running && (s.Status != workload.Exited || s.ExitCode != 0) {
				return fmt.Errorf("%s: service %s of the revision before is %q", app, s.Name, s.Status)
			}
		}
	}
	return nil
}

// committed is nil when the newest generation counts as applied.
func (r *run) committed() error {
	if st := r.agent.Status(); st.Committed == nil || st.Committed.Generation != r.gen {
		return fmt.Errorf("committed is %+v, want generation %d", st.Committed, r.gen)
	}
	return nil
}

// reported is nil when the device has reported a state of an app at any time since the newest generation.
func (r *run) reported(app, state string) error {
	d, err := r.deployment(app)
	if err != nil {
		return err
	}
	told := r.w.States(r.t, d.ID)
	if slices.Contains(told, fmt.Sprintf("%s@%d", state, r.gen)) {
		return nil
	}
	return fmt.Errorf("the states reported are %q", told)
}

// notice is nil when the status has a notice with text for an app.
func (r *run) notice(text string) error {
	var told []string
	for _, d := range r.agent.Status().Deployments {
		for _, c := range d.Components {
			for _, n := range c.Notices {
				if told = append(told, n.Path+": "+n.Message); strings.Contains(told[len(told)-1], text) {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("the notices are %q", told)
}
