package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// wire is one container's link to one network.
type wire struct {
	outer, label string // interface in the host and its label
	inner        string // interface in the container
	bridge       int    // index
	mtu          int    // 0: the kernel's default
	mac          net.HardwareAddr
	ends         [families]end
}

// end is what a container's end of a link has of one family; the zero value: nothing.
type end struct {
	address netip.Prefix // of the container
	all     netip.Addr   // what reaches all on the link: programs that look for their peers ask for it; zero: none
	gateway netip.Addr
	route   netip.Prefix // what lies behind the gateway; all is every address; zero: nothing
	aside   int          // routing table for answers that must go back this way although another is the default; 0: not needed
}

// ensureWire makes a link, or what is missing of it. in is a handle in the container's namespace, ns open on it.
func (h *host) ensureWire(w wire, in *netlink.Handle, ns *os.File) error {
	outer, inner, err := h.wireEnds(w, in)
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
		if outer, inner, err = h.wireEnds(w, in); err != nil || outer == nil {
			return fmt.Errorf("make link %s: not there afterwards: %w", w.outer, errors.Join(err, fault.ErrTemporary))
		}
		// A pair whose ends have the same index looks like no pair to the kernel, which then takes up to a second to let
		// packets through. Made again with this end's index, the other end gets the next one.
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
			// Where bridged packets pass the host's IP rules (br_netfilter), a rewritten one may go back where it came from.
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
		err = w.ensureInner(in, inner, ns)
	}
	if err != nil {
		return fmt.Errorf("set up link %s: %w", w.outer, err)
	}
	return nil
}

// wireEnds returns both ends of a link, or neither: what is left of half a link, or of one to another namespace, is removed.
func (h *host) wireEnds(w wire, in *netlink.Handle) (outer, inner netlink.Link, err error) {
	if outer, err = byName(h.links, w.outer); err != nil {
		return nil, nil, err
	}
	if inner, err = byName(in, w.inner); err != nil {
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
	if inner != nil { // in our own namespace nobody else has interfaces
		if err := removeLink(in, w.inner); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// ensureInner gives the container's end its addresses and its routes. ns is open on the container's namespace.
func (w wire) ensureInner(in *netlink.Handle, l netlink.Link, ns *os.File) error {
	if w.mtu != 0 && l.Attrs().MTU != w.mtu {
		if err := in.LinkSetMTU(l, w.mtu); err != nil {
			return fmt.Errorf("set the MTU of %s: %w", w.inner, err)
		}
	}
	for f := range families {
		e := w.ends[f]
		if !e.address.IsValid() {
			continue
		}
		ok, err := hasAddress(in, l, e.address)
		if err == nil && !ok && f == v6 {
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
	for f := range families {
		if err := w.ends[f].ensureRoute(in, l); err != nil {
			return err
		}
		if err := w.ends[f].ensureAside(in, l); err != nil {
			return err
		}
	}
	return nil
}

// asideTable is a routing table in containers, and the preference of the rule that leads to it.
const asideTable = 210

// ensureAside lets packets from an address go back through its gateway whatever the default route is.
func (e end) ensureAside(in *netlink.Handle, l netlink.Link) error {
	if e.aside == 0 {
		return nil
	}
	f := familyOf(e.address.Addr())
	err := in.RouteReplace(&netlink.Route{
		LinkIndex: l.Attrs().Index, Gw: e.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Table: e.aside, Protocol: unix.RTPROT_STATIC, Dst: ipNet(everything(f)),
	})
	if err != nil {
		return fmt.Errorf("route answers by %s: %w", e.gateway, err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Src = f.socket(), e.aside, e.aside, ipNet(e.address)
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
		return err // also one that the container made itself: a private network's, say
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

// routed tells whether there is a route to where an end leads, ours or another.
func (e end) routed(in *netlink.Handle) (bool, error) {
	if !e.route.IsValid() {
		return true, nil
	}
	list, err := whole(func() ([]netlink.Route, error) { return in.RouteList(nil, familyOf(e.route.Addr()).socket()) })
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

// innerSettings let a container's interface have IPv6 addresses: those that we give it.
func innerSettings(name string) [][2]string {
	six := v6.sysctl() + name
	return [][2]string{
		{six + "/accept_ra", "0"},
		{six + "/accept_dad", "0"},
		{six + "/accept_redirects", "0"}, // neighbours must go on talking through the host
		{six + "/disable_ipv6", "0"},
	}
}

// everything is the route to all addresses.
func everything(f family) netip.Prefix {
	if f == v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// wire is a container's link to a bridge: single addresses, with the bridge as gateway of all else.
func (m *Manager) wire(p *project, id string, place int, bridge int) wire {
	a := p.Attachments[id]
	n := a.Networks[place]
	b := p.Networks[n]
	w := wire{outer: m.wireName(id, n), label: id + "/" + n, inner: a.interfaces()[place], bridge: bridge, mtu: b.MTU, mac: p.mac(a, n)}
	for f := range families {
		address := p.address(a, n, f)
		if !address.IsValid() {
			continue
		}
		w.ends[f] = end{address: netip.PrefixFrom(address, f.bits()), gateway: b.of(f).gateway(), route: b.of(f).Subnet}
		if f == v4 {
			w.ends[f].all = last(b.Subnet)
		}
		if exit := p.exit(a, f); exit == n {
			w.ends[f].route = everything(f)
		} else if p.front(a, f) == n && exit != "" {
			w.ends[f].aside = asideTable // its published ports are reached here
		}
	}
	return w
}

// mac is the hardware address of a container on a network.
func (p *project) mac(a *attachment, network string) net.HardwareAddr {
	if given, err := net.ParseMAC(a.Links[network].MAC); err == nil {
		return given
	}
	return hardware(p.address(a, network, v4), p.address(a, network, v6))
}
