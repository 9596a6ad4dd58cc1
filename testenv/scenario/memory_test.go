package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// memory is a device in memory. Its containers behave as the toolbox would, as far as the agent can tell: they exit, and
// are well or sick, as their commands and environment say.
type memory struct {
	*runtimetest.Memory
	mu    sync.Mutex
	specs map[string]workload.Container // by id
	plans map[string]*workload.Project
	sick  map[string]string // containers by id -> the run in which the toolbox is sick
}

func newMemory() *memory {
	m := &memory{
		Memory: runtimetest.NewMemory(), specs: map[string]workload.Container{}, plans: map[string]*workload.Project{}, sick: map[string]string{},
	}
	m.Now = time.Now
	m.Images = func(i workload.Image) error {
		for name, err := range map[string]error{"missing": fault.ErrNotFound, "tampered": fault.ErrDigestMismatch, "huge": syscall.ENOSPC} {
			if strings.HasSuffix(i.Repository, "/"+name) {
				return fmt.Errorf("%s: %w", i.Name(), err)
			}
		}
		return nil
	}
	m.Running = m.exitCode
	m.Probing = m.probe
	m.Inspect = func(i workload.Image) workload.ImageInfo {
		switch {
		case strings.HasSuffix(i.Repository, "/checked"):
			return workload.ImageInfo{Health: &workload.Health{
				Probe: workload.Probe{Exec: []string{"/toolbox", "get", "http://127.0.0.1:8080/health"}}, Interval: 200 * time.Millisecond, Timeout: 10 * time.Second, Retries: 2,
			}}
		case strings.HasSuffix(i.Repository, "/filled"):
			return workload.ImageInfo{Volumes: []string{"/data"}}
		}
		return workload.ImageInfo{}
	}
	return m
}

// Create remembers what was asked for.
func (m *memory) Create(ctx context.Context, p *workload.Project, c workload.Container) error {
	m.mu.Lock()
	m.specs[c.ID], m.plans[c.ID] = c, p
	m.mu.Unlock()
	return m.Memory.Create(ctx, p, c)
}

func (m *memory) spec(id string) workload.Container {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.specs[id]
}

// exitCode is how the toolbox ends that was just started; -1: it runs on, perhaps until later.
func (m *memory) exitCode(o workload.Observation) int {
	argv := m.spec(o.ID).Service.Command
	if len(argv) == 0 {
		return -1
	}
	switch argv[0] {
	case "print", "print-err", "lines", "env", "write", "cat", "exists":
		return 0
	case "exit", "sleep":
		code, later := 0, 1
		if argv[0] == "exit" && len(argv) > 1 {
			code, _ = strconv.Atoi(argv[1])
			later = 2
		}
		if len(argv) <= later {
			return map[string]int{"exit": code, "sleep": -1}[argv[0]]
		}
		if s, err := strconv.ParseFloat(argv[later], 64); err == nil {
			time.AfterFunc(time.Duration(s*float64(time.Second)), func() { _ = m.Exit(o.ID, uint32(code)) }) // gone is fine
			return -1
		}
	}
	return -1
}

func (m *memory) probe(_ context.Context, o workload.Observation, _ workload.Probe) error {
	env := m.spec(o.ID).Service.Environment
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sick[o.ID] == o.Run || m.sick[o.ID] == "" && slices.Contains(env, "SICK=1") {
		return errors.New("503 Service Unavailable")
	}
	return nil
}

func (m *memory) env(*testing.T) agenttest.Env {
	return agenttest.Env{
		Now: time.Now, Patience: 10 * time.Minute,
		Runtime: func(*testing.T) agent.Runtime { return m },
		Image: func(name string) agenttest.Image {
			img := agenttest.Image{Reference: imageHost + "/" + name, Digest: digest.FromString(name)}
			if strings.HasPrefix(name, "foreign:") {
				img.Platform = "linux/riscv64"
			}
			return img
		},
	}
}

func (m *memory) kill(_ *run, o workload.Observation) error { return m.Exit(o.ID, 137) }

func (m *memory) exit(_ *run, o workload.Observation, code uint32) error { return m.Exit(o.ID, code) }

func (m *memory) delete(r *run, o workload.Observation) error {
	return errors.Join(m.Stop(r.t.Context(), o.ID), m.Remove(r.t.Context(), o.ID))
}

func (m *memory) lose(r *run, o workload.Observation) error {
	m.Lose(o.Image)
	return m.delete(r, o)
}

func (m *memory) pause(*run, workload.Observation) error { return errContainers }

func (m *memory) sicken(_ *run, o workload.Observation, sick bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sick[o.ID] = "well"; sick {
		m.sick[o.ID] = o.Run
	}
	return nil
}

func (m *memory) reboot(r *run) error {
	r.agent.Stop(r.t)
	m.Reboot()
	r.agent = r.w.Start(r.t)
	return nil
}

func (m *memory) restartContainerd(*run) error { return errContainers }

func (m *memory) breakFirewall(*run) error { return errContainers }

func (m *memory) breakBridge(*run, string) error { return errContainers }

func (m *memory) breakDatabase(*run) error { return nil }

func (m *memory) occupy(*run, int) error { return errContainers }

func (m *memory) lock(project, text string) error {
	return m.Write(project+"/"+approval.LockVolume, text)
}

func (m *memory) lacks(what string) string {
	switch what {
	case needMemory, needOwnDaemon, needPermission:
		return ""
	}
	return "this is a device in memory"
}

func (m *memory) http(*run, *workload.Observation, string) (string, error) { return "", errContainers }

func (m *memory) log(*run, workload.Observation) (string, error) { return "", errContainers }

func (m *memory) look(r *run, o workload.Observation, p property) error {
	if p.ask != nil {
		return p.ask(r, o)
	}
	if p.plan == nil {
		return errContainers
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return p.plan(m.specs[o.ID], m.plans[o.ID])
}

// after reports whether one container was last started after another: in a bubble both may have started at the same time.
func (m *memory) after(o, first workload.Observation) error {
	calls := m.Calls()
	slices.Reverse(calls)
	if slices.Index(calls, "start "+o.ID) > slices.Index(calls, "start "+first.ID) {
		return fmt.Errorf("%s was started before %s", o.Service, first.Service)
	}
	return nil
}

func (m *memory) options(*agent.Options) {}
