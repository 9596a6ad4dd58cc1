package scenario

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
)

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
