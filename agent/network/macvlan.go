package network

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ensureMacvlan creates the missing parts of a container's interface on a parent's link. In the parent's network the container
// is a separate device; this device and the container cannot reach each other.
func (m *Manager) ensureMacvlan(p *ipam.Project, id string, index int, in *netlink.Handle, ns *os.File) error {
	a := p.Attachments[id]
	n := a.Networks[index]
	b := p.Networks[n]
	w := m.macvlan(p, id, index)
	l, err := linkByName(in, w.inner)
	if err != nil {
		return err
	}
	parent, err := linkByName(m.host.links, b.Parent)
	if err != nil {
		return err
	}
	if parent == nil {
		return noParent(b.Parent)
	}
	if l != nil && (l.Type() != string(b.Driver) || l.Attrs().ParentIndex != parent.Attrs().Index) {
		if err := removeLink(in, w.inner); err != nil { // of an interrupted attempt: no other program has interfaces there
			return err
		}
		l = nil
	}
	if l == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.MTU, attrs.HardwareAddr = w.inner, parent.Attrs().Index, w.mtu, w.mac
		attrs.Namespace = netlink.NsFd(int(ns.Fd()))
		if err := m.host.links.LinkAdd(child(b, attrs)); err != nil {
			return fmt.Errorf("make an interface on %s: %w", b.Parent, err)
		}
		if l, err = linkByName(in, w.inner); err != nil || l == nil {
			return fmt.Errorf("make an interface on %s: not there afterwards: %w", b.Parent, fault.ErrTemporary)
		}
	}
	if err := w.ensureContainerEnd(in, l, ns); err != nil {
		return fmt.Errorf("set up the interface on %s: %w", b.Parent, err)
	}
	return nil
}

// macvlan is what a container's interface on a parent's link has: the whole subnet is on the link.
func (m *Manager) macvlan(p *ipam.Project, id string, index int) veth {
	a := p.Attachments[id]
	n := a.Networks[index]
	b := p.Networks[n]
	w := veth{inner: a.Interfaces()[index], mtu: b.MTU, mac: p.HardwareAddr(a, n)}
	for f := range ipam.Families {
		address := p.Address(a, n, f)
		if !address.IsValid() {
			continue
		}
		w.ends[f] = end{address: netip.PrefixFrom(address, b.Family(f).Prefix.Bits()), gateway: b.Family(f).GatewayAddr()}
		if p.DefaultRoute(a, f) == n {
			w.ends[f].route = allAddresses(f)
		}
		if b.Driver == workload.IPvlan && b.Mode != "" && b.Mode != "l2" {
			w.ends[f].gateway = netip.Addr{} // the parent routes: the link has no gateway
		}
	}
	return w
}

// child is an interface on a parent's link.
func child(b *ipam.Network, attrs netlink.LinkAttrs) netlink.Link {
	if b.Driver == workload.IPvlan {
		attrs.HardwareAddr = nil // it has its parent's
		modes := map[string]netlink.IPVlanMode{"l3": netlink.IPVLAN_MODE_L3, "l3s": netlink.IPVLAN_MODE_L3S}
		return &netlink.IPVlan{LinkAttrs: attrs, Mode: modes[b.Mode]} // the zero value is l2
	}
	modes := map[string]netlink.MacvlanMode{
		"private": netlink.MACVLAN_MODE_PRIVATE, "vepa": netlink.MACVLAN_MODE_VEPA, "passthru": netlink.MACVLAN_MODE_PASSTHRU,
	}
	return &netlink.Macvlan{LinkAttrs: attrs, Mode: cmp.Or(modes[b.Mode], netlink.MACVLAN_MODE_BRIDGE)}
}

// checkDriver refuses a driver that the kernel lacks. It requests an interface on the loopback, which the kernel refuses in any
// case: a known driver as invalid, an unknown one as unsupported.
func (m *Manager) checkDriver(d workload.Driver) error {
	lo, err := linkByName(m.host.links, "lo")
	if err != nil || lo == nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = m.host.prefix+"ask", lo.Attrs().Index
	err = m.host.links.LinkAdd(child(&ipam.Network{Driver: d}, attrs))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fault.WithHint(fmt.Errorf("driver %s: this kernel has none: %w", d, fault.ErrUnsupported), "use macvlan, or a kernel with that driver")
	}
	if err == nil {
		return removeLink(m.host.links, attrs.Name)
	}
	return nil
}

func noParent(name string) error {
	return fault.WithHint(fmt.Errorf("parent interface %s is not there: %w", name, fault.ErrNotFound),
		"name an interface of this device as driver_opts.parent; ip link lists them")
}
