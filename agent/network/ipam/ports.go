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

// checkPorts rejects a project whose ports an attached container of another project has. Ports that another project is only
// prepared for do not count: in an update that swaps the ports of two projects each would wait for the other forever. So a
// conflict ends when the other's old containers are detached; admission checks that a set of projects has no conflicts.
func (s *State) checkPorts(p *workload.Project) error {
	for i, sv := range p.Services {
		for j, q := range PortsOf(sv.Ports) {
			for k, other := range p.Services[:i+1] {
				for l, r := range PortsOf(other.Ports) {
					if (k < i || l < j) && r.Conflicts(q) {
						return portHeld(sv.Name, q, fmt.Sprintf("service %q of the same project", other.Name))
					}
				}
			}
		}
		if err := s.checkFree(p.Name, sv.Name, PortsOf(sv.Ports)); err != nil {
			return err
		}
	}
	return nil
}

// checkFree rejects ports of a service that an attached container of another project has.
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
					return portHeld(service, q, fmt.Sprintf("service %q of project %q", a.Service, name))
				}
			}
		}
	}
	return nil
}

func portHeld(service string, q Port, by string) error {
	return fault.WithHint(fmt.Errorf("service %q: port %s is held by %s: %w", service, q, by, fault.ErrConflict),
		"publish another port, or remove the other application first; a port that is about to be given up is waited for")
}
