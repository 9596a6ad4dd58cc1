package containerd_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// TestAdmit asks about the machine that the test runs on.
func TestAdmit(t *testing.T) {
	r := newRig(t)
	img := workload.Image{Repository: "r.example/a", Digest: "sha256:" + "00"}
	fits := project("fits", workload.Service{
		Name: "a", Image: img, Devices: []workload.Device{{HostPath: "/dev/null"}}, Runtime: "runc",
		Resources: workload.Resources{NanoCPUs: 1e9, MemoryBytes: 64 << 20, PIDs: 100, CPUSet: "0", MemoryReservation: 1 << 20},
	})
	if err := r.Admit(t.Context(), []*workload.Project{fits}); err != nil {
		t.Errorf("what fits is refused: %v", err)
	}
	bad := project("bad", workload.Service{
		Name: "a", Image: img, Devices: []workload.Device{{HostPath: "/dev/nothing-here"}}, Security: &workload.Security{Privileged: true},
		Runtime: "kata", Resources: workload.Resources{NanoCPUs: 1 << 50, MemoryReservation: 1 << 60, CPUSet: "0-100000"},
		Mounts: []workload.Mount{{Kind: workload.MountBind, Source: "/nothing-here", Target: "/x"}},
		CDI:    []string{"vendor.example/line=7"}, GPUs: []workload.DeviceRequest{{Driver: "vendor.example/npu", Count: 2}, {Driver: "vendor.example/npu", Count: -1}},
	})
	thief := project("thief", workload.Service{Name: "a", Image: img, Ports: []workload.Port{{HostPort: 7171, ContainerPort: 1, Protocol: "tcp"}}})
	owner := project("owner", thief.Services[0])
	var taken workload.Conflicts
	if err := r.Admit(t.Context(), []*workload.Project{owner, thief}); !errors.As(err, &taken) || len(taken) != 1 || taken[0].Project != thief.Name || !errors.Is(err, fault.ErrConflict) {
		t.Errorf("one port for two: %v", err)
	}
	bad.Volumes = []workload.Volume{{Name: "v", Shared: "nobody", External: true}}
	err := r.Admit(t.Context(), []*workload.Project{fits, bad})
	var found workload.Conflicts
	if !errors.As(err, &found) || !errors.Is(err, fault.ErrUnfit) || !errors.Is(err, fault.ErrRejected) {
		t.Fatalf("Admit = %v, want clashes", err)
	}
	for _, want := range []string{
		"services.a.devices[0]", "services.a.privileged", "services.a.runtime", "services.a.cpus", "services.a.mem_reservation",
		"services.a.cpuset", "services.a.volumes[0]", "volumes.v", "services.a.devices", "services.a.gpus[0]", "services.a.gpus[1]",
	} {
		if !strings.Contains(err.Error(), want+": ") {
			t.Errorf("no clash at %s in:\n%v", want, err)
		}
	}
	if !slices.ContainsFunc(found, func(c workload.Conflict) bool {
		return strings.Contains(fault.Hint(c.Reason), "/etc/cdi") && strings.HasSuffix(c.Reason.Error(), "no vendor.example/line=7")
	}) {
		t.Errorf("no hint where specifications of devices are in:\n%v", err)
	}
	for _, c := range found {
		if c.Project != bad.Name {
			t.Errorf("clash of project %s: %v", c.Project, c)
		}
	}
}
