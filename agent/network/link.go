package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/network/nft"
	"github.com/longshore-dev/longshore/artifacts/delay"
)

const (
	netlinkTimeout  = 10 * time.Second // the kernel answers in microseconds; more is a bug that must not hang the agent
	maxAlias        = 255              // IFALIASZ less one
	eui64Off        = 1                // IN6_ADDR_GEN_MODE_NONE
	carrierTries    = 400              // checks of a new link until it carries packets: usually one, together 0.2 s at most
	carrierInterval = 500 * time.Microsecond
)

// host is the network namespace in which bridges live.
type host struct {
	links   *netlink.Handle
	routes  *netlink.Handle  // its lists are filtered by the kernel, if it can (Linux 4.20)
	tracks  *nl.SocketHandle // deletes conntrack entries
	sockets *nl.SocketHandle // lists listening sockets
	ns      *os.File         // open on the namespace
	own     bool             // it is the process's own
	prefix  string           // of interface names
	mark    string           // in front of interface aliases
	reads   bool             // the kernel cannot look for conntrack entries: the table is read
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
	if h.links, err = openHandle(h.ns, unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err == nil {
		h.tracks, err = openSocket(h.ns, unix.NETLINK_NETFILTER)
	}
	if err == nil {
		h.sockets, err = openSocket(h.ns, unix.NETLINK_INET_DIAG)
	}
	if err == nil {
		h.routes, err = openHandle(h.ns, unix.NETLINK_ROUTE)
	}
	if err == nil {
		if err = h.routes.SetStrictCheck(true); errors.Is(err, unix.ENOPROTOOPT) {
			err = nil
		}
	}
	if err != nil {
		h.close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// openHandle opens netlink sockets in a namespace.
func openHandle(ns *os.File, families ...int) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), families...)
	if err != nil {
		return nil, err
	}
	return h, h.SetSocketTimeout(netlinkTimeout)
}

// openSocket opens a netlink socket in a namespace.
func openSocket(ns *os.File, family int) (*nl.SocketHandle, error) {
	s, err := nl.GetNetlinkSocketAt(netns.NsHandle(ns.Fd()), netns.None(), family)
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	return &nl.SocketHandle{Socket: s}, errors.Join(s.SetSendTimeout(&limit), s.SetReceiveTimeout(&limit))
}

func (h *host) close() {
	for _, links := range []*netlink.Handle{h.links, h.routes} {
		if links != nil {
			links.Close()
		}
	}
	for _, s := range []*nl.SocketHandle{h.tracks, h.sockets} {
		if s != nil {
			s.Close()
		}
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

// ours reports whether a manager of this table created an interface: by its name, and by its alias, which is missing when the
// manager was killed in between.
func (h *host) ours(a *netlink.LinkAttrs) bool {
	return strings.HasPrefix(a.Name, h.prefix) && len(a.Name) == 15 && (a.Alias == "" || strings.HasPrefix(a.Alias, h.mark))
}

func (h *host) alias(s string) string {
	a := h.mark + s
	return a[:min(len(a), maxAlias)]
}

// forget removes conntrack entries. The kernel looks for them if it can: on a busy machine, to read the whole table takes seconds.
func (h *host) forget(f ipam.Family, gone *nft.Stale) error {
	if deletions, ok := gone.Deletions(); ok && !h.reads {
		var err error
		for _, d := range deletions {
			d.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: h.tracks} // open already: closing one takes long, see nft.Table
			if _, err = d.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
				break
			}
		}
		if h.reads = errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP); !h.reads {
			return err
		}
	}
	_, err := h.links.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(socket(f)), gone)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return err
}

// linkByName returns nil for an interface that does not exist.
func linkByName(links *netlink.Handle, name string) (netlink.Link, error) {
	l, err := links.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return l, nil
}

// removeLink deletes an interface. A missing one is not an error.
func removeLink(links *netlink.Handle, name string) error {
	l, err := linkByName(links, name)
	if l == nil || err != nil {
		return err
	}
	if err := links.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// hasAddress reports whether l has exactly this address with this prefix length.
func hasAddress(links *netlink.Handle, l netlink.Link, p netip.Prefix) (bool, error) {
	list, err := completeList(func() ([]netlink.Addr, error) { return links.AddrList(l, socket(ipam.FamilyOf(p.Addr()))) })
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

// waitCarrier waits until links carry packets. The kernel does that a little after a link was set up; a packet sent before is lost,
// and the sender tries again only after a second.
func waitCarrier(ctx context.Context, links *netlink.Handle, names ...string) error {
	for range carrierTries {
		up := 0
		for _, n := range names {
			l, err := linkByName(links, n)
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
		if err := delay.For(ctx, carrierInterval); err != nil {
			return err
		}
	}
	return nil // not an error: packets are only delayed
}

// openNamespace opens a namespace that was pinned at path, for the protocol of interfaces and more.
func openNamespace(path string, more ...int) (*netlink.Handle, *os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open the namespace %s: %w", filepath.Base(path), err)
	}
	in, err := openHandle(f, append(more, unix.NETLINK_ROUTE)...)
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

// foreignPrefixes are the addresses and routes of the host that are not ours, without default routes.
func (h *host) foreignPrefixes() ([]netip.Prefix, error) {
	links, err := completeList(h.links.LinkList)
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
		a, ok := netip.AddrFromSlice(n.IP)
		if a = a.Unmap(); !ok || a.IsLinkLocalUnicast() || a.IsMulticast() {
			return
		}
		if ones, _ := n.Mask.Size(); ones > 0 {
			out = append(out, netip.PrefixFrom(a, ones).Masked())
		}
	}
	addrs, err := completeList(func() ([]netlink.Addr, error) { return h.links.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		add(a.LinkIndex, a.IPNet)
	}
	routes, err := completeList(func() ([]netlink.Route, error) { return h.links.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		add(r.LinkIndex, r.Dst)
	}
	return out, nil
}

// uplinkMTU is that of the interface that the default route goes through; 0: there is none.
func (h *host) uplinkMTU() (int, error) {
	routes, err := completeList(func() ([]netlink.Route, error) { return h.links.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if ones := 0; r.Dst != nil {
			if ones, _ = r.Dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		if l, err := h.links.LinkByIndex(r.LinkIndex); err == nil {
			return l.Attrs().MTU, nil
		}
	}
	return 0, nil
}

// hashName is an interface's name: a prefix of the table, a letter for the kind, and a hash.
func hashName(prefix, kind, key string, salt int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", key, salt))
	return prefix + kind + hex.EncodeToString(sum[:4])
}

// namePrefix makes the interface names of managers with different tables differ.
func namePrefix(table string) string {
	sum := sha256.Sum256([]byte(table))
	return "ls" + hex.EncodeToString(sum[:2])
}
