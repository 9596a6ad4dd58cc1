package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ErrNoSubnet is the error of [State.Prepare] when the pool is used up.
var ErrNoSubnet = errors.New("no subnet left in the pool")

// Device provides the facts about the machine that a plan needs.
type Device interface {
	// Subnet returns an unused subnet for a network of a project; of IPv4, with at least need addresses.
	Subnet(network string, f Family, need int) (netip.Prefix, error)
	// Free rejects addresses that the host uses.
	Free(p netip.Prefix) error
	// Name returns an unused interface name.
	Name(network string) (string, error)
	// MTU is that of a network that sets none; 0: not known, a new one gets the kernel's default.
	MTU() (int, error)
	// External is a network that the site declares.
	External(name string) (*Network, error)
}

// Prepare changes the state to what p defines, which agent/compose has checked. It keeps everything that an attached container uses.
func (s *State) Prepare(p *workload.Project, c Device) error {
	for _, sv := range p.Services {
		if err := s.checkFree(p.Name, sv.Name, PortsOf(sv.Ports)); err != nil {
			return err
		}
	}
	own := s.Projects[p.Name]
	if own == nil {
		own = newProject()
		s.Projects[p.Name] = own
	}
	own.clearWanted()
	for _, n := range p.Networks {
		old := own.Networks[n.Name]
		b, err := desired(n, old, needs(p, n.Name), c)
		if err != nil {
			return fmt.Errorf("network %q: %w", n.Name, err)
		}
		if err := s.checkSubnets(p.Name, n.Name, b, old, c); err != nil {
			return fmt.Errorf("network %q: %w", n.Name, err)
		}
		if old != nil {
			own.renumber(n.Name, old, b)
		}
		b.Wanted = true
		own.Networks[n.Name] = b
	}
	for _, sv := range p.Services {
		if own.Services[sv.Name] == nil {
			own.Services[sv.Name] = &Service{Endpoints: map[string]*Endpoint{}}
		}
		t := own.Services[sv.Name]
		t.Wanted, t.Ports, t.Replicas, t.Hostname = true, PortsOf(sv.Ports), sv.Count(), sv.Hostname
		if sv.Namespaces.Network != "" {
			t.Ports = nil // not this service's own
			continue
		}
		for _, at := range sv.Networks {
			if err := s.reserveFixed(p.Name, sv.Name, at); err != nil {
				return fmt.Errorf("service %q: %w", sv.Name, err)
			}
		}
	}
	for _, sv := range p.Services {
		if sv.Namespaces.Network != "" {
			continue
		}
		for _, at := range sv.Networks {
			if err := s.allocateService(p.Name, sv.Name, at); err != nil {
				return fmt.Errorf("service %q: %w", sv.Name, err)
			}
		}
	}
	if err := s.reallocate(p.Name); err != nil {
		return err
	}
	own.prune()
	return nil
}

// SharedNeed is how many addresses a network needs that many projects share: a whole subnet of the pool.
const SharedNeed = 1 << 7

// needs is how many addresses a network of a project needs: one for the name of each service, and two for each replica,
// because its next container starts beside it, and one for the replica's own name.
func needs(p *workload.Project, network string) (n int) {
	for _, s := range p.Services {
		if s.Namespaces.Network == "" && slices.ContainsFunc(s.Networks, func(a workload.Attachment) bool { return a.Network == network }) {
			if n += 1 + 2*s.Count(); s.Count() > 1 {
				n += s.Count()
			}
		}
	}
	return n
}

func (p *Project) clearWanted() {
	for _, b := range p.Networks {
		b.Wanted = false
	}
	for _, sv := range p.Services {
		sv.Wanted = false
		for _, pl := range sv.Endpoints {
			pl.Wanted = false
		}
	}
}

// desired is the network that a project asks for. What it does not set is taken from old, unless that holds fewer than need
// addresses and a larger subnet is free.
func desired(n workload.Network, old *Network, need int, c Device) (*Network, error) {
	if n.External != "" {
		return c.External(n.External)
	}
	if old == nil || old.Shared != "" || old.CNI != "" {
		old = &Network{}
	}
	b := &Network{
		Name: old.Name, Internal: n.Internal, MTU: n.MTU, Driver: n.Driver, Parent: n.Options["parent"], Mode: n.Options[string(n.Driver)+"_mode"],
	}
	for _, s := range n.Subnets {
		t := b.Family(FamilyOf(s.Prefix.Addr()))
		if t.Valid() {
			return nil, fmt.Errorf("subnets %s and %s: one of a family is supported: %w", t.Prefix, s.Prefix, fault.ErrUnsupported)
		}
		*t = Subnet{Prefix: s.Prefix.Masked(), Gateway: s.Gateway, Range: s.Range.Masked(), Reserved: slices.Clone(s.Reserved), Configured: true}
	}
	if n.NoIPv4 {
		b.Subnet = Subnet{}
	}
	for f, wanted := range map[Family]bool{V4: !n.NoIPv4, V6: n.IPv6} {
		if was := old.Family(f); !wanted || b.Family(f).Valid() {
			continue
		} else if was.Valid() && !was.Configured {
			*b.Family(f) = Subnet{Prefix: was.Prefix}
			if f == V6 || fit(need) >= was.Prefix.Bits() {
				continue
			}
			if more, err := c.Subnet(n.Name, f, need); err == nil && more.Bits() < was.Prefix.Bits() {
				b.Family(f).Prefix = more
			} else if err != nil && !errors.Is(err, ErrNoSubnet) {
				return nil, err
			}
			continue
		}
		if !b.Routed() {
			return nil, fault.WithHint(fmt.Errorf("driver %s: a subnet is needed: %w", b.Driver, fault.ErrInvalid), "write the subnet of the parent's network under ipam")
		}
		subnet, err := c.Subnet(n.Name, f, need)
		if err != nil {
			return nil, err
		}
		b.Family(f).Prefix = subnet
	}
	var err error
	if b.Routed() && b.Name == "" {
		if b.Name, err = c.Name(n.Name); err != nil {
			return nil, err
		}
	}
	if b.Routed() && b.MTU == 0 {
		if b.MTU, err = c.MTU(); err != nil {
			return nil, err
		}
	}
	b.MTU = cmp.Or(b.MTU, old.MTU) // also if the device has no uplink now
	if !b.Routed() {
		b.Name = ""
	}
	return b, nil
}

// checkSubnets rejects configured subnets that other networks have.
func (s *State) checkSubnets(project, network string, b, old *Network, c Device) error {
	for f := range Families {
		mine := b.Family(f)
		if !mine.Configured || !b.Routed() || b.Shared != "" {
			continue
		}
		for name, p := range s.Projects {
			for n, other := range p.Networks {
				if (name != project || n != network) && other.Routed() && other.Family(f).Valid() && other.Family(f).Prefix.Overlaps(mine.Prefix) {
					return fault.WithHint(fmt.Errorf("subnet %s overlaps %s of network %q of project %q: %w", mine.Prefix, other.Family(f).Prefix, n, name, fault.ErrConflict),
						"give one of them another subnet")
				}
			}
		}
		if old == nil || old.Family(f).Prefix != mine.Prefix {
			if err := c.Free(mine.Prefix); err != nil {
				return err
			}
		}
	}
	return nil
}

// renumber removes the addresses that a changed network no longer has.
func (p *Project) renumber(network string, old, fresh *Network) {
	for _, sv := range p.Services {
		pl := sv.Endpoints[network]
		if pl == nil {
			continue
		}
		for f := range Families {
			t := pl.Family(f)
			if t.Fixed = (netip.Addr{}); !old.Family(f).Same(fresh.Family(f)) || old.Shared != fresh.Shared || old.CNI != fresh.CNI {
				*t = Slots{}
			}
			if !fresh.Routed() {
				t.VIP, t.Each = netip.Addr{}, nil
			}
		}
	}
	for _, a := range p.Attachments {
		if l, ok := a.Links[network]; ok && fresh.CNI == "" && l.Assigned != nil {
			l.Assigned = nil
			a.Links[network] = l
		}
	}
}

// reserveFixed records the fixed addresses of a service, and removes them from names and from containers that are not attached.
func (s *State) reserveFixed(project, service string, at workload.Attachment) error {
	p := s.Projects[project]
	b, sv := p.Networks[at.Network], p.Services[service]
	pl := sv.Endpoints[at.Network]
	if pl == nil {
		pl = &Endpoint{}
		sv.Endpoints[at.Network] = pl
	}
	for f, a := range map[Family]netip.Addr{V4: at.IPv4.Unmap(), V6: at.IPv6} {
		pl.Family(f).Fixed = netip.Addr{}
		if !a.IsValid() || b.CNI != "" {
			continue // the site's plugins manage the addresses
		}
		if span := b.Family(f); !span.Valid() || !span.Prefix.Contains(a) || a == span.GatewayAddr() || a == span.Prefix.Addr() || f == V4 && a == Broadcast(span.Prefix) {
			return fault.WithHint(fmt.Errorf("network %q: address %s is not one of %s that a container can have: %w", at.Network, a, span.Prefix, fault.ErrInvalid),
				"give the network a subnet under ipam that holds it")
		}
		if b.Shared != "" {
			if who := s.fixedOwner(project, b, a); who != "" {
				return fmt.Errorf("network %q: address %s is that of %s: %w", at.Network, a, who, fault.ErrConflict)
			}
		}
		p.evict(at.Network, f, a)
		pl.Family(f).Fixed = a
	}
	return nil
}

// fixedOwner names the service of another project that has an address of a shared network.
func (s *State) fixedOwner(project string, b *Network, a netip.Addr) string {
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		for n, other := range s.Projects[name].Networks {
			if name == project || other.Shared != b.Shared {
				continue
			}
			for sv, t := range s.Projects[name].Services {
				if pl := t.Endpoints[n]; pl != nil && (pl.Family(FamilyOf(a)).Fixed == a || slices.Contains(slices.Collect(pl.Family(FamilyOf(a)).all), a)) {
					return fmt.Sprintf("service %q of project %q", sv, name)
				}
			}
		}
	}
	return ""
}

// evict removes an address from names and from containers that are not attached.
func (p *Project) evict(network string, f Family, a netip.Addr) {
	for name, sv := range p.Services {
		pl := sv.Endpoints[network]
		if pl == nil {
			continue
		}
		used := map[string]bool{}
		for _, at := range p.Attachments {
			if at.Service == name {
				used[slotKey(at.Replica, at.Slot)] = true
			}
		}
		t := pl.Family(f)
		if t.VIP == a {
			t.VIP = netip.Addr{}
		}
		maps.DeleteFunc(t.Each, func(_ int, b netip.Addr) bool { return a == b })
		maps.DeleteFunc(t.Addresses, func(key string, b netip.Addr) bool { return a == b && !used[key] })
	}
}

// allocateService gives a service its endpoint on a network.
func (s *State) allocateService(project, service string, at workload.Attachment) error {
	p := s.Projects[project]
	sv, b := p.Services[service], p.Networks[at.Network]
	pl := sv.Endpoints[at.Network]
	pl.Wanted = true
	pl.Aliases = slices.Compact(slices.Sorted(slices.Values(at.Aliases)))
	for f := range Families {
		if !b.Family(f).Valid() {
			continue
		}
		if err := s.allocateFamily(project, at.Network, sv, f); err != nil {
			return err
		}
	}
	return nil
}

// allocateFamily gives a service its addresses of one family.
func (s *State) allocateFamily(project, network string, sv *Service, f Family) error {
	b, t := s.Projects[project].Networks[network], sv.Endpoints[network].Family(f)
	if b.Routed() && !t.VIP.IsValid() {
		vip, err := s.chooseAddress(project, network, f, true)
		if err != nil {
			return err
		}
		t.VIP = vip
	}
	for n := range max(sv.Replicas, 1) {
		if t.Fixed.IsValid() {
			break // assigned when the container is attached: the previous one may still have it
		}
		if err := s.allocateSlot(project, network, t, f, slotKey(n+1, 0)); err != nil {
			return err
		}
	}
	for n := range sv.Replicas {
		if sv.Replicas == 1 || t.Each[n+1].IsValid() || !b.Routed() {
			continue // the only replica has no name of its own
		}
		a, err := s.chooseAddress(project, network, f, true)
		if err != nil {
			return err
		}
		if t.Each == nil {
			t.Each = map[int]netip.Addr{}
		}
		t.Each[n+1] = a
	}
	return nil
}

// allocateSlot gives one slot an address, unless it has one.
func (s *State) allocateSlot(project, network string, t *Slots, f Family, key string) error {
	if t.Addresses[key].IsValid() {
		return nil
	}
	a, err := s.chooseAddress(project, network, f, false)
	if err == nil {
		t.set(key, a)
	}
	return err
}

// chooseAddress returns a free address of a network.
func (s *State) chooseAddress(project, network string, f Family, service bool) (netip.Addr, error) {
	b := s.Projects[project].Networks[network]
	a, ok := b.Family(f).choose(s.addresses(b, project, network), service)
	if !ok {
		return a, fault.WithHint(fmt.Errorf("network %q: no address left in %s: %w", network, b.Family(f).Prefix, fault.ErrConflict),
			"split the network, or give it a larger subnet or the device a larger pool")
	}
	return a, nil
}

// reallocate assigns attached containers addresses on networks that were renumbered.
func (s *State) reallocate(project string) error {
	p := s.Projects[project]
	for _, id := range slices.Sorted(maps.Keys(p.Attachments)) {
		a := p.Attachments[id]
		for _, n := range a.Networks {
			b, pl := p.Networks[n], p.Services[a.Service].Endpoints[n]
			for f := range Families {
				t := pl.Family(f)
				if b.Family(f).Valid() && b.Routed() && !t.VIP.IsValid() { // of a service that the project no longer has
					if err := s.allocateFamily(project, n, p.Services[a.Service], f); err != nil {
						return fmt.Errorf("container %q: %w", id, err)
					}
				}
				if !b.Family(f).Valid() || t.Addresses[slotKey(a.Replica, a.Slot)].IsValid() {
					continue
				}
				if t.Fixed.IsValid() {
					p.evict(n, f, t.Fixed)
					if !slices.Contains(slices.Collect(maps.Values(t.Addresses)), t.Fixed) {
						t.set(slotKey(a.Replica, a.Slot), t.Fixed)
						continue
					}
				}
				if err := s.allocateSlot(project, n, t, f, slotKey(a.Replica, a.Slot)); err != nil {
					return fmt.Errorf("container %q: %w", id, err)
				}
			}
		}
	}
	return nil
}
