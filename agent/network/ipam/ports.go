package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// PortsOf converts ports; 0.0.0.0 is every address, like no address.
func PortsOf(ports []workload.Port) []Port {
	out := make([]Port, 0, len(ports))
	for _, p := range ports {
		host := p.HostIP.Unmap()
		if host.IsUnspecified() {
			host = netip.Addr{}
		}
		out = append(out, Port{host, p.HostPort, p.ContainerPort, p.Protocol, p.Replica})
	}
	return out
}

// Ports are all ports of a project: of its services and of its containers.
func (s *State) Ports(project string) []Port {
	p := s.Projects[project]
	if p == nil {
		return nil
	}
	var out []Port
	for _, sv := range p.Services {
		out = append(out, sv.Ports...)
	}
	for _, a := range p.Attachments {
		out = append(out, a.Ports...)
	}
	return out
}

// checkFree rejects ports of a service that an attached container of another project has. Ports that another project is only
// prepared for do not count: in an update that swaps the ports of two projects each would wait for the other forever. So a
// conflict ends when the other's old containers are detached; admission checks that a set of projects has no conflicts.
func (s *State) checkFree(project, service string, ports []Port) error {
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		if name == project {
			continue // within a project a port may move from one service to another in an update, see publish
		}
		other := s.Projects[name]
		for _, id := range slices.Sorted(maps.Keys(other.Attachments)) {
			a := other.Attachments[id]
			for _, q := range ports {
				if slices.ContainsFunc(a.Ports, q.Conflicts) {
					return fault.WithHint(fmt.Errorf("service %q: port %s is held by service %q of project %q: %w", service, q, a.Service, name, fault.ErrConflict),
						"publish another port, or remove the other application first; a port that is about to be given up is waited for")
				}
			}
		}
	}
	return nil
}
