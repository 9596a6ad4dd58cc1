package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	netlinkTimeout = 10 * time.Second // the kernel answers in microseconds; more is a bug that must not hang the agent
	maxAlias       = 255              // IFALIASZ less one
	eui64Off       = 1                // IN6_ADDR_GEN_MODE_NONE
	settleTries    = 400              // looks at a new link until it carries packets: mostly one, a fifth of a second at most
	settlePause    = 500 * time.Microsecond
)

// host is the network namespace in which bridges live.
type host struct {
	links  *netlink.Handle
	ns     *os.File // open on the namespace
	own    bool     // it is the process's own
	prefix string   // of interface names
	mark   string   // in front of interface aliases
}

// openHost opens the namespace at path, or the process's own.
func openHost(path, table string) (*host, error) {
	h := &host{own: path == "", prefix: namePrefix(table), mark: table + ": "}
	if h.own {
		path = threadNetNS
	}
	var err error
	if h.ns, err = os.Open(path); err != nil {
		return nil, fmt.Errorf("open the host's network namespace: %w", err)
	}
	h.links, err = netlink.NewHandleAt(netns.NsHandle(h.ns.Fd()), unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER, unix.NETLINK_INET_DIAG)
	if err == nil {
		err = h.links.SetSocketTimeout(netlinkTimeout)
	}
	if err != nil {
		h.close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

func (h *host) close() {
	if h.links != nil {
		h.links.Close()
	}
	h.ns.Close()
}

// do runs f on a thread in the host's namespace.
func (h *host) do(f func() error) error {
	if h.own {
		return f()
	}
	return inNamespace(int(h.ns.Fd()), f)
}

// ours tells whether an interface was made by a manager of this table: by its name, and by its alias unless it had none yet
// when the maker was killed.
func (h *host) ours(a *netlink.LinkAttrs) bool {
	return strings.HasPrefix(a.Name, h.prefix) && len(a.Name) == 15 && (a.Alias == "" || strings.HasPrefix(a.Alias, h.mark))
}

func (h *host) alias(s string) string { return clip(h.mark+s, maxAlias) }

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// byName returns nil for an interface that is not there.
func byName(links *netlink.Handle, name string) (netlink.Link, error) {
	l, err := links.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return l, nil
}

// removeLink deletes an interface. Gone is no error.
func removeLink(links *netlink.Handle, name string) error {
	l, err := byName(links, name)
	if l == nil || err != nil {
		return err
	}
	if err := links.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// hasAddress tells whether l has exactly this address with this prefix length.
func hasAddress(links *netlink.Handle, l netlink.Link, p netip.Prefix) (bool, error) {
	list, err := whole(func() ([]netlink.Addr, error) { return links.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return false, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range list {
		ones, _ := a.Mask.Size()
		if a.IP.Equal(p.Addr().AsSlice()) && ones == p.Bits() {
			return true, nil
		}
	}
	return false, nil
}

// ensureBridge makes a network's bridge, or what is missing of it, and returns its index.
func (h *host) ensureBridge(b *bridge, label string) (int, error) {
	l, err := byName(h.links, b.Name)
	if err != nil {
		return 0, err
	}
	if l == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = b.Name
		attrs.HardwareAddr = hardware(b.gateway()) // fixed, or it would follow the bridge's ports and containers lose their gateway
		if err := h.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("make bridge %s: %w", b.Name, err)
		}
		if l, err = byName(h.links, b.Name); err != nil || l == nil {
			return 0, fmt.Errorf("make bridge %s: not there afterwards: %w", b.Name, errors.Join(err, fault.ErrTemporary))
		}
	}
	if l.Type() != "bridge" || !h.ours(l.Attrs()) {
		return 0, fault.WithHint(fmt.Errorf("interface %s exists and is not ours: %w", b.Name, fault.ErrConflict),
			"remove or rename that interface")
	}
	if want := h.alias(label); l.Attrs().Alias != want {
		if err := h.links.LinkSetAlias(l, want); err != nil {
			return 0, fmt.Errorf("label bridge %s: %w", b.Name, err)
		}
	}
	err = h.do(func() error {
		for _, s := range [][2]string{
			{"net/ipv6/conf/" + b.Name + "/disable_ipv6", "1"},     // containers have no IPv6 way around our rules
			{"net/ipv4/conf/" + b.Name + "/send_redirects", "0"},   // neighbours must go on talking through the host
			{"net/ipv4/conf/" + b.Name + "/route_localnet", "1"},   // ports published on 127.0.0.1
			{"net/ipv4/conf/" + b.Name + "/forwarding", "1"},       // also where new interfaces default to none
			{"net/ipv4/conf/" + b.Name + "/proxy_arp", "0"},        // an answer for a foreign address would bypass routing
			{"net/ipv4/conf/" + b.Name + "/accept_redirects", "0"}, // a container has no say in the host's routes
		} {
			if err := setSysctl(s[0], s[1]); err != nil && !(errors.Is(err, os.ErrNotExist) && strings.Contains(s[0], "ipv6")) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("set up bridge %s: %w", b.Name, err)
	}
	gw := netip.PrefixFrom(b.gateway(), b.Subnet.Bits())
	if ok, err := hasAddress(h.links, l, gw); err != nil {
		return 0, err
	} else if !ok {
		if err := h.links.AddrReplace(l, &netlink.Addr{IPNet: ipNet(gw)}); err != nil {
			return 0, fmt.Errorf("give bridge %s its address %s: %w", b.Name, gw, err)
		}
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := h.links.LinkSetUp(l); err != nil {
			return 0, fmt.Errorf("raise bridge %s: %w", b.Name, err)
		}
	}
	return l.Attrs().Index, nil
}

// wire is one container's link to one network.
type wire struct {
	outer, label string     // interface in the host and its label
	inner        string     // interface in the container
	bridge       int        // index
	address      netip.Addr // of the container
	gateway      netip.Addr
	route        netip.Prefix // what lies behind the gateway; zero: everything
}

// ensureWire makes a link, or what is missing of it. in is a handle in the container's namespace, ns open on it.
func (h *host) ensureWire(w wire, in *netlink.Handle, ns *os.File) error {
	outer, inner, err := h.wireEnds(w, in)
	if err != nil {
		return err
	}
	for try, index := 0, 0; outer == nil; try++ {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = w.outer, index
		v := &netlink.Veth{
			LinkAttrs: attrs, PeerName: w.inner, PeerHardwareAddr: hardware(w.address), PeerNamespace: netlink.NsFd(int(ns.Fd())),
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
	if err == nil && outer.Attrs().Flags&net.FlagUp == 0 {
		err = h.links.LinkSetUp(outer)
	}
	if err == nil {
		err = w.ensureInner(in, inner)
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

// ensureInner gives the container's end its address, as a /32, and its route.
func (w wire) ensureInner(in *netlink.Handle, l netlink.Link) error {
	self := netip.PrefixFrom(w.address, 32)
	if ok, err := hasAddress(in, l, self); err != nil {
		return err
	} else if !ok {
		if err := in.AddrReplace(l, &netlink.Addr{IPNet: ipNet(self)}); err != nil {
			return fmt.Errorf("address %s: %w", w.address, err)
		}
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := in.LinkSetUp(l); err != nil {
			return fmt.Errorf("raise %s: %w", w.inner, err)
		}
	}
	r := &netlink.Route{
		LinkIndex: l.Attrs().Index, Gw: w.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Src: w.address.AsSlice(),
		Protocol: unix.RTPROT_STATIC,
	}
	if w.route.IsValid() {
		r.Dst = ipNet(w.route)
	}
	if err := in.RouteReplace(r); err != nil {
		return fmt.Errorf("route by %s: %w", w.gateway, err)
	}
	return nil
}

// settle waits until links carry packets. The kernel lets a link that was raised carry them a little later, in its own time; a
// packet sent before is lost, and the sender tries again only after a second.
func settle(ctx context.Context, links *netlink.Handle, names ...string) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for range settleTries {
		up := 0
		for _, n := range names {
			l, err := byName(links, n)
			if err != nil {
				return err
			}
			if l == nil || l.Attrs().OperState == netlink.OperUp {
				up++
			}
		}
		if up == len(names) {
			return nil
		}
		pause.Reset(settlePause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
	return nil // not an error: packets are late, not lost for good
}

// inside opens a namespace that was pinned at path.
func inside(path string) (*netlink.Handle, *os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open the namespace %s: %w", filepath.Base(path), err)
	}
	in, err := netlink.NewHandleAt(netns.NsHandle(f.Fd()), unix.NETLINK_ROUTE)
	if err == nil {
		err = in.SetSocketTimeout(netlinkTimeout)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("open netlink in the namespace %s: %w", filepath.Base(path), err)
	}
	return in, f, nil
}

// raiseLoopback brings lo up.
func raiseLoopback(in *netlink.Handle) error {
	lo, err := in.LinkByName("lo")
	if err == nil && lo.Attrs().Flags&net.FlagUp == 0 {
		err = in.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("raise lo: %w", err)
	}
	return nil
}

// foreign are the addresses and routes of the host that are not ours, without default routes.
func (h *host) foreign() ([]netip.Prefix, error) {
	links, err := whole(h.links.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	own := map[int]bool{}
	for _, l := range links {
		own[l.Attrs().Index] = h.ours(l.Attrs())
	}
	var out []netip.Prefix
	add := func(index int, n *net.IPNet) {
		if n == nil || own[index] {
			return
		}
		if a, ok := netip.AddrFromSlice(n.IP.To4()); ok {
			if ones, _ := n.Mask.Size(); ones > 0 {
				out = append(out, netip.PrefixFrom(a, ones).Masked())
			}
		}
	}
	addrs, err := whole(func() ([]netlink.Addr, error) { return h.links.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		add(a.LinkIndex, a.IPNet)
	}
	routes, err := whole(func() ([]netlink.Route, error) { return h.links.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		add(r.LinkIndex, r.Dst)
	}
	return out, nil
}
