package workload_test

import (
	"net/netip"
	"testing"

	"github.com/longshore-dev/longshore/agent/workload"
)

// A service is updated without a gap only if nothing is lost when its old and its new container run at the same time.
func TestExclusive(t *testing.T) {
	networks := []workload.Network{{Name: "line"}, {Name: "bridged"}, {Name: "plant", Driver: workload.Macvlan}}
	on := func(a workload.Attachment) workload.Service {
		return workload.Service{Networks: []workload.Attachment{a}}
	}
	mounted := func(m workload.Mount) workload.Service { return workload.Service{Mounts: []workload.Mount{m}} }
	in := func(n workload.Namespaces) workload.Service { return workload.Service{Namespaces: n} }
	for _, tt := range []struct {
		name    string
		service workload.Service
		other   workload.Namespaces // of a second service
		want    string
	}{
		{name: "nothing"},
		{name: "published ports", service: workload.Service{Ports: []workload.Port{{HostPort: 80}}}},
		{name: "no network", service: in(workload.Namespaces{Network: workload.NoNamespace})},
		{name: "processes and IPC of the device", service: in(workload.Namespaces{PID: workload.HostNamespace, IPC: workload.HostNamespace})},
		{name: "network of the device", service: in(workload.Namespaces{Network: workload.HostNamespace}), want: "the service has the network of the device itself, which the old and the new container would share"},
		{name: "network of another service", service: in(workload.Namespaces{Network: workload.ServiceNamespace("db")}), want: "the service has the network of db"},
		{name: "processes of another service", service: in(workload.Namespaces{PID: workload.ServiceNamespace("db")})},
		{name: "another service in its network", other: workload.Namespaces{Network: workload.ServiceNamespace("web")}, want: "service other is in a namespace of its container"},
		{name: "another service sees its processes", other: workload.Namespaces{PID: workload.ServiceNamespace("web")}, want: "service other is in a namespace of its container"},
		{name: "another service shares its IPC", other: workload.Namespaces{IPC: workload.ServiceNamespace("web")}, want: "service other is in a namespace of its container"},
		{name: "another service in a third one's network", other: workload.Namespaces{Network: workload.ServiceNamespace("db")}},
		{name: "chosen addresses", service: on(workload.Attachment{Network: "line"})},
		{name: "a bridge", service: on(workload.Attachment{Network: "bridged"})},
		{name: "fixed IPv4", service: on(workload.Attachment{Network: "line", IPv4: netip.MustParseAddr("10.0.0.2")}), want: "its address on network line is fixed, and two containers cannot have it"},
		{name: "fixed IPv6", service: on(workload.Attachment{Network: "line", IPv6: netip.MustParseAddr("fd00::2")}), want: "its address on network line is fixed, and two containers cannot have it"},
		{name: "fixed MAC", service: on(workload.Attachment{Network: "line", MAC: "02:42:ac:11:00:02"}), want: "its address on network line is fixed, and two containers cannot have it"},
		{name: "a network of the site", service: on(workload.Attachment{Network: "plant"}), want: "network plant has no service address that could move"},
		{name: "a volume", service: mounted(workload.Mount{Kind: workload.MountVolume, Source: "data", Target: "/data"}), want: "the old and the new container would write to data at once"},
		{name: "a volume without a name", service: mounted(workload.Mount{Kind: workload.MountVolume, Target: "/data"}), want: "the volume at /data is written to by one container at a time"},
		{name: "a directory of the device", service: mounted(workload.Mount{Kind: workload.MountBind, Source: "/srv/data", Target: "/data"}), want: "the old and the new container would write to /srv/data at once"},
		{name: "a volume to read", service: mounted(workload.Mount{Kind: workload.MountVolume, Source: "data", Target: "/data", ReadOnly: true})},
		{name: "a directory to read", service: mounted(workload.Mount{Kind: workload.MountBind, Source: "/srv/data", Target: "/data", ReadOnly: true})},
		{name: "memory", service: mounted(workload.Mount{Kind: workload.MountTmpfs, Target: "/tmp"})},
		{name: "files of an image", service: mounted(workload.Mount{Kind: workload.MountImage, Target: "/model"})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.service.Name = "web"
			p := &workload.Project{Networks: networks, Services: []workload.Service{tt.service, {Name: "other", Namespaces: tt.other}}}
			if got := p.Exclusive(&p.Services[0]); got != tt.want {
				t.Errorf("Exclusive = %q, want %q", got, tt.want)
			}
		})
	}
}
