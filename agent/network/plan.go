package network

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// errNoSubnet is told by plan when the pool is used up.
var errNoSubnet = errors.New("no subnet left in the pool")

// prepare changes the state to what p wants; choose gives a new network its subnet and interface. Nothing that an attached
// container uses goes away.
func (s *state) prepare(p *workload.Project, choose func(network string) (bridge, error)) error {
	if err := checkProject(p); err != nil {
		return err
	}
	if err := s.checkPorts(p); err != nil {
		return err
	}
	own := s.Projects[p.Name]
	if own == nil {
		own = newProject()
		s.Projects[p.Name] = own
	}
	for _, b := range own.Networks {
		b.Wanted = false
	}
	for _, sv := range own.Services {
		sv.Wanted = false
		for _, pl := range sv.Places {
			pl.Wanted = false
		}
	}
	for _, n := range p.Networks {
		if own.Networks[n.Name] == nil {
			b, err := choose(n.Name)
			if err != nil {
				return err
			}
			own.Networks[n.Name] = &b
		}
		own.Networks[n.Name].Wanted = true
	}
	for _, sv := range p.Services {
		if own.Services[sv.Name] == nil {
			own.Services[sv.Name] = &service{Places: map[string]*place{}}
		}
		t := own.Services[sv.Name]
		t.Wanted, t.Ports, t.Replicas = true, portsOf(sv.Ports), sv.Count()
		for _, at := range sv.Networks {
			if err := own.sit(t, at); err != nil {
				return fmt.Errorf("service %q: %w", sv.Name, err)
			}
		}
	}
	own.prune()
	return nil
}

// sit gives a service its place in a network.
func (p *project) sit(s *service, at workload.Attachment) error {
	pl := s.Places[at.Network]
	if pl == nil {
		vip, err := p.takeAddress(at.Network, true)
		if err != nil {
			return err
		}
		pl = &place{VIP: vip, Addresses: map[string]netip.Addr{}}
		s.Places[at.Network] = pl
	}
	pl.Wanted = true
	pl.Aliases = slices.Compact(slices.Sorted(slices.Values(at.Aliases)))
	for n := range max(s.Replicas, 1) {
		if pl.Addresses[seat(n+1, 0)].IsValid() {
			continue
		}
		a, err := p.takeAddress(at.Network, false)
		if err != nil {
			return err
		}
		pl.Addresses[seat(n+1, 0)] = a
	}
	for n := range s.Replicas {
		if s.Replicas == 1 || pl.Each[n+1].IsValid() {
			continue // the only replica's name means the service
		}
		a, err := p.takeAddress(at.Network, true)
		if err != nil {
			return err
		}
		if pl.Each == nil {
			pl.Each = map[int]netip.Addr{}
		}
		pl.Each[n+1] = a
	}
	return nil
}

// checkProject refuses what cannot be made, whatever else is on the device.
func checkProject(p *workload.Project) error {
	if !validName(p.Name) {
		return fmt.Errorf("project name %q: %w", p.Name, fault.ErrInvalid)
	}
	networks := map[string]bool{}
	for _, n := range p.Networks {
		if !validName(n.Name) || networks[n.Name] {
			return fmt.Errorf("network %q: not a name, or twice: %w", n.Name, fault.ErrInvalid)
		}
		networks[n.Name] = true
	}
	services := map[string]bool{}
	for _, s := range p.Services {
		if !validName(s.Name) || services[s.Name] {
			return fmt.Errorf("service %q: not a name, or twice: %w", s.Name, fault.ErrInvalid)
		}
		services[s.Name] = true
		if err := checkService(s, networks); err != nil {
			return fmt.Errorf("service %q: %w", s.Name, err)
		}
	}
	return nil
}

func checkService(s workload.Service, networks map[string]bool) error {
	if s.Hostname != "" && (!validName(s.Hostname) || len(s.Hostname) > maxHostname) {
		return fmt.Errorf("hostname %q: %w", s.Hostname, fault.ErrInvalid)
	}
	seen := map[string]bool{}
	for _, at := range s.Networks {
		if !networks[at.Network] || seen[at.Network] {
			return fmt.Errorf("network %q: not of this project, or twice: %w", at.Network, fault.ErrInvalid)
		}
		seen[at.Network] = true
		if !validAll(at.Aliases) {
			return fmt.Errorf("network %q: aliases %q: %w", at.Network, at.Aliases, fault.ErrInvalid)
		}
	}
	if len(s.Ports) > 0 && len(s.Networks) == 0 {
		return fmt.Errorf("publishes ports and is on no network: %w", fault.ErrInvalid)
	}
	for _, q := range s.Ports {
		if q.HostIP.Is6() && !q.HostIP.Is4In6() {
			return fmt.Errorf("port %s:%d/%s: published ports are IPv4: %w", q.HostIP, q.HostPort, q.Protocol, fault.ErrUnsupported)
		}
	}
	return checkPorts(portsOf(s.Ports))
}

// portsOf copies ports; 0.0.0.0 is every address, as no address is.
func portsOf(ports []workload.Port) []port {
	out := make([]port, 0, len(ports))
	for _, p := range ports {
		host := p.HostIP.Unmap()
		if host.IsUnspecified() {
			host = netip.Addr{}
		}
		out = append(out, port{host, p.HostPort, p.ContainerPort, p.Protocol})
	}
	return out
}

// portsOf are all ports that a project has: its services' and its containers'.
func (s *state) portsOf(project string) []port {
	p := s.Projects[project]
	if p == nil {
		return nil
	}
	var out []port
	for _, sv := range p.Services {
		out = append(out, sv.Ports...)
	}
	for _, a := range p.Attachments {
		out = append(out, a.Ports...)
	}
	return out
}

// checkPorts refuses a project whose ports an attached container of another project has. What another project is merely
// prepared for does not count: in an update that swaps two projects' ports each would wait for the other for ever. So a
// conflict ends when the other's old containers are detached; that one set of projects is without conflicts is for those
// who accept it to see.
func (s *state) checkPorts(p *workload.Project) error {
	for i, sv := range p.Services {
		for j, q := range portsOf(sv.Ports) {
			for k, other := range p.Services[:i+1] {
				for l, r := range portsOf(other.Ports) {
					if (k < i || l < j) && r.clashes(q) {
						return portHeld(sv.Name, q, fmt.Sprintf("service %q of the same project", other.Name))
					}
				}
			}
		}
		if err := s.checkFree(p.Name, sv.Name, portsOf(sv.Ports)); err != nil {
			return err
		}
	}
	return nil
}

// checkFree refuses ports of a service that an attached container of another project has.
func (s *state) checkFree(project, service string, ports []port) error {
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		if name == project {
			continue // within a project a port may move from one service to another in an update, see publish
		}
		other := s.Projects[name]
		for _, id := range slices.Sorted(maps.Keys(other.Attachments)) {
			a := other.Attachments[id]
			for _, q := range ports {
				if slices.ContainsFunc(a.Ports, q.clashes) {
					return portHeld(service, q, fmt.Sprintf("service %q of project %q", a.Service, name))
				}
			}
		}
	}
	return nil
}

func portHeld(service string, q port, by string) error {
	return fault.WithHint(fmt.Errorf("service %q: port %s is held by %s: %w", service, q, by, fault.ErrConflict),
		"publish another port, or remove the other application first; a port that is about to be given up is waited for")
}

// attach records a container, gives it addresses and, when its service has none that answers, makes it the one. It tells
// whether anything changed.
func (s *state) attach(name string, c workload.Container) (bool, error) {
	p := s.Projects[name]
	if p == nil {
		return false, fault.WithHint(fmt.Errorf("project %q: %w", name, fault.ErrNotFound), "prepare the project first")
	}
	if other, _ := s.find(c.ID); other != "" && other != name {
		return false, fmt.Errorf("container is attached to project %q: %w", other, fault.ErrConflict)
	}
	sv := p.Services[c.Service.Name]
	if sv == nil {
		return false, fault.WithHint(fmt.Errorf("project %q has no service %q: %w", name, c.Service.Name, fault.ErrNotFound),
			"prepare the project first")
	}
	changed := false
	a := p.Attachments[c.ID]
	if a == nil {
		if !validName(c.ID) || c.Replica < 1 {
			return false, fmt.Errorf("container id %q, replica %d: %w", c.ID, c.Replica, fault.ErrInvalid)
		}
		networks := map[string]bool{}
		for n := range p.Networks {
			networks[n] = true
		}
		if err := checkService(c.Service, networks); err != nil {
			return false, err
		}
		if err := s.checkFree(name, c.Service.Name, portsOf(c.Service.Ports)); err != nil {
			return false, err
		}
		a = &attachment{
			Service: c.Service.Name, Replica: c.Replica, Slot: p.freeSlot(c.Service.Name, c.Replica),
			Hostname: hostname(c), Ports: portsOf(c.Service.Ports),
		}
		for _, at := range c.Service.Networks {
			if err := p.seat(sv, a, at.Network); err != nil {
				return false, err
			}
		}
		p.Attachments[c.ID], changed = a, true
	}
	if len(p.answering(c.Service.Name)) == 0 {
		sv.First, changed = c.ID, true
	}
	return changed, nil
}

// hostname is what a container calls itself: each replica of several has a name of its own.
func hostname(c workload.Container) string {
	name := cmp.Or(c.Service.Hostname, c.Service.Name)
	if c.Service.Count() == 1 && c.Replica == 1 {
		return clip(name, maxHostname)
	}
	number := "-" + strconv.Itoa(c.Replica)
	host, domain, _ := strings.Cut(name, ".")
	if host = clip(host, maxHostname-len(number)) + number; domain != "" {
		host += "." + domain
	}
	return clip(host, maxHostname)
}

// activate makes a container the one of its replica that answers. It tells whether that is a change.
func (s *state) activate(project, service, id string) (bool, error) {
	p := s.Projects[project]
	if p == nil || p.Services[service] == nil || p.Attachments[id] == nil || p.Attachments[id].Service != service {
		return false, fmt.Errorf("not attached: %w", fault.ErrNotFound)
	}
	sv, replica := p.Services[service], p.Attachments[id].Replica
	if sv.Active[replica] == id || sv.First == id && sv.Replicas <= 1 {
		return false, nil
	}
	if sv.Active == nil {
		sv.Active = actives{}
	}
	sv.Active[replica], sv.First = id, ""
	return true, nil
}

// leave takes a container out of those that answer, unless there is no other. It tells whether that is a change.
func (s *state) leave(id string) bool {
	_, p := s.find(id)
	if p == nil {
		return false
	}
	sv, replica := p.Services[p.Attachments[id].Service], p.Attachments[id].Replica
	if sv.Active[replica] != id || len(sv.Active) == 1 {
		return false
	}
	delete(sv.Active, replica)
	return true
}

// seat gives a container its address on a network.
func (p *project) seat(s *service, a *attachment, network string) error {
	pl := s.Places[network]
	if pl == nil {
		return fault.WithHint(fmt.Errorf("service %q has no place in network %q: %w", a.Service, network, fault.ErrNotFound),
			"prepare the project first")
	}
	if key := seat(a.Replica, a.Slot); !pl.Addresses[key].IsValid() {
		free, err := p.takeAddress(network, false)
		if err != nil {
			return err
		}
		pl.Addresses[key] = free
	}
	a.Networks = append(a.Networks, network)
	return nil
}

// freeSlot is the lowest slot of a replica that no attached container has.
func (p *project) freeSlot(service string, replica int) int {
	used := map[int]bool{}
	for _, a := range p.Attachments {
		if a.Service == service && a.Replica == replica {
			used[a.Slot] = true
		}
	}
	slot := 0
	for used[slot] {
		slot++
	}
	return slot
}

// detach forgets a container. When none is left that answers, another attached one of its service does.
func (s *state) detach(id string) {
	_, p := s.find(id)
	if p == nil {
		return
	}
	sv := p.Services[p.Attachments[id].Service]
	name := p.Attachments[id].Service
	delete(p.Attachments, id)
	if sv != nil {
		maps.DeleteFunc(sv.Active, func(_ int, active string) bool { return active == id })
		if sv.First == id {
			sv.First = ""
		}
		if rest := p.replicas(name); len(rest) > 0 && len(p.answering(name)) == 0 {
			sv.First = rest[0]
		}
	}
	p.prune()
}
