package agenttest_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

// memoryEnv is a device in memory; edit may be nil.
func memoryEnv(edit func(*runtimetest.Memory)) func(t *testing.T) agenttest.Env {
	return func(t *testing.T) agenttest.Env {
		t.Helper()
		m := runtimetest.NewMemory()
		m.Now = time.Now
		m.Images = func(i workload.Image) error {
			for name, err := range map[string]error{
				"missing": fault.ErrNotFound, "tampered": fault.ErrDigestMismatch, "broken": agenttest.ErrBroken, "huge": syscall.ENOSPC,
			} {
				if strings.HasSuffix(i.Repository, name) {
					return fmt.Errorf("%s: %w", i.Name(), err)
				}
			}
			return nil
		}
		if edit != nil {
			edit(m)
		}
		return agenttest.Env{
			Now:     time.Now,
			Runtime: func(*testing.T) agent.Runtime { return m },
			Image: func(name string) agenttest.Image {
				img := agenttest.Image{Reference: "registry.example/images/" + name, Digest: digest.FromString(name)}
				if name == "foreign:1" {
					img.Platform = "linux/riscv64"
				}
				return img
			},
			WriteVolume: func(t *testing.T, project, volume, content string) {
				t.Helper()
				if err := m.Write(project+"/"+volume, content); err != nil {
					t.Fatal(err)
				}
			},
			ReadVolume: func(_ *testing.T, project, volume string) string { return m.Volumes()[project+"/"+volume] },
			Exit: func(t *testing.T, id string) {
				t.Helper()
				if err := m.Exit(id, 1); err != nil {
					t.Fatal(err)
				}
			},
			Reboot: func(*testing.T) { m.Reboot() },
		}
	}
}

func TestScenarios(t *testing.T) {
	agenttest.Run(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test})
}

// A manager that is not ours in place of the tag, its manifests taken as they are.
func TestManagerScenarios(t *testing.T) {
	agenttest.Run(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test, Prepare: func(t *testing.T, w *agenttest.World) { w.Manage(t, nil) }})
}

// A manager that serves states whose signatures are in the registry.
func TestManagerScenariosSigned(t *testing.T) {
	agenttest.Run(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test, Prepare: func(t *testing.T, w *agenttest.World) {
		w.Manage(t, nil)
		w.SignedIn = agenttest.Repository
	}})
}

func TestManagerRefusals(t *testing.T) {
	agenttest.ManagerRefusals(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test, Prepare: func(t *testing.T, w *agenttest.World) { w.Manage(t, nil) }})
}

func TestManagerKills(t *testing.T) {
	agenttest.Kills(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test, Prepare: func(t *testing.T, w *agenttest.World) { w.Manage(t, nil) }}, 5)
}

func TestRefusals(t *testing.T) {
	agenttest.Refusals(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test})
}

func TestKillsOfUpdates(t *testing.T) {
	crash := func(m *runtimetest.Memory) {
		m.Running = func(o workload.Observation) int {
			if isOf(o, "crash:1") {
				return 3
			}
			return -1
		}
	}
	agenttest.KillsOfUpdates(t, agenttest.Setup{Open: memoryEnv(crash), Around: synctest.Test}, 7)
}

func TestKillsOfRollbacks(t *testing.T) {
	agenttest.KillsOfRollbacks(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test}, 3)
}

func TestKills(t *testing.T) {
	agenttest.Kills(t, agenttest.Setup{Open: memoryEnv(nil), Around: synctest.Test}, 1)
}
