package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// bridgeSettings are kernel settings of a bridge. A family that the kernel lacks has none.
func bridgeSettings(b *ipam.Network) [][2]string {
	four, six := sysctlDir(ipam.V4)+b.Name, sysctlDir(ipam.V6)+b.Name
	list := [][2]string{
		{four + "/send_redirects", "0"},   // neighbours must continue to communicate through the host
		{four + "/route_localnet", "1"},   // ports published on 127.0.0.1
		{four + "/forwarding", "1"},       // also if it is off by default for new interfaces
		{four + "/proxy_arp", "0"},        // an answer for a foreign address would bypass routing
		{four + "/accept_redirects", "0"}, // a container must not change the host's routes
	}
	if !b.Six.Valid() {
		return append(list, [2]string{six + "/disable_ipv6", "1"}) // containers must not bypass our rules over IPv6
	}
	return append(
		list, [2]string{six + "/disable_ipv6", "0"}, [2]string{six + "/accept_ra", "0"}, [2]string{six + "/accept_dad", "0"},
		[2]string{six + "/accept_redirects", "0"}, [2]string{six + "/forwarding", "1"}, [2]string{six + "/proxy_ndp", "0"},
	)
}

// ensureBridge creates the missing parts of a network's bridge and returns its index.
func (h *host) ensureBridge(b *ipam.Network, label string) (int, error) {
	l, err := h.bridgeLink(b)
	if err != nil {
		return 0, err
	}
	if want := h.alias(label); l.Attrs().Alias != want {
		if err := h.links.LinkSetAlias(l, want); err != nil {
			return 0, fmt.Errorf("label bridge %s: %w", b.Name, err)
		}
	}
	if b.MTU != 0 && l.Attrs().MTU != b.MTU {
		if err := h.links.LinkSetMTU(l, b.MTU); err != nil {
			return 0, fmt.Errorf("set the MTU of bridge %s: %w", b.Name, err)
		}
	}
	err = h.do(func() error { return setSysctls(bridgeSettings(b)) })
	if err != nil {
		return 0, fmt.Errorf("set up bridge %s: %w", b.Name, err)
	}
	for f := range ipam.Families {
		if s := b.Family(f); s.Valid() {
			if err := ensureAddress(h.links, l, netip.PrefixFrom(s.GatewayAddr(), s.Prefix.Bits()), netip.Addr{}); err != nil {
				return 0, fmt.Errorf("give bridge %s its address: %w", b.Name, err)
			}
		}
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := h.links.LinkSetUp(l); err != nil {
			return 0, fmt.Errorf("raise bridge %s: %w", b.Name, err)
		}
	}
	for f := range ipam.Families {
		if err := h.ensureConnected(l, b.Family(f), f); err != nil {
			return 0, fmt.Errorf("route to bridge %s: %w", b.Name, err)
		}
	}
	return l.Attrs().Index, nil
}

// connectedMetric is the metric of the kernel's own routes to the addresses of an interface.
var connectedMetric = [ipam.Families]int{ipam.V6: 256}

// ensureConnected adds the route to a bridge's subnet as the kernel does with the address, when another program has removed it. Like the
// kernel's, it is added after a route to the same subnet by another interface, which stays.
func (h *host) ensureConnected(l netlink.Link, s *ipam.Subnet, f ipam.Family) error {
	if !s.Valid() {
		return nil
	}
	if ok, err := h.connected(l, s.Prefix); ok || err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(s.Prefix), Priority: connectedMetric[f], Protocol: unix.RTPROT_KERNEL}
	if f == ipam.V4 {
		r.Scope, r.Src = unix.RT_SCOPE_LINK, s.GatewayAddr().AsSlice()
	}
	if err := h.links.RouteAppend(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// connected reports whether the main table has a route to a subnet by an interface.
func (h *host) connected(l netlink.Link, subnet netip.Prefix) (bool, error) {
	list, err := completeList(func() ([]netlink.Route, error) { return h.routes.RouteList(l, socket(ipam.FamilyOf(subnet.Addr()))) })
	if err != nil {
		return false, fmt.Errorf("list routes by %s: %w", l.Attrs().Name, err)
	}
	return slices.ContainsFunc(list, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == subnet.String() }), nil
}

// bridgeLink finds a network's bridge, or creates it.
func (h *host) bridgeLink(b *ipam.Network) (netlink.Link, error) {
	l, err := linkByName(h.links, b.Name)
	if err != nil {
		return nil, err
	}
	if l == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = b.Name, b.MTU
		// Fixed, because otherwise it changes with the bridge's ports, and containers lose their gateway.
		attrs.HardwareAddr = ipam.HardwareAddrOf(b.GatewayAddr(), b.Six.GatewayAddr())
		if err := h.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make bridge %s: %w", b.Name, err)
		}
		if l, err = linkByName(h.links, b.Name); err != nil || l == nil {
			return nil, fmt.Errorf("make bridge %s: not there afterwards: %w", b.Name, errors.Join(err, fault.ErrTemporary))
		}
	}
	if l.Type() != "bridge" || !h.ours(l.Attrs()) {
		return nil, fault.WithHint(fmt.Errorf("interface %s exists and is not ours: %w", b.Name, fault.ErrConflict),
			"remove or rename that interface")
	}
	return l, nil
}

// ensureAddress adds an address to an interface unless it has it. broadcast is for a single address; zero: none.
func ensureAddress(links *netlink.Handle, l netlink.Link, p netip.Prefix, broadcast netip.Addr) error {
	ok, err := hasAddress(links, l, p)
	if ok || err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: ipNet(p)}
	if broadcast.IsValid() {
		a.Broadcast = broadcast.AsSlice()
	}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // no other host assigns addresses in our subnets, and detection takes a second
	}
	if err := links.AddrReplace(l, a); err != nil {
		return fmt.Errorf("address %s: %w", p, err)
	}
	return nil
}

// setSysctls writes settings of the calling thread's network namespace. Those of a family that the kernel lacks are left out.
func setSysctls(list [][2]string) error {
	for _, s := range list {
		if err := setSysctl(s[0], s[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// bridgeDrift describes how a bridge differs from what it should be; "" when it does not.
func (m *Manager) bridgeDrift(b *ipam.Network, there *present) (string, error) {
	l := there.links[b.Name]
	switch {
	case l == nil:
		return "is gone", nil
	case l.Type() != "bridge" || !m.host.ours(l.Attrs()):
		return "is another program's", nil
	case l.Attrs().Flags&net.FlagUp == 0:
		return "is down", nil
	case b.MTU != 0 && l.Attrs().MTU != b.MTU:
		return fmt.Sprintf("has the MTU %d", l.Attrs().MTU), nil
	}
	for f := range ipam.Families {
		s := b.Family(f)
		if !s.Valid() {
			continue
		}
		if ok, err := hasAddress(m.host.links, l, netip.PrefixFrom(s.GatewayAddr(), s.Prefix.Bits())); err != nil || !ok {
			return "has lost its address", err
		}
		if ok, err := m.host.connected(l, s.Prefix); err != nil || !ok {
			return "has lost its route", err
		}
	}
	what := ""
	err := m.host.do(func() error {
		for _, s := range bridgeSettings(b) {
			v, err := sysctl(s[0])
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if v != s[1] {
				what = fmt.Sprintf("has the setting %s at %s", s[0], v)
			}
		}
		return nil
	})
	return what, err
}
