package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Check verifies all invariants of a state that was read from the disk.
func (s *State) Check() error {
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
		if !ValidName(name) {
			return bad("project %q: not a name", name)
		}
		for n, b := range p.Networks {
			switch {
			case b == nil || !ValidName(n):
				return bad("project %q: network %q: not a network", name, n)
			case b.Routed() && !validInterface(b.Name):
				return bad("project %q: network %q: interface %q", name, n, b.Name)
			case !b.Routed():
				if err := b.Check(); err != nil {
					return fmt.Errorf("project %q: network %q: %w", name, n, err)
				}
				continue // the site manages its addresses
			case bridges[b.Name] != "" && bridges[b.Name] != b.Owner(name, n):
				return bad("project %q: network %q: interface %s is also of %s", name, n, b.Name, bridges[b.Name])
			}
			if err := b.Check(); err != nil {
				return fmt.Errorf("project %q: network %q: %w", name, n, err)
			}
			bridges[b.Name] = b.Owner(name, n)
			for f := range Families {
				for o, holder := range subnets {
					if holder != b.Owner(name, n) && o.Overlaps(b.Family(f).Prefix) {
						return bad("project %q: network %q: subnet %s overlaps that of %s", name, n, b.Family(f).Prefix, holder)
					}
				}
				if b.Family(f).Valid() {
					subnets[b.Family(f).Prefix] = b.Owner(name, n)
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

// Owner names the owner of a subnet, for messages.
func (b *Network) Owner(project, network string) string {
	if b.Shared != "" {
		return "the device's network " + b.Shared
	}
	return project + "/" + network
}

// Check is [state.Check] for one network.
func (b *Network) Check() error {
	if b.CNI != "" {
		if !ValidName(b.CNI) || b.Subnet.Valid() || b.Six.Valid() {
			return fmt.Errorf("network %q of the site: %w", b.CNI, fault.ErrInvalid)
		}
		return nil
	}
	if !b.Valid() && !b.Six.Valid() {
		return fmt.Errorf("no subnet: %w", fault.ErrInvalid)
	}
	for f := range Families {
		s := b.Family(f)
		if !s.Valid() {
			continue
		}
		room := s.Prefix.Addr().BitLen() - s.Prefix.Bits()
		switch {
		case FamilyOf(s.Prefix.Addr()) != f || s.Prefix != s.Prefix.Masked() || room < 2 || s.Prefix.Bits() < 8:
			return fmt.Errorf("subnet %s: %w", s.Prefix, fault.ErrInvalid)
		case !s.Prefix.Contains(s.GatewayAddr()) || s.GatewayAddr() == s.Prefix.Addr():
			return fmt.Errorf("gateway %s is not in %s: %w", s.GatewayAddr(), s.Prefix, fault.ErrInvalid)
		case s.Range.IsValid() && (!s.Prefix.Contains(s.Range.Addr()) || s.Range.Bits() < s.Prefix.Bits() || s.Range != s.Range.Masked()):
			return fmt.Errorf("range %s is not in %s: %w", s.Range, s.Prefix, fault.ErrInvalid)
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

// check is [state.Check] for one project with valid networks.
func (p *Project) check(containers map[string]string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), fault.ErrInvalid)
	}
	addresses := map[string]bool{} // by network
	for name, s := range p.Services {
		if s == nil || !ValidName(name) {
			return bad("service %q: not a service", name)
		}
		for n, pl := range s.Endpoints {
			b := p.Networks[n]
			if b == nil || pl == nil {
				return bad("service %q: no network %q", name, n)
			}
			for f := range Families {
				for a := range pl.Family(f).all {
					if !b.Family(f).Valid() || !b.Family(f).Prefix.Contains(a) || a == b.Family(f).GatewayAddr() || addresses[n+" "+a.String()] {
						return bad("service %q: network %q: address %s", name, n, a)
					}
					addresses[n+" "+a.String()] = true
				}
				if x := pl.Family(f).Fixed; x.IsValid() && !b.Family(f).Prefix.Contains(x) {
					return bad("service %q: network %q: address %s", name, n, x)
				}
				if b.Routed() && b.Family(f).Valid() != pl.Family(f).VIP.IsValid() {
					return bad("service %q: network %q: address %s", name, n, pl.Family(f).VIP)
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
		if a := p.Attachments[s.Fallback]; s.Fallback != "" && (a == nil || a.Service != name) {
			return bad("service %q: %q answers and is not attached", name, s.Fallback)
		}
	}
	for id, a := range p.Attachments {
		if a == nil || !ValidName(id) || containers[id] != "" || !ValidName(a.Hostname) || a.Replica < 1 || a.Slot < 0 {
			return bad("container %q: not an attachment", id)
		}
		for _, n := range a.Networks {
			b := p.Networks[n]
			if b == nil {
				return bad("container %q: no network %q", id, n)
			}
			for f := range Families {
				if b.Family(f).Valid() && !p.Address(a, n, f).IsValid() {
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

// check rejects values that cannot be written to files or created in the kernel.
func (a *Attachment) check() error {
	if a.Domain != "" && !ValidName(a.Domain) || a.Joins != "" && !ValidName(a.Joins) {
		return fmt.Errorf("domain %q, namespace of %q: %w", a.Domain, a.Joins, fault.ErrInvalid)
	}
	for _, l := range a.Links {
		if err := l.check(); err != nil {
			return err
		}
	}
	return checkFiles(a.Hosts, a.DNS)
}

func (l LinkOptions) check() error {
	if l.Interface != "" && (!validInterface(l.Interface) || l.Interface == "lo") {
		return fmt.Errorf("interface %q: %w", l.Interface, fault.ErrInvalid)
	}
	if l.MAC != "" {
		if mac, ok := parseMAC(l.MAC); !ok || mac[0]&1 != 0 {
			return fmt.Errorf("hardware address %q: %w", l.MAC, fault.ErrInvalid)
		}
	}
	return nil
}

// checkFiles rejects values that cannot be written to a hosts file or a resolver configuration.
func checkFiles(hosts []workload.Host, dns workload.DNS) error {
	for _, h := range hosts {
		if _, err := netip.ParseAddr(h.Address); !ValidName(h.Name) || err != nil && h.Address != HostGateway {
			return fmt.Errorf("host %q at %q: %w", h.Name, h.Address, fault.ErrInvalid)
		}
	}
	for _, s := range dns.Servers {
		if !s.IsValid() {
			return fmt.Errorf("name server %s: %w", s, fault.ErrInvalid)
		}
	}
	for _, s := range slices.Concat(dns.Search, dns.Options) {
		if s == "" || !Printable([]string{s}) || strings.Contains(s, " ") {
			return fmt.Errorf("resolver setting %q: %w", s, fault.ErrInvalid)
		}
	}
	return nil
}

func checkPorts(ports []Port) error {
	for _, q := range ports {
		if q.HostPort == 0 || q.ContainerPort == 0 || ProtocolNumber(q.Protocol) == 0 || q.Host.IsValid() && q.Host.IsUnspecified() {
			return fmt.Errorf("port %s: %w", q, fault.ErrInvalid)
		}
	}
	return nil
}

const (
	maxName     = 253 // characters of a DNS name; also more than a container id or a project has
	maxHostname = 64  // limit of the kernel
	minMTU      = 68  // of IPv4
	maxMTU      = 65535
)

// ValidName reports whether s is valid in a hosts file and as a file name: letters, digits, dots, dashes, underscores, not
// beginning with a dot or a dash.
func ValidName(s string) bool {
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
	return !slices.ContainsFunc(names, func(s string) bool { return !ValidName(s) })
}

// validInterface reports whether s can be an interface's name.
func validInterface(s string) bool { return len(s) <= 15 && ValidName(s) }
