package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	tcpListen = 10 // the kernel's TCP_LISTEN
	udpClosed = 7  // TCP_CLOSE: a datagram socket that is bound and not connected
	maxComm   = 64

	diagRequest = 56 // size of the kernel's inet_diag_req_v2
	diagSocket  = 72 // of its inet_diag_msg
)

// listener is a listening socket of the host.
type listener struct {
	addr  netip.Addr // zero: every address
	port  uint16
	inode uint32
}

// listeners lists the host's listening sockets of one protocol. The kernel leaves out all others: on a busy machine there are many
// connections. A kernel that cannot list sockets is no error: the check that uses them is best effort.
func (h *host) listeners(protocol string) ([]listener, error) {
	number, state := byte(unix.IPPROTO_TCP), tcpListen
	if protocol == "udp" {
		number, state = unix.IPPROTO_UDP, udpClosed
	}
	var out []listener
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: h.sockets}
		r.RawData = make([]byte, diagRequest)
		r.RawData[0], r.RawData[1] = family, number
		binary.NativeEndian.PutUint32(r.RawData[4:], 1<<state)
		err := r.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(s []byte) bool {
			if len(s) < diagSocket {
				return true
			}
			a := netip.AddrFrom4([4]byte(s[8:]))
			if s[0] == unix.AF_INET6 {
				a = netip.AddrFrom16([16]byte(s[8:])).Unmap()
			}
			if a.IsUnspecified() {
				a = netip.Addr{}
			}
			out = append(out, listener{a, binary.BigEndian.Uint16(s[4:]), binary.NativeEndian.Uint32(s[68:])})
			return true
		})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list the host's %s sockets: %w", protocol, err)
		}
	}
	return out, nil
}

// listening has the listening sockets of the host by protocol, each listed once, when it is first needed.
type listening struct {
	h      *host
	listed map[string][]listener
}

func (m *Manager) listening() *listening { return &listening{m.host, map[string][]listener{}} }

// check rejects a published port that a program of the host listens on, because that program would get no connections. Ports
// in known were published before and are not checked again. six: they are published on IPv6 addresses too.
func (x *listening) check(service string, ports, known []ipam.Port, six bool) error {
	for _, q := range ports {
		if slices.ContainsFunc(known, q.Conflicts) {
			continue
		}
		if q.Protocol == "sctp" {
			continue // the kernel lists no such sockets for us
		}
		if _, ok := x.listed[q.Protocol]; !ok {
			l, err := x.h.listeners(q.Protocol)
			if err != nil {
				return err
			}
			x.listed[q.Protocol] = l
		}
		for _, l := range x.listed[q.Protocol] {
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
