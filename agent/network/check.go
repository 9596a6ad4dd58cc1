package network

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// check holds a state against everything that the rest of the package relies on. It is for bytes from the disk.
func (s *state) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), fault.ErrInvalid)
	}
	subnets := map[netip.Prefix]string{}
	bridges, containers := map[string]string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		p := s.Projects[name]
		if p == nil {
			return bad("project %q: null", name)
		}
		if !validName(name) {
			return bad("project %q: not a name", name)
		}
		for n, b := range p.Networks {
			switch {
			case b == nil || !validName(n):
				return bad("project %q: network %q: not a network", name, n)
			case b.routed() && !validInterface(b.Name):
				return bad("project %q: network %q: interface %q", name, n, b.Name)
			case !b.routed():
				if err := b.check(); err != nil {
					return fmt.Errorf("project %q: network %q: %w", name, n, err)
				}
				continue // what is on the link is the site's business
			case bridges[b.Name] != "" && bridges[b.Name] != b.holder(name, n):
				return bad("project %q: network %q: interface %s is also of %s", name, n, b.Name, bridges[b.Name])
			}
			if err := b.check(); err != nil {
				return fmt.Errorf("project %q: network %q: %w", name, n, err)
			}
			bridges[b.Name] = b.holder(name, n)
			for f := range families {
				for o, holder := range subnets {
					if holder != b.holder(name, n) && o.Overlaps(b.of(f).Subnet) {
						return bad("project %q: network %q: subnet %s overlaps that of %s", name, n, b.of(f).Subnet, holder)
					}
				}
				if b.of(f).valid() {
					subnets[b.of(f).Subnet] = b.holder(name, n)
				}
			}
		}
		if err := p.check(containers); err != nil {
			return fmt.Errorf("project %q: %w", name, err)
		}
		for id := range p.Attachments {
			containers[id] = name
		}
	}
	return nil
}

// holder is who a subnet belongs to, for people.
func (b *bridge) holder(project, network string) string {
	if b.Shared != "" {
		return "the device's network " + b.Shared
	}
	return project + "/" + network
}

// check is [state.check] for one network.
func (b *bridge) check() error {
	if b.CNI != "" {
		if !validName(b.CNI) || b.span.valid() || b.Six.valid() {
			return fmt.Errorf("network %q of the site: %w", b.CNI, fault.ErrInvalid)
		}
		return nil
	}
	if !b.valid() && !b.Six.valid() {
		return fmt.Errorf("no subnet: %w", fault.ErrInvalid)
	}
	for f := range families {
		s := b.of(f)
		if !s.valid() {
			continue
		}
		room := s.Subnet.Addr().BitLen() - s.Subnet.Bits()
		switch {
		case familyOf(s.Subnet.Addr()) != f || s.Subnet != s.Subnet.Masked() || room < 2 || s.Subnet.Bits() < 8:
			return fmt.Errorf("subnet %s: %w", s.Subnet, fault.ErrInvalid)
		case !s.Subnet.Contains(s.gateway()) || s.gateway() == s.Subnet.Addr():
			return fmt.Errorf("gateway %s is not in %s: %w", s.gateway(), s.Subnet, fault.ErrInvalid)
		case s.Range.IsValid() && (!s.Subnet.Contains(s.Range.Addr()) || s.Range.Bits() < s.Subnet.Bits() || s.Range != s.Range.Masked()):
			return fmt.Errorf("range %s is not in %s: %w", s.Range, s.Subnet, fault.ErrInvalid)
		}
	}
	if b.MTU != 0 && (b.MTU < minMTU || b.MTU > maxMTU) {
		return fmt.Errorf("MTU %d: %w", b.MTU, fault.ErrInvalid)
	}
	if b.Parent != "" && !validInterface(b.Parent) {
		return fmt.Errorf("parent interface %q: %w", b.Parent, fault.ErrInvalid)
	}
	return nil
}

// check is [state.check] for one project, whose networks are known to be sound.
func (p *project) check(containers map[string]string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), fault.ErrInvalid)
	}
	addresses := map[string]bool{} // by network
	for name, s := range p.Services {
		if s == nil || !validName(name) {
			return bad("service %q: not a service", name)
		}
		for n, pl := range s.Places {
			b := p.Networks[n]
			if b == nil || pl == nil {
				return bad("service %q: no network %q", name, n)
			}
			for f := range families {
				for a := range pl.of(f).all {
					if !b.of(f).valid() || !b.of(f).Subnet.Contains(a) || a == b.of(f).gateway() || addresses[n+" "+a.String()] {
						return bad("service %q: network %q: address %s", name, n, a)
					}
					addresses[n+" "+a.String()] = true
				}
				if x := pl.of(f).Fixed; x.IsValid() && !b.of(f).Subnet.Contains(x) {
					return bad("service %q: network %q: address %s", name, n, x)
				}
				if b.routed() && b.of(f).valid() != pl.of(f).VIP.IsValid() {
					return bad("service %q: network %q: address %s", name, n, pl.of(f).VIP)
				}
			}
			if !validAll(pl.Aliases) {
				return bad("service %q: network %q: aliases %q", name, n, pl.Aliases)
			}
		}
		if err := checkPorts(s.Ports); err != nil {
			return fmt.Errorf("service %q: %w", name, err)
		}
		for r, id := range s.Active {
			if a := p.Attachments[id]; a == nil || a.Service != name || a.Replica != r {
				return bad("service %q: %q is active and not attached", name, id)
			}
		}
		if a := p.Attachments[s.First]; s.First != "" && (a == nil || a.Service != name) {
			return bad("service %q: %q answers and is not attached", name, s.First)
		}
	}
	for id, a := range p.Attachments {
		if a == nil || !validName(id) || containers[id] != "" || !validName(a.Hostname) || a.Replica < 1 || a.Slot < 0 {
			return bad("container %q: not an attachment", id)
		}
		for _, n := range a.Networks {
			b := p.Networks[n]
			if b == nil {
				return bad("container %q: no network %q", id, n)
			}
			for f := range families {
				if b.of(f).valid() && !p.address(a, n, f).IsValid() {
					return bad("container %q: no address on network %q", id, n)
				}
			}
		}
		if err := a.check(); err != nil {
			return fmt.Errorf("container %q: %w", id, err)
		}
		if p.Services[a.Service] == nil {
			return bad("container %q: no service %q", id, a.Service)
		}
		if err := checkPorts(a.Ports); err != nil {
			return fmt.Errorf("container %q: %w", id, err)
		}
	}
	return nil
}

// check refuses what cannot stand in files or be made in the kernel.
func (a *attachment) check() error {
	if a.Domain != "" && !validName(a.Domain) || a.Joins != "" && !validName(a.Joins) {
		return fmt.Errorf("domain %q, namespace of %q: %w", a.Domain, a.Joins, fault.ErrInvalid)
	}
	for _, l := range a.Links {
		if err := l.check(); err != nil {
			return err
		}
	}
	return checkFiles(a.Hosts, a.DNS)
}

func (l link) check() error {
	if l.Interface != "" && (!validInterface(l.Interface) || l.Interface == "lo") {
		return fmt.Errorf("interface %q: %w", l.Interface, fault.ErrInvalid)
	}
	if l.MAC != "" {
		if mac, err := net.ParseMAC(l.MAC); err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			return fmt.Errorf("hardware address %q: %w", l.MAC, fault.ErrInvalid)
		}
	}
	return nil
}

// checkFiles refuses what cannot stand in a hosts file or a resolver configuration.
func checkFiles(hosts []workload.Host, dns workload.DNS) error {
	for _, h := range hosts {
		if _, err := netip.ParseAddr(h.Address); !validName(h.Name) || err != nil && h.Address != hostGateway {
			return fmt.Errorf("host %q at %q: %w", h.Name, h.Address, fault.ErrInvalid)
		}
	}
	for _, s := range dns.Servers {
		if !s.IsValid() {
			return fmt.Errorf("name server %s: %w", s, fault.ErrInvalid)
		}
	}
	for _, s := range slices.Concat(dns.Search, dns.Options) {
		if s == "" || !printable([]string{s}) || strings.Contains(s, " ") {
			return fmt.Errorf("resolver setting %q: %w", s, fault.ErrInvalid)
		}
	}
	return nil
}

func checkPorts(ports []port) error {
	for _, q := range ports {
		if q.HostPort == 0 || q.ContainerPort == 0 || protocol(q.Protocol) == 0 || q.Host.IsValid() && q.Host.IsUnspecified() {
			return fmt.Errorf("port %s: %w", q, fault.ErrInvalid)
		}
	}
	return nil
}

const (
	maxName     = 253 // characters of a DNS name; also more than a container id or a project has
	maxHostname = 64  // what the kernel takes
	minMTU      = 68  // of IPv4
	maxMTU      = 65535
)

// validName tells whether s can stand in a hosts file and be a file name: letters, digits, dots, dashes, underscores,
// neither a dot nor a dash in front.
func validName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
		default:
			return false
		}
	}
	return true
}

func validAll(names []string) bool {
	return !slices.ContainsFunc(names, func(s string) bool { return !validName(s) })
}

// validInterface tells whether s can be an interface's name.
func validInterface(s string) bool { return len(s) <= 15 && validName(s) }
