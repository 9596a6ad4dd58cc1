package admission_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/admission"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// machine is a small device with version 1 of control groups.
func machine() admission.Machine {
	there := map[string]bool{"/dev/ttyS0": true, "/dev/null": true, "/data": true, "/dev/sda": true}
	return admission.Machine{
		Cores: 2, Memory: 1 << 30, Cgroup: 1, Lacks: func(workload.Resources) []workload.MissingLimit { return nil }, Seccomp: true,
		Runtimes: map[string]bool{"runc": true},
		Exists:   func(path string) bool { return there[path] },
		Volume:   func(name string) bool { return name == "shared" },
	}
}

func project(deployment, component string, services ...workload.Service) *workload.Project {
	return &workload.Project{Name: workload.ProjectName(deployment, component), Deployment: deployment, Component: component, Services: services}
}

func TestCheck(t *testing.T) {
	service := func(edit func(*workload.Service)) []*workload.Project {
		s := workload.Service{Name: "web"}
		edit(&s)
		return []*workload.Project{project("d1", "app", s)}
	}
	two := func(a, b workload.Service) []*workload.Project {
		a.Name, b.Name = "a", "b"
		return []*workload.Project{project("d1", "one", a), project("d2", "two", b)}
	}
	tests := []struct {
		name     string
		machine  func(*admission.Machine)
		projects []*workload.Project
		want     []string // Clash.Error
		kind     error
	}{
		{"nothing asked", nil, service(func(*workload.Service) {}), nil, nil},
		{
			"all that is there", func(m *admission.Machine) { m.Privileged = true },
			service(func(s *workload.Service) {
				s.Runtime, s.Devices = "runc", []workload.Device{{HostPath: "/dev/ttyS0"}}
				s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: "/data", Target: "/d"}}
				s.Resources = workload.Resources{NanoCPUs: 2e9, MemoryBytes: 8 << 30, PIDs: 5, CPUSet: "0-1", MemoryReservation: 1 << 30, MemorySwap: 9 << 30}
				s.Security = &workload.Security{Seccomp: "{}", AppArmor: "unconfined", Label: []string{"disable"}}
			}),
			nil, nil,
		},
		{
			"one serial port", nil,
			two(workload.Service{Devices: []workload.Device{{HostPath: "/dev/ttyS0"}}}, workload.Service{Devices: []workload.Device{{HostPath: "/dev/null"}, {HostPath: "/dev/ttyS0", At: 1}}}),
			[]string{"two: services.b.devices[1]: /dev/ttyS0 is also wanted by service a of component one of deployment d1"},
			fault.ErrConflict,
		},
		{
			"missing device", nil, service(func(s *workload.Service) { s.Devices = []workload.Device{{HostPath: "/dev/ttyUSB0"}} }),
			[]string{"app: services.web.devices[0]: this device has no /dev/ttyUSB0"},
			fault.ErrUnfit,
		},
		{
			"missing directory", nil,
			service(func(s *workload.Service) {
				s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: "/nowhere", Create: true}, {Kind: workload.MountBind, Source: "/gone", At: 1}}
			}),
			[]string{"app: services.web.volumes[1]: there is no /gone on this device"},
			fault.ErrUnfit,
		},
		{
			"missing volume", nil,
			[]*workload.Project{{Deployment: "d1", Component: "app", Volumes: []workload.Volume{
				{Name: "v", Shared: "shared", External: true}, {Name: "w", Shared: "other", External: true}, {Name: "x", Shared: "made"},
			}}},
			[]string{`app: volumes.w: there is no volume "other" on this device`},
			fault.ErrUnfit,
		},
		{
			"privileged", nil, service(func(s *workload.Service) { s.Security = &workload.Security{Privileged: true} }),
			[]string{"app: services.web.privileged: this device does not allow privileged containers"},
			fault.ErrRejected,
		},
		{
			"what only the owner allows", nil,
			[]*workload.Project{{
				Component: "app", Services: []workload.Service{{Name: "web", Mounts: []workload.Mount{{Kind: workload.MountBind, Source: "/etc", Create: true}}}},
				Volumes: []workload.Volume{{Name: "v", Options: map[string]string{"type": "ext4", "device": "/dev/sda"}}},
			}},
			[]string{
				"app: services.web.volumes[0]: this device does not allow a mount of /etc with /etc/shadow* (keys and passwords of the device)",
				"app: volumes.v: this device does not allow a volume that mounts a file system of type ext4",
			},
			fault.ErrRejected,
		},
		{
			"an agent that cannot run in containers", func(m *admission.Machine) { m.NoProgram = "linked dynamically" },
			service(func(s *workload.Service) { s.Init = true }),
			[]string{"app: services.web.init: linked dynamically"},
			fault.ErrUnfit,
		},
		{
			"missing socket", func(m *admission.Machine) { m.Privileged = true },
			service(func(s *workload.Service) {
				s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: "/var/run/docker.sock", Create: true}}
			}),
			[]string{"app: services.web.volumes[0]: there is no socket /var/run/docker.sock on this device"},
			fault.ErrUnfit,
		},
		{
			"missing protections", func(m *admission.Machine) { m.Seccomp, m.Privileged = false, true },
			service(func(s *workload.Service) {
				s.Security = &workload.Security{Seccomp: "{}", AppArmor: "mine", Label: []string{"type:a"}}
			}),
			[]string{
				"app: services.web.security_opt: the runtime of this device cannot filter system calls",
				`app: services.web.security_opt: this device has no AppArmor for profile "mine"`,
				"app: services.web.security_opt: this device has no SELinux for label type:a",
			},
			fault.ErrUnfit,
		},
		{
			"unknown runtime", nil, service(func(s *workload.Service) { s.Runtime = "kata" }),
			[]string{`app: services.web.runtime: this device has no runtime "kata"`},
			fault.ErrUnfit,
		},
		{
			"too many processors", nil,
			service(func(s *workload.Service) { s.Resources = workload.Resources{NanoCPUs: 25e8, CPUSet: "0,2-3"} }),
			[]string{
				"app: services.web.cpus: 2.5 processors are asked for, this device has 2",
				"app: services.web.cpuset: processor 3 is asked for, the last one of this device is 1",
			},
			fault.ErrUnfit,
		},
		{
			"limits that the kernel lacks", func(m *admission.Machine) {
				m.Cgroup = 2
				m.Lacks = func(r workload.Resources) []workload.MissingLimit {
					if r.OOMKillDisable {
						return []workload.MissingLimit{{Key: "oom_kill_disable", What: "way to do it"}, {Key: "cpu_quota", What: "limits of CPU time", Hint: "boot another"}}
					}
					return nil
				}
			},
			service(func(s *workload.Service) { s.Resources = workload.Resources{OOMKillDisable: true} }),
			[]string{
				"app: services.web.cpu_quota: this device's control groups (version 2) have no limits of CPU time",
				"app: services.web.oom_kill_disable: this device's control groups (version 2) have no way to do it",
			},
			fault.ErrUnfit,
		},
		{
			"missing block device", nil,
			service(func(s *workload.Service) {
				s.Resources = workload.Resources{Blkio: &workload.Blkio{ReadBps: []workload.BlkioRate{{Path: "/dev/sda", Rate: 1}, {Path: "/dev/sdb", Rate: 1}}}}
			}),
			[]string{"app: services.web.blkio_config: this device has no /dev/sdb"},
			fault.ErrUnfit,
		},
		{
			"more memory than there is", nil,
			two(workload.Service{Replicas: 2, Resources: workload.Resources{MemoryReservation: 400 << 20}}, workload.Service{Resources: workload.Resources{MemoryReservation: 300 << 20}}),
			[]string{"two: services.b.mem_reservation: with this service 1100 MiB of memory are reserved, this device has 1024 MiB"},
			fault.ErrUnfit,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := machine()
			if tt.machine != nil {
				tt.machine(&m)
			}
			found := admission.Check(m, tt.projects)
			var got []string
			for _, c := range found {
				got = append(got, c.Error())
				if c.Path == "services.web.cpu_quota" && fault.Hint(c) == "" {
					t.Errorf("%v has no hint", c)
				}
				if !errors.Is(c, tt.kind) {
					t.Errorf("%v is no %v", c, tt.kind)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("clashes (-want +got):\n%s", diff)
			}
			if tt.kind != nil && !errors.Is(found, tt.kind) {
				t.Errorf("all together are no %v", tt.kind)
			}
		})
	}
}

// A clash keeps to its deployment: the others go on.
func TestClashesOfADeployment(t *testing.T) {
	a := workload.Service{Name: "a"}
	b := workload.Service{Name: "b", Devices: []workload.Device{{HostPath: "/dev/none"}}}
	found := admission.Check(machine(), []*workload.Project{project("d1", "one", a), project("d2", "two", b)})
	if got := found.Of("d1"); got != nil {
		t.Errorf("clashes of d1: %v", got)
	}
	if got := found.Of("d2"); len(got) != 1 || fault.Hint(got[0]) == "" {
		t.Errorf("clashes of d2: %v, want one with a hint", got)
	}
}
