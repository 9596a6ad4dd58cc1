package plan

import (
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// RestartNow has the next plan stop the containers that run, of these ids, and start them again; those that have exited are due now.
// fault.ErrConflict: one of them depends on a service that is not up, and is not started again before it: it could only be stopped.
func RestartNow(now time.Time, d *Desired, o workload.Observed, s *Supervision, p Policy, ids map[string]bool) error {
	pl := newPlanner(now, o, s, p)
	for dep := range d.All() {
		for _, v := range pl.views(dep) {
			for _, x := range v.slots {
				if service := v.lacks(x.c, s, ids); ids[x.c.ID] && service != "" {
					return fault.WithHint(fmt.Errorf("%s/%s depends on service %s, which is not up: %w", v.d.Name, x.c.Service.Name, service, fault.ErrConflict),
						"name both, or the deployment: "+v.d.Name)
				}
			}
		}
	}
	for id := range ids {
		for _, v := range []Verb{Start, Stop} { // tried at once; what is recorded from now on has failed since
			delete(s.Retries, Step{Verb: v, Container: id}.Key())
		}
		c := s.Containers[id]
		switch {
		case c.Run != "":
			s.Restarting[id] = c.Run
			if c.Health == HealthUnhealthy { // no pause follows this end
				c.Health, c.Failed = HealthStarting, 0
			}
		case c.Exited:
			c.NextStart = now
		default:
			continue
		}
		s.Containers[id] = c
	}
	return nil
}
