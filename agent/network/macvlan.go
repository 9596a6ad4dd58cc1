package network

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ensureMacvlan makes a container's interface on a parent's link, or what is missing of it. The parent's network sees the
// container as a device of its own; this device and the container do not see each other.
func (m *Manager) ensureMacvlan(p *project, id string, place int, in *netlink.Handle, ns *os.File) error {
	a := p.Attachments[id]
	n := a.Networks[place]
	b := p.Networks[n]
	w := m.macvlan(p, id, place)
	l, err := byName(in, w.inner)
	if err != nil {
		return err
	}
	parent, err := byName(m.host.links, b.Parent)
	if err != nil {
		return err
	}
	if parent == nil {
		return noParent(b.Parent)
	}
	if l != nil && (l.Type() != "macvlan" || l.Attrs().ParentIndex != parent.Attrs().Index) {
		if err := removeLink(in, w.inner); err != nil { // of an earlier, interrupted attempt: nobody else has interfaces there
			return err
		}
		l = nil
	}
	if l == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.MTU, attrs.HardwareAddr = w.inner, parent.Attrs().Index, w.mtu, w.mac
		attrs.Namespace = netlink.NsFd(int(ns.Fd()))
		err := m.host.links.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: macvlanMode(b.Mode)})
		if err == unix.EOPNOTSUPP {
			return fmt.Errorf("driver macvlan: this kernel has none: %w", fault.ErrUnsupported)
		}
		if err != nil {
			return fmt.Errorf("make an interface on %s: %w", b.Parent, err)
		}
		if l, err = byName(in, w.inner); err != nil || l == nil {
			return fmt.Errorf("make an interface on %s: not there afterwards: %w", b.Parent, fault.ErrTemporary)
		}
	}
	if err := w.ensureInner(in, l, ns); err != nil {
		return fmt.Errorf("set up the interface on %s: %w", b.Parent, err)
	}
	return nil
}

// macvlan is what a container's interface on a parent's link has: the whole subnet is on the link.
func (m *Manager) macvlan(p *project, id string, place int) wire {
	a := p.Attachments[id]
	n := a.Networks[place]
	b := p.Networks[n]
	w := wire{inner: a.interfaces()[place], mtu: b.MTU, mac: p.mac(a, n)}
	for f := range families {
		address := p.address(a, n, f)
		if !address.IsValid() {
			continue
		}
		w.ends[f] = end{address: netip.PrefixFrom(address, b.of(f).Subnet.Bits()), gateway: b.of(f).gateway()}
		if p.exit(a, f) == n {
			w.ends[f].route = everything(f)
		}
	}
	return w
}

func macvlanMode(mode string) netlink.MacvlanMode {
	switch mode {
	case "private":
		return netlink.MACVLAN_MODE_PRIVATE
	case "vepa":
		return netlink.MACVLAN_MODE_VEPA
	case "passthru":
		return netlink.MACVLAN_MODE_PASSTHRU
	}
	return netlink.MACVLAN_MODE_BRIDGE
}

func noParent(name string) error {
	return fault.WithHint(fmt.Errorf("parent interface %s is not there: %w", name, fault.ErrNotFound),
		"name an interface of this device as driver_opts.parent; ip link lists them")
}
