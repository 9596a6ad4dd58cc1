package plan

import (
	"slices"
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
