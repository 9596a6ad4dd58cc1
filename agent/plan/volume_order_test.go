package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/workload"
)

// A volume is filled from the image of the first container that mounts it: a service that depends on another one is made
// after it when they share one.
func TestVolumesAreFilledInOrder(t *testing.T) {
	shared := workload.Mount{Kind: workload.MountVolume, Source: "data", Target: "/data"}
	maker, user := service("maker", "m"), service("user", "u", workload.Dependency{Service: "maker", Condition: workload.Started})
	maker.Mounts, user.Mounts = []workload.Mount{shared}, []workload.Mount{shared}
	for name, tt := range map[string]struct {
		services []workload.Service
		first    int // containers made by the first plan after Prepare
	}{
		"shared":     {[]workload.Service{user, maker}, 1},
		"not shared": {[]workload.Service{service("user", "u", user.DependsOn...), maker}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			m, now, s := newModel(), t0, NewSupervision()
			d := desired(1, deployment("d", component("d", "c", tt.services...)))
			m.round(t, &now, d, s)
			m.log = nil
			m.round(t, &now, d, s)
			if got := len(slices.DeleteFunc(slices.Clone(m.log), func(k string) bool { return k[:len(Create)] != string(Create) })); got != tt.first {
				t.Errorf("%d containers are made at once, want %d: %v", got, tt.first, m.log)
			}
			m.converge(t, &now, d, s)
			for id, c := range m.containers {
				if c.Status != workload.Running {
					t.Errorf("%s is %s", id, c.Status)
				}
			}
			if len(m.containers) != 2 {
				t.Errorf("%d containers, want 2", len(m.containers))
			}
		})
	}
}

// TestVolumesAreFilledBeforeProgramsRun: a container that prepares a volume for another one finds what the other's image has for it.
func TestVolumesAreFilledBeforeProgramsRun(t *testing.T) {
	prepare, user := service("prepare", "p"), service("user", "u", workload.Dependency{Service: "prepare", Condition: workload.Started})
	shared := workload.Mount{Kind: workload.MountVolume, Source: "data", Target: "/data"}
	prepare.Mounts, user.Mounts = []workload.Mount{shared}, []workload.Mount{shared}
	m, now, s := newModel(), t0, NewSupervision()
	d := desired(1, deployment("d", component("d", "c", prepare, user)))
	created, started := -1, -1
	for n := range 10 { // the steps of one round are taken at the same time
		m.log = nil
		m.round(t, &now, d, s)
		for _, k := range m.log {
			switch {
			case strings.HasPrefix(k, string(Create)):
				created = n
			case strings.HasPrefix(k, string(Start)) && started < 0:
				started = n
			}
		}
	}
	if started <= created {
		t.Errorf("round %d creates a container of a volume that a program uses since round %d", created, started)
	}
	for id, c := range m.containers {
		if c.Status != workload.Running {
			t.Errorf("%s is %s", id, c.Status)
		}
	}
}

// TestNoProgramWaitsForAContainerThatWaits: a container of the volume that is not created before the program has started, or never, keeps no program
// from starting.
func TestNoProgramWaitsForAContainerThatWaits(t *testing.T) {
	on := func(service string) workload.Dependency {
		return workload.Dependency{Service: service, Condition: workload.Started}
	}
	sharing := func(services ...workload.Service) []workload.Service {
		for i := range services {
			services[i].Update.Parallelism = 1
			services[i].Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/data"}}
		}
		return services
	}
	t.Run("a service that an update adds", func(t *testing.T) {
		m, now, s := newModel(), t0, NewSupervision()
		m.converge(t, &now, desired(1, deployment("d", component("d", "c", sharing(service("db", "1"), service("app", "1", on("db")))...))), s)
		v2 := component("d", "c", sharing(service("db", "2"), service("app", "2", on("db")), service("backup", "2", on("app")))...)
		m.converge(t, &now, desired(2, deployment("d", v2)), s)
		for _, c := range v2.Containers {
			if got := m.containers[c.ID].Status; got != workload.Running {
				t.Errorf("%s is %q", c.ID, got)
			}
		}
	})
	t.Run("a service whose dependency cannot be created", func(t *testing.T) {
		m, now, s := newModel(), t0, NewSupervision()
		c := component("d", "c", sharing(service("db", "1"), service("broken", "1"), service("app", "1", on("broken")))...)
		d := desired(1, deployment("d", c))
		for range 30 {
			m.round(t, &now, d, s, c.Containers[1].ID)
		}
		if got := m.containers[c.Containers[0].ID].Status; got != workload.Running {
			t.Errorf("db is %q", got)
		}
	})
}

// TestANewVolumeIsFilledInOrder: the containers of the revision before, which does not have the volume, do not fill it.
func TestANewVolumeIsFilledInOrder(t *testing.T) {
	for _, condition := range []workload.Condition{workload.Started, workload.Completed} {
		t.Run(string(condition), func(t *testing.T) {
			maker, user := service("maker", "m"), service("a-user", "u", workload.Dependency{Service: "maker", Condition: condition})
			if condition == workload.Completed {
				maker.Restart.Policy = workload.RestartNo
			}
			m, now, s := newModel(), t0, NewSupervision()
			// revise runs a revision until nothing changes any more, and returns the created containers in their order.
			revise := func(d *Desired) (created []string) {
				for range 100 {
					m.log = nil
					some := m.round(t, &now, d, s)
					for _, k := range m.log {
						if strings.HasPrefix(k, string(Create)) {
							created = append(created, k)
						}
					}
					for id, c := range m.containers {
						if condition == workload.Completed && c.Service == "maker" && c.Status == workload.Running {
							c.Status, c.PID, c.Run, c.End, c.Began = workload.Exited, 0, "", "end of "+c.Run, 0
							m.containers[id], some = c, true
						}
					}
					if !some {
						break
					}
				}
				return created
			}
			revise(desired(1, deployment("d", component("d", "c", user, maker))))
			shared := workload.Mount{Kind: workload.MountVolume, Source: "data", Target: "/data"}
			maker.Mounts, user.Mounts = []workload.Mount{shared}, []workload.Mount{shared}
			created := revise(desired(2, deployment("d", component("d", "c", user, maker))))
			if len(created) != 2 || !strings.Contains(created[0], "maker") || len(m.containers) != 2 {
				t.Errorf("created %v, want the maker first; containers %v", created, m.containers)
			}
		})
	}
}
