// Package scenario runs what a device does with Compose files, written down in text files that a reader understands: the
// Compose file, the steps, and what must hold. README.md explains the format and every verb.
//
// The same files run on a runtime in memory, which checks the agent's own decisions within milliseconds, and on real
// containerd with real networks, which checks all the rest.
package scenario

import (
	"slices"
	"testing/fstest"
)

// Scenario is one file.
type Scenario struct {
	File      string
	Title     string // the first paragraph of the prose
	Revisions map[string]fstest.MapFS
	Order     []string // of the revisions, as in the file
	Steps     []Step
	Needs     []Need
}

// Need is what a device must have for a scenario; elsewhere it is skipped.
type Need struct{ What, Why string }

// Step is one line of the steps.
type Step struct {
	Line int
	Text string
	act  action
}

// action does a step. An error that is errContainers says that only real containers can do it: it is passed over.
type action func(r *run) error

// Containers reports whether a scenario can only run on real containers.
func (s *Scenario) Containers() bool { return s.needs(needContainers) }

// OwnDaemon reports whether a scenario changes containerd itself, so that it cannot share it.
func (s *Scenario) OwnDaemon() bool { return s.needs(needOwnDaemon) }

func (s *Scenario) needs(what string) bool {
	return slices.ContainsFunc(s.Needs, func(n Need) bool { return n.What == what })
}
