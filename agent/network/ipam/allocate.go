package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Attach records a container, gives it addresses and makes it the backend of its service when there is none. It reports whether
// anything changed.
func (s *State) Attach(name string, c workload.Container) (bool, error) {
	p := s.Projects[name]
	if p == nil {
		return false, fault.WithHint(fmt.Errorf("project %q: %w", name, fault.ErrNotFound), "prepare the project first")
	}
	if other, _ := s.Find(c.ID); other != "" && other != name {
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
		if !ValidName(c.ID) || c.Replica < 1 {
			return false, fmt.Errorf("container id %q, replica %d: %w", c.ID, c.Replica, fault.ErrInvalid)
		}
		if a = p.newAttachment(c); c.Service.Namespaces.Network == "" {
			if err := s.checkFree(name, c.Service.Name, a.Ports); err != nil {
				return false, err
			}
			for _, at := range c.Service.Networks {
				if err := s.allocate(name, sv, a, at); err != nil {
					return false, err
				}
			}
		}
		p.Attachments[c.ID], changed = a, true
	}
	if target := c.Service.Namespaces.Network.Service(); target != "" {
		joins := cmp.Or(p.Replica(target, c.Replica), p.Replica(target, 1))
		if joins == "" {
			return false, fmt.Errorf("network_mode service:%s: that service has no container: %w: %w", target, fault.ErrTemporary, fault.ErrNotFound)
		}
		changed = changed || a.Joins != joins
		a.Joins = joins
	}
	if len(p.Backends(c.Service.Name)) == 0 {
		sv.Fallback, changed = c.ID, true
	}
	return changed, nil
}

// newAttachment is the record of a container that has no networks yet.
func (p *Project) newAttachment(c workload.Container) *Attachment {
	a := &Attachment{
		Service: c.Service.Name, Replica: c.Replica, Slot: p.freeSlot(c.Service.Name, c.Replica), Hostname: hostname(c), Domain: c.Service.Domainname,
		Host: c.Service.Namespaces.Network == workload.HostNamespace, Joins: c.Service.Namespaces.Network.Service(),
		Hosts: slices.Clone(c.Service.Hosts), DNS: c.Service.DNS,
	}
	if c.Service.Namespaces.Network == "" {
		a.Ports = slices.DeleteFunc(PortsOf(c.Service.Ports), func(q Port) bool { return q.Replica != 0 && q.Replica != c.Replica })
	}
	return a
}

// hostname is a container's host name: each of several replicas has its own.
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

// Activate makes a container the backend of its replica. It reports whether that is a change.
func (s *State) Activate(project, service, id string) (bool, error) {
	p := s.Projects[project]
	if p == nil || p.Services[service] == nil || p.Attachments[id] == nil || p.Attachments[id].Service != service {
		return false, fmt.Errorf("not attached: %w", fault.ErrNotFound)
	}
	sv, replica := p.Services[service], p.Attachments[id].Replica
	if sv.Active[replica] == id || sv.Fallback == id && sv.Replicas <= 1 {
		return false, nil
	}
	if sv.Active == nil {
		sv.Active = Backends{}
	}
	sv.Active[replica], sv.Fallback = id, ""
	return true, nil
}

// Deactivate removes a container from the backends, unless there is no other. It reports whether that is a change.
func (s *State) Deactivate(id string) bool {
	_, p := s.Find(id)
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

// allocate assigns a container its addresses on a network.
func (s *State) allocate(project string, sv *Service, a *Attachment, at workload.Attachment) error {
	p := s.Projects[project]
	pl, b := sv.Endpoints[at.Network], p.Networks[at.Network]
	if pl == nil || !pl.Wanted && pl.Addresses == nil && pl.Six.Addresses == nil {
		return fault.WithHint(fmt.Errorf("service %q has no endpoint on network %q: %w", a.Service, at.Network, fault.ErrNotFound),
			"prepare the project first")
	}
	key := slotKey(a.Replica, a.Slot)
	for f, fixed := range map[Family]netip.Addr{V4: at.IPv4.Unmap(), V6: at.IPv6} {
		t := pl.Family(f)
		switch {
		case !b.Family(f).Valid():
		case fixed.IsValid():
			if who := p.addressHolder(at.Network, f, fixed); who != "" {
				return fault.WithHint(fmt.Errorf("network %q: address %s is that of container %q: %w", at.Network, fixed, who, fault.ErrConflict),
					"a fixed address cannot be had by two containers at once: this service is updated stop-first")
			}
			p.evict(at.Network, f, fixed)
			t.set(key, fixed)
		default:
			if err := s.allocateSlot(project, at.Network, t, f, key); err != nil {
				return err
			}
		}
	}
	a.Networks = append(a.Networks, at.Network)
	l := LinkOptions{MAC: at.MAC, Interface: at.Interface, Gateway: at.Gateway}
	if b.CNI != "" {
		l.Requested = slices.DeleteFunc([]netip.Addr{at.IPv4, at.IPv6}, func(a netip.Addr) bool { return !a.IsValid() })
	}
	if l.MAC != "" || l.Interface != "" || l.Gateway || len(l.Requested) > 0 {
		if a.Links == nil {
			a.Links = map[string]LinkOptions{}
		}
		a.Links[at.Network] = l
	}
	return nil
}

// addressHolder is the id of the attached container that has an address of a network, "" if there is none.
func (p *Project) addressHolder(network string, f Family, want netip.Addr) string {
	for id, a := range p.Attachments {
		if slices.Contains(a.Networks, network) && p.Address(a, network, f) == want {
			return id
		}
	}
	return ""
}

// freeSlot is the lowest slot of a replica that no attached container has.
func (p *Project) freeSlot(service string, replica int) int {
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

// Detach removes a container. When its service has no backend left, another attached container becomes the backend.
func (s *State) Detach(id string) {
	_, p := s.Find(id)
	if p == nil {
		return
	}
	sv := p.Services[p.Attachments[id].Service]
	name := p.Attachments[id].Service
	delete(p.Attachments, id)
	if sv != nil {
		maps.DeleteFunc(sv.Active, func(_ int, active string) bool { return active == id })
		if sv.Fallback == id {
			sv.Fallback = ""
		}
		if rest := p.Replicas(name); len(rest) > 0 && len(p.Backends(name)) == 0 {
			sv.Fallback = rest[0]
		}
	}
	p.prune()
}
