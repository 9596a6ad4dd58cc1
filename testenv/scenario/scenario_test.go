// Package scenario runs what a device does with Compose files, written down in text files that a reader understands: the
// Compose file, the steps, and what must hold. README.md explains the format and every verb.
//
// The same files run on a runtime in memory, which checks the agent's own decisions within milliseconds, and on real
// containerd with real networks, which checks all the rest.
package scenario

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
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

func TestMain(m *testing.M) {
	testenv.SideBySide(4) // on containerd they mostly wait
	goleak.VerifyTestMain(m, testenv.LeakOptions()...)
}

// load reads every scenario of testdata.
func load(t *testing.T) map[string]*Scenario {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	out := map[string]*Scenario{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(file, data)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		out[strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".txt")] = s
	}
	return out
}

func TestMemory(t *testing.T) {
	all := load(t)
	for _, name := range sorted(all) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { all[name].run(t, newMemory()) })
		})
	}
}

func TestContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes")
	}
	all := load(t)
	p := newPlant(t)
	t.Run("all", func(t *testing.T) { // ends before the plant does
		for _, name := range sorted(all) {
			t.Run(name, func(t *testing.T) {
				s := all[name]
				if why := hostNeeds(s); why != "" {
					t.Skip(why)
				}
				t.Parallel()
				s.run(t, newMachine(t, p, s.OwnDaemon(), s.needs(needPermission)))
			})
		}
	})
}

// hostNeeds returns why this machine cannot run a scenario; "": it can.
func hostNeeds(s *Scenario) string {
	for _, n := range s.Needs {
		if slices.Contains([]string{needContainers, needOwnDaemon, needPermission}, n.What) {
			continue
		}
		if n.What == needMemory {
			return "it runs in memory only: " + n.Why
		}
		if why := hostLacks(n.What); why != "" {
			return n.What + ": " + why + "; " + n.Why
		}
	}
	return ""
}
