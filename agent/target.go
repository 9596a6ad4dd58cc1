package agent

import (
	"maps"
	"slices"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// states are the states of the device, and for those that are not done yet what they ask for and what [plan.Resolve] makes of that. It is part of
// the loop.
type states struct {
	accepted, target, committed, lastGood *store.State
	targetDesired, targetResolved         *plan.Desired
	acceptedDesired, acceptedResolved     *plan.Desired // nil once the accepted state is the target
	rebuilt                               int           // how often the resolved ones were made
	refused                               *store.Refused
}

// marks are those that the store has, by the marks that it has them under.
func (s *states) marks() map[store.Mark]**store.State {
	return map[store.Mark]**store.State{store.Accepted: &s.accepted, store.Target: &s.target, store.Committed: &s.committed, store.LastGood: &s.lastGood}
}

// rebuild makes the resolved target and accepted states anew after anything that they follow from has changed.
func (l *loop) rebuild() {
	l.keepEarly()
	l.targetResolved, l.acceptedResolved = plan.Resolve(without(l.targetDesired, l.disks.removedFirst), l.known(true)), plan.Resolve(l.acceptedDesired, l.known(false))
	l.rebuilt++
	if l.targetResolved == nil {
		return
	}
	told := map[string]string{}
	for _, d := range l.targetResolved.Deployments {
		for _, c := range d.Components {
			if len(c.Missing) > 0 {
				l.refill.repair = true
			}
			for s, why := range c.Conflicts {
				id := c.Project.Name + "/" + s
				told[id] = why
				if l.told.conflicts[id] != why {
					l.log.Info("start-first is done as stop-first", "deployment", d.Name, "component", c.Name, "service", s, "why", why)
				}
			}
		}
	}
	l.told.conflicts = told
}

// Known is what the agent remembers. Only for what is being applied someone has to be asked.
func (l *loop) known(applied bool) plan.Memory {
	k := plan.Memory{Good: l.good, Bad: l.bad}
	if applied {
		k.Images, k.Waits = l.images, l.gate.waits
		k.Blocked, k.Admits = l.admission.held, l.admission.admits
	}
	return k
}

// forget drops what is known of images that nothing wants any more.
func (l *loop) forget() {
	wanted := map[string]bool{}
	_, _, good, _ := l.keep()
	for _, img := range slices.Concat(l.targetDesired.Images(), l.acceptedDesired.Images(), good) {
		wanted[img.Name()] = true
	}
	maps.DeleteFunc(l.images, func(name string, _ workload.ImageInfo) bool { return !wanted[name] })
}
