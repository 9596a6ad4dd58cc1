package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// veth is the veth pair of one container on one network.
type veth struct {
	outer, label string // interface in the host and its label
	inner        string // interface in the container
	bridge       int    // index
	mtu          int    // 0: the kernel's default
	mac          net.HardwareAddr
	ends         [ipam.Families]end
}

// end has the addresses and routes of one family at a container's end of a link; the zero value: none.
type end struct {
	address     netip.Prefix // of the container
	all         netip.Addr   // broadcast address, which programs use for discovery; zero: none
	gateway     netip.Addr
	route       netip.Prefix // destination behind the gateway; all is every address; zero: none
	returnTable int          // routing table for replies that must leave here although the default route is elsewhere; 0: not needed
}

// ensureVeth creates the missing parts of a veth pair. in is a handle in the container's namespace, ns is open on it.
func (h *host) ensureVeth(w veth, in *netlink.Handle, ns *os.File) error {
	outer, inner, err := h.vethEnds(w, in)
	if err != nil {
		return err
	}
	for try, index := 0, 0; outer == nil; try++ {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index, attrs.MTU = w.outer, index, w.mtu
		v := &netlink.Veth{
			LinkAttrs: attrs, PeerName: w.inner, PeerHardwareAddr: w.mac, PeerNamespace: netlink.NsFd(int(ns.Fd())),
		}
		if err := h.links.LinkAdd(v); err != nil {
			return fmt.Errorf("make link %s: %w", w.outer, err)
		}
		if outer, inner, err = h.vethEnds(w, in); err != nil || outer == nil {
			return fmt.Errorf("make link %s: not there afterwards: %w", w.outer, errors.Join(err, fault.ErrTemporary))
		}
		// The kernel does not recognize a pair whose ends have the same index, and takes up to a second to let packets
		// through. When it is created again with this end's index, the other end gets the next one.
		if index = outer.Attrs().Index; index == inner.Attrs().Index && try == 0 {
			if err := removeLink(h.links, w.outer); err != nil {
				return err
			}
			outer = nil
		}
	}
	if want := h.alias(w.label); outer.Attrs().Alias != want {
		err = h.links.LinkSetAlias(outer, want)
	}
	if err == nil && outer.Attrs().MasterIndex != w.bridge {
		if err = h.links.LinkSetIP6AddrGenMode(outer, eui64Off); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("set up link %s: %w", w.outer, err)
		}
		if err = h.links.LinkSetMasterByIndex(outer, w.bridge); err == nil {
			// If bridged packets pass the host's IP rules (br_netfilter), a rewritten one may return to the port that it came from.
			err = h.links.LinkSetHairpin(outer, true)
		}
	}
	if err == nil && w.mtu != 0 && outer.Attrs().MTU != w.mtu {
		err = h.links.LinkSetMTU(outer, w.mtu)
	}
	if err == nil && outer.Attrs().Flags&net.FlagUp == 0 {
		err = h.links.LinkSetUp(outer)
	}
	if err == nil {
		err = w.ensureContainerEnd(in, inner, ns)
	}
	if err != nil {
		return fmt.Errorf("set up link %s: %w", w.outer, err)
	}
	return nil
}

// vethEnds returns both ends of a pair, or neither: an incomplete pair, or one to another namespace, is removed.
func (h *host) vethEnds(w veth, in *netlink.Handle) (outer, inner netlink.Link, err error) {
	if outer, err = linkByName(h.links, w.outer); err != nil {
		return nil, nil, err
	}
	if inner, err = linkByName(in, w.inner); err != nil {
		return nil, nil, err
	}
	if outer != nil && inner != nil && outer.Attrs().ParentIndex == inner.Attrs().Index && inner.Attrs().ParentIndex == outer.Attrs().Index {
		return outer, inner, nil
	}
	if outer != nil {
		if !h.ours(outer.Attrs()) {
			return nil, nil, fmt.Errorf("interface %s exists and is not ours: %w", w.outer, fault.ErrConflict)
		}
		if err := removeLink(h.links, w.outer); err != nil {
			return nil, nil, err
		}
	}
	if inner != nil { // the namespace is ours: no other program has interfaces in it
		if err := removeLink(in, w.inner); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// ensureContainerEnd gives the container's end its addresses and its routes. ns is open on the container's namespace.
func (w veth) ensureContainerEnd(in *netlink.Handle, l netlink.Link, ns *os.File) error {
	if w.mtu != 0 && l.Attrs().MTU != w.mtu {
		if err := in.LinkSetMTU(l, w.mtu); err != nil {
			return fmt.Errorf("set the MTU of %s: %w", w.inner, err)
		}
	}
	for f := range ipam.Families {
		e := w.ends[f]
		if !e.address.IsValid() {
			continue
		}
		ok, err := hasAddress(in, l, e.address)
		if err == nil && !ok && f == ipam.V6 {
			err = inNamespace(int(ns.Fd()), func() error { return setSysctls(innerSettings(w.inner)) })
		}
		if err == nil && !ok {
			err = ensureAddress(in, l, e.address, e.all)
		}
		if err != nil {
			return err
		}
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := in.LinkSetUp(l); err != nil {
			return fmt.Errorf("raise %s: %w", w.inner, err)
		}
	}
	for f := range ipam.Families {
		if err := w.ends[f].ensureRoute(in, l); err != nil {
			return err
		}
		if err := w.ends[f].ensureReturnRoute(in, l); err != nil {
			return err
		}
	}
	return nil
}

// returnRouteTable is a routing table in containers, and the preference of the rule that leads to it.
const returnRouteTable = 210

// ensureReturnRoute routes packets from an address back through its gateway, whatever the default route is.
func (e end) ensureReturnRoute(in *netlink.Handle, l netlink.Link) error {
	if e.returnTable == 0 {
		return nil
	}
	f := ipam.FamilyOf(e.address.Addr())
	err := in.RouteReplace(&netlink.Route{
		LinkIndex: l.Attrs().Index, Gw: e.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Table: e.returnTable, Protocol: unix.RTPROT_STATIC, Dst: ipNet(allAddresses(f)),
	})
	if err != nil {
		return fmt.Errorf("route answers by %s: %w", e.gateway, err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Src = socket(f), e.returnTable, e.returnTable, ipNet(e.address)
	if err := in.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route answers of %s: %w", e.address, err)
	}
	return nil
}

func (e end) ensureRoute(in *netlink.Handle, l netlink.Link) error {
	if !e.address.IsValid() || !e.route.IsValid() {
		return nil
	}
	if ok, err := e.routed(in); ok || err != nil {
		return err // also a route that the container created itself, for example to a private network
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Src: e.address.Addr().AsSlice(), Protocol: unix.RTPROT_STATIC}
	if e.gateway.IsValid() {
		r.Gw, r.Flags = e.gateway.AsSlice(), int(netlink.FLAG_ONLINK)
	} else {
		r.Scope, r.Dst = unix.RT_SCOPE_LINK, ipNet(e.route)
	}
	if e.route.Bits() > 0 {
		r.Dst = ipNet(e.route)
	}
	if err := in.RouteReplace(r); err != nil {
		return fmt.Errorf("route by %s: %w", e.gateway, err)
	}
	return nil
}

// routed reports whether there is a route to the destination of an end, ours or another.
func (e end) routed(in *netlink.Handle) (bool, error) {
	if !e.route.IsValid() {
		return true, nil
	}
	list, err := completeList(func() ([]netlink.Route, error) { return in.RouteList(nil, socket(ipam.FamilyOf(e.route.Addr()))) })
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range list {
		ones := 0
		if r.Dst != nil {
			ones, _ = r.Dst.Mask.Size()
		}
		if ones == e.route.Bits() && (ones == 0 || r.Dst.IP.Equal(e.route.Addr().AsSlice())) {
			return true, nil
		}
	}
	return false, nil
}

// innerSettings enable IPv6 on a container's interface, with the addresses that we give it only.
func innerSettings(name string) [][2]string {
	six := sysctlDir(ipam.V6) + name
	return [][2]string{
		{six + "/accept_ra", "0"},
		{six + "/accept_dad", "0"},
		{six + "/accept_redirects", "0"}, // neighbours must continue to communicate through the host
		{six + "/disable_ipv6", "0"},
	}
}

// allAddresses is the route to all addresses.
func allAddresses(f ipam.Family) netip.Prefix {
	if f == ipam.V6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// veth is a container's link to a bridge: single addresses, with the bridge as gateway for everything else.
func (m *Manager) veth(p *ipam.Project, id string, index int, bridge int) veth {
	a := p.Attachments[id]
	n := a.Networks[index]
	b := p.Networks[n]
	w := veth{outer: m.vethName(id, n), label: id + "/" + n, inner: a.Interfaces()[index], bridge: bridge, mtu: b.MTU, mac: p.HardwareAddr(a, n)}
	for f := range ipam.Families {
		address := p.Address(a, n, f)
		if !address.IsValid() {
			continue
		}
		w.ends[f] = end{address: netip.PrefixFrom(address, f.Bits()), gateway: b.Family(f).GatewayAddr(), route: b.Family(f).Prefix}
		if f == ipam.V4 {
			w.ends[f].all = ipam.Broadcast(b.Prefix)
		}
		if exit := p.DefaultRoute(a, f); exit == n {
			w.ends[f].route = allAddresses(f)
		} else if p.Ingress(a, f) == n && exit != "" {
			w.ends[f].returnTable = returnRouteTable // published ports are reached through this link
		}
	}
	return w
}
