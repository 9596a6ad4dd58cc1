package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	tcpListen = 10 // the kernel's TCP_LISTEN
	udpClosed = 7  // TCP_CLOSE: a datagram socket that is bound and not connected
	maxComm   = 64
)

// listener is a listening socket of the host.
type listener struct {
	addr  netip.Addr // zero: every address
	port  uint16
	inode uint32
}

// listeners lists the host's listening sockets of one protocol. A kernel that cannot list them is no error: the check that uses
// them is best effort.
func (h *host) listeners(protocol string) ([]listener, error) {
	var out []listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, state, err := []*netlink.Socket(nil), uint8(tcpListen), error(nil)
		if protocol == "udp" {
			state = udpClosed
			list, err = h.links.SocketDiagUDP(family)
		} else {
			list, err = h.links.SocketDiagTCP(family)
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list the host's %s sockets: %w", protocol, err)
		}
		for _, s := range list {
			if s.State != state {
				continue
			}
			a, _ := netip.AddrFromSlice(s.ID.Source)
			if a = a.Unmap(); a.IsUnspecified() {
				a = netip.Addr{}
			}
			out = append(out, listener{a, s.ID.SourcePort, s.INode})
		}
	}
	return out, nil
}

// checkListeners rejects a published port that a program of the host listens on, because that program would get no connections. Ports
// in known were published before and are not checked again. six: they are published on IPv6 addresses too.
func (m *Manager) checkListeners(service string, ports, known []ipam.Port, six bool) error {
	listed := map[string][]listener{}
	for _, q := range ports {
		if slices.ContainsFunc(known, q.Conflicts) {
			continue
		}
		if q.Protocol == "sctp" {
			continue // the kernel lists no such sockets for us
		}
		if _, ok := listed[q.Protocol]; !ok {
			l, err := m.host.listeners(q.Protocol)
			if err != nil {
				return err
			}
			listed[q.Protocol] = l
		}
		for _, l := range listed[q.Protocol] {
			if l.port == q.HostPort && (!l.addr.IsValid() || !q.Host.IsValid() && (six || l.addr.Is4()) || l.addr == q.Host) {
				return fault.WithHint(fmt.Errorf("service %q: port %s is in use by %s of this host: %w", service, q, program(l.inode), fault.ErrConflict),
					"publish another port, or stop that program")
			}
		}
	}
	return nil
}

// program names the program that holds a socket; "a program" when it cannot find it.
func program(inode uint32) string {
	want := "socket:[" + strconv.FormatUint(uint64(inode), 10) + "]"
	links, err := filepath.Glob("/proc/[0-9]*/fd/[0-9]*")
	if err != nil {
		return "a program"
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == want {
			pid := strings.Split(l, "/")[2]
			if comm, err := bounded.File(os.Open, "/proc/"+pid+"/comm", maxComm); err == nil {
				return fmt.Sprintf("program %s (process %s)", strings.TrimSpace(string(comm)), pid)
			}
		}
	}
	return "a program"
}

// note keeps and logs a fact that an operator should know, once.
func (m *Manager) note(s string) {
	if !slices.Contains(m.notes, s) {
		m.notes = append(m.notes, s)
		m.log.Warn(s)
	}
}
