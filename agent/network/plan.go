package network

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

// errNoSubnet is told by plan when the pool is used up.
var errNoSubnet = errors.New("no subnet left in the pool")

// choices are what a plan needs to know of the device.
type choices interface {
	// subnet returns addresses that nothing uses for a network of a project; of IPv4, at least need of them.
	subnet(network string, f family, need int) (netip.Prefix, error)
	// free refuses addresses that the host uses.
	free(p netip.Prefix) error
	// name returns an interface name that nothing uses.
	name(network string) (string, error)
	// mtu is what a network gets that asks for none; 0: not known, a new one gets the kernel's default.
	mtu() (int, error)
	// external is a network that the site declares.
	external(name string) (*bridge, error)
}

// prepare changes the state to what p wants. Nothing that an attached container uses goes away.
func (s *state) prepare(p *workload.Project, c choices) error {
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
	own.unwant()
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
			own.Services[sv.Name] = &service{Places: map[string]*place{}}
		}
		t := own.Services[sv.Name]
		t.Wanted, t.Ports, t.Replicas, t.Hostname = true, portsOf(sv.Ports), sv.Count(), sv.Hostname
		if sv.Namespaces.Network != "" {
			t.Ports = nil // not this service's own
			continue
		}
		for _, at := range sv.Networks {
			if err := s.fix(p.Name, sv.Name, at); err != nil {
				return fmt.Errorf("service %q: %w", sv.Name, err)
			}
		}
	}
	for _, sv := range p.Services {
		if sv.Namespaces.Network != "" {
			continue
		}
		for _, at := range sv.Networks {
			if err := s.sit(p.Name, sv.Name, at); err != nil {
				return fmt.Errorf("service %q: %w", sv.Name, err)
			}
		}
	}
	if err := s.reseat(p.Name); err != nil {
		return err
	}
	own.prune()
	return nil
}

// roomy is the need of a network that many projects share: a whole cut.
const roomy = 1 << 7

// needs is how many addresses a network of a project needs: one for the name of each service, and two for each replica,
// whose next container comes up beside it, with one for its own name.
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

func (p *project) unwant() {
	for _, b := range p.Networks {
		b.Wanted = false
	}
	for _, sv := range p.Services {
		sv.Wanted = false
		for _, pl := range sv.Places {
			pl.Wanted = false
		}
	}
}

// desired is the network that a project asks for; what it leaves open stays as old has it, unless that holds fewer
// than need addresses and there is more.
func desired(n workload.Network, old *bridge, need int, c choices) (*bridge, error) {
	if n.External != "" {
		return c.external(n.External)
	}
	if old == nil || old.Shared != "" || old.CNI != "" {
		old = &bridge{}
	}
	b := &bridge{Name: old.Name, Internal: n.Internal, MTU: n.MTU, Driver: n.Driver}
	if b.Driver == workload.Bridge {
		b.Driver = ""
	}
	if err := b.drive(n); err != nil {
		return nil, err
	}
	for _, s := range n.Subnets {
		t := b.of(familyOf(s.Prefix.Addr()))
		if t.valid() {
			return nil, fmt.Errorf("subnets %s and %s: one of a family is supported: %w", t.Subnet, s.Prefix, fault.ErrUnsupported)
		}
		*t = span{Subnet: s.Prefix.Masked(), Gateway: s.Gateway, Range: s.Range.Masked(), Reserved: slices.Clone(s.Reserved), Given: true}
	}
	if n.NoIPv4 {
		b.span = span{}
	}
	for f, wanted := range map[family]bool{v4: !n.NoIPv4, v6: n.IPv6} {
		if was := old.of(f); !wanted || b.of(f).valid() {
			continue
		} else if was.valid() && !was.Given {
			*b.of(f) = span{Subnet: was.Subnet}
			if f == v6 || fit(need) >= was.Subnet.Bits() {
				continue
			}
			if more, err := c.subnet(n.Name, f, need); err == nil && more.Bits() < was.Subnet.Bits() {
				b.of(f).Subnet = more
			} else if err != nil && !errors.Is(err, errNoSubnet) {
				return nil, err
			}
			continue
		}
		if !b.routed() {
			return nil, fault.WithHint(fmt.Errorf("driver %s: a subnet is needed: %w", b.Driver, fault.ErrInvalid), "write the subnet of the parent's network under ipam")
		}
		subnet, err := c.subnet(n.Name, f, need)
		if err != nil {
			return nil, err
		}
		b.of(f).Subnet = subnet
	}
	var err error
	if b.routed() && b.Name == "" {
		if b.Name, err = c.name(n.Name); err != nil {
			return nil, err
		}
	}
	if b.routed() && b.MTU == 0 {
		if b.MTU, err = c.mtu(); err != nil {
			return nil, err
		}
	}
	b.MTU = cmp.Or(b.MTU, old.MTU) // also where the device has no uplink now
	if !b.routed() {
		b.Name = ""
	}
	return b, b.check()
}

// checkSubnets refuses given addresses that others have.
func (s *state) checkSubnets(project, network string, b, old *bridge, c choices) error {
	for f := range families {
		mine := b.of(f)
		if !mine.Given || !b.routed() || b.Shared != "" {
			continue
		}
		for name, p := range s.Projects {
			for n, other := range p.Networks {
				if (name != project || n != network) && other.routed() && other.of(f).valid() && other.of(f).Subnet.Overlaps(mine.Subnet) {
					return fault.WithHint(fmt.Errorf("subnet %s overlaps %s of network %q of project %q: %w", mine.Subnet, other.of(f).Subnet, n, name, fault.ErrConflict),
						"give one of them another subnet")
				}
			}
		}
		if old == nil || old.of(f).Subnet != mine.Subnet {
			if err := c.free(mine.Subnet); err != nil {
				return err
			}
		}
	}
	return nil
}

// renumber drops the addresses that a network's new shape has no more.
func (p *project) renumber(network string, old, fresh *bridge) {
	for _, sv := range p.Services {
		pl := sv.Places[network]
		if pl == nil {
			continue
		}
		for f := range families {
			t := pl.of(f)
			if t.Fixed = (netip.Addr{}); !old.of(f).same(fresh.of(f)) || old.Shared != fresh.Shared || old.CNI != fresh.CNI {
				*t = seats{}
			}
			if !fresh.routed() {
				t.VIP, t.Each = netip.Addr{}, nil
			}
		}
	}
	for _, a := range p.Attachments {
		if l, ok := a.Links[network]; ok && fresh.CNI == "" && l.Given != nil {
			l.Given = nil
			a.Links[network] = l
		}
	}
}

// fix notes the addresses that a service is to have, and takes them from names and from who is not there.
func (s *state) fix(project, service string, at workload.Attachment) error {
	p := s.Projects[project]
	b, sv := p.Networks[at.Network], p.Services[service]
	pl := sv.Places[at.Network]
	if pl == nil {
		pl = &place{}
		sv.Places[at.Network] = pl
	}
	for f, a := range map[family]netip.Addr{v4: at.IPv4.Unmap(), v6: at.IPv6} {
		pl.of(f).Fixed = netip.Addr{}
		if !a.IsValid() || b.CNI != "" {
			continue // the site's plugins know what they have
		}
		if span := b.of(f); !span.valid() || !span.Subnet.Contains(a) || a == span.gateway() || a == span.Subnet.Addr() || f == v4 && a == last(span.Subnet) {
			return fault.WithHint(fmt.Errorf("network %q: address %s is not one of %s that a container can have: %w", at.Network, a, span.Subnet, fault.ErrInvalid),
				"give the network a subnet under ipam that holds it")
		}
		if sv.Replicas > 1 {
			return fmt.Errorf("network %q: address %s for %d replicas: %w", at.Network, a, sv.Replicas, fault.ErrInvalid)
		}
		for name, other := range p.Services {
			if q := other.Places[at.Network]; q != nil && name != service && other.Wanted && q.of(f).Fixed == a {
				return fmt.Errorf("network %q: address %s is also of service %q: %w", at.Network, a, name, fault.ErrConflict)
			}
		}
		if b.Shared != "" {
			if who := s.sharer(project, b, a); who != "" {
				return fmt.Errorf("network %q: address %s is that of %s: %w", at.Network, a, who, fault.ErrConflict)
			}
		}
		p.evict(at.Network, f, a)
		pl.of(f).Fixed = a
	}
	return nil
}

// sharer names who of another project has an address of a shared network.
func (s *state) sharer(project string, b *bridge, a netip.Addr) string {
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		for n, other := range s.Projects[name].Networks {
			if name == project || other.Shared != b.Shared {
				continue
			}
			for sv, t := range s.Projects[name].Services {
				if pl := t.Places[n]; pl != nil && (pl.of(familyOf(a)).Fixed == a || slices.Contains(slices.Collect(pl.of(familyOf(a)).all), a)) {
					return fmt.Sprintf("service %q of project %q", sv, name)
				}
			}
		}
	}
	return ""
}

// evict takes an address from names and from containers that are not attached.
func (p *project) evict(network string, f family, a netip.Addr) {
	for name, sv := range p.Services {
		pl := sv.Places[network]
		if pl == nil {
			continue
		}
		used := map[string]bool{}
		for _, at := range p.Attachments {
			if at.Service == name {
				used[seat(at.Replica, at.Slot)] = true
			}
		}
		t := pl.of(f)
		if t.VIP == a {
			t.VIP = netip.Addr{}
		}
		maps.DeleteFunc(t.Each, func(_ int, b netip.Addr) bool { return a == b })
		maps.DeleteFunc(t.Addresses, func(key string, b netip.Addr) bool { return a == b && !used[key] })
	}
}

// sit gives a service its place in a network.
func (s *state) sit(project, service string, at workload.Attachment) error {
	p := s.Projects[project]
	sv, b := p.Services[service], p.Networks[at.Network]
	pl := sv.Places[at.Network]
	pl.Wanted = true
	pl.Aliases = slices.Compact(slices.Sorted(slices.Values(at.Aliases)))
	for f := range families {
		if !b.of(f).valid() {
			continue
		}
		if err := s.number(project, at.Network, sv, f); err != nil {
			return err
		}
	}
	return nil
}

// number gives a service its addresses of one family.
func (s *state) number(project, network string, sv *service, f family) error {
	b, t := s.Projects[project].Networks[network], sv.Places[network].of(f)
	if b.routed() && !t.VIP.IsValid() {
		vip, err := s.takeAddress(project, network, f, true)
		if err != nil {
			return err
		}
		t.VIP = vip
	}
	for n := range max(sv.Replicas, 1) {
		if t.Fixed.IsValid() {
			break // given when the container comes: the one before may have it still
		}
		if _, err := s.number1(project, network, t, f, seat(n+1, 0)); err != nil {
			return err
		}
	}
	for n := range sv.Replicas {
		if sv.Replicas == 1 || t.Each[n+1].IsValid() || !b.routed() {
			continue // the only replica's name means the service
		}
		a, err := s.takeAddress(project, network, f, true)
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

// number1 gives one seat its address, unless it has one.
func (s *state) number1(project, network string, t *seats, f family, key string) (netip.Addr, error) {
	if a := t.Addresses[key]; a.IsValid() {
		return a, nil
	}
	a, err := s.takeAddress(project, network, f, false)
	if err != nil {
		return a, err
	}
	if t.Addresses == nil {
		t.Addresses = map[string]netip.Addr{}
	}
	t.Addresses[key] = a
	return a, nil
}

// takeAddress returns a free address of a network.
func (s *state) takeAddress(project, network string, f family, service bool) (netip.Addr, error) {
	b := s.Projects[project].Networks[network]
	a, ok := b.of(f).choose(s.addresses(b, project, network), service)
	if !ok {
		return a, fault.WithHint(fmt.Errorf("network %q: no address left in %s: %w", network, b.of(f).Subnet, fault.ErrConflict),
			"split the network, or give it a larger subnet or the device a larger pool")
	}
	return a, nil
}

// reseat gives attached containers addresses on networks that were renumbered.
func (s *state) reseat(project string) error {
	p := s.Projects[project]
	for _, id := range slices.Sorted(maps.Keys(p.Attachments)) {
		a := p.Attachments[id]
		for _, n := range a.Networks {
			b, pl := p.Networks[n], p.Services[a.Service].Places[n]
			for f := range families {
				t := pl.of(f)
				if b.of(f).valid() && b.routed() && !t.VIP.IsValid() { // of a service that the project has no more
					if err := s.number(project, n, p.Services[a.Service], f); err != nil {
						return fmt.Errorf("container %q: %w", id, err)
					}
				}
				if !b.of(f).valid() || t.Addresses[seat(a.Replica, a.Slot)].IsValid() {
					continue
				}
				if t.Fixed.IsValid() {
					p.evict(n, f, t.Fixed)
					if t.Addresses == nil {
						t.Addresses = map[string]netip.Addr{}
					}
					if !slices.Contains(slices.Collect(maps.Values(t.Addresses)), t.Fixed) {
						t.Addresses[seat(a.Replica, a.Slot)] = t.Fixed
						continue
					}
				}
				if _, err := s.number1(project, n, t, f, seat(a.Replica, a.Slot)); err != nil {
					return fmt.Errorf("container %q: %w", id, err)
				}
			}
		}
	}
	return nil
}
