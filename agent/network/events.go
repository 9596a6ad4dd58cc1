package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxEvent     = 64 << 10 // bytes of one batch of notifications
	eventsBuffer = 1 << 20  // of the socket: loading a large firewall sends many messages at once
	eventsQuiet  = 50 * time.Millisecond
)

// Watch sends when another program may have changed what this manager created: the tables, the interfaces, or a firewall beside
// them. [Manager.Verify] finds the change; several changes may be one send. The channel is closed when ctx has ended
// or the manager is closed. Changes of its own tables are not sent; those of its own interfaces may be.
func (m *Manager) Watch(ctx context.Context) (<-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	w := &watcher{table: m.o.Table, prefix: m.host.prefix, changes: make(chan struct{}, 1), links: -1, rules: -1, waker: [2]int{-1, -1}}
	err := m.host.do(func() error { return w.open() })
	if err != nil {
		w.close()
		return nil, fmt.Errorf("watch the networks: %w", err)
	}
	m.watching = slices.DeleteFunc(m.watching, (*watcher).ended)
	m.watching = append(m.watching, w)
	m.watchers.Go(func() {
		stop := context.AfterFunc(ctx, w.end)
		defer stop()
		w.run()
	})
	return w.changes, nil
}

// watcher listens to the kernel's notifications.
type watcher struct {
	table, prefix string
	changes       chan struct{}
	links, rules  int // netlink sockets
	waker         [2]int
	touched       bool // the current transaction changed the rules

	mu     sync.Mutex
	ending bool // end was called
	gone   bool // its sockets are closed
}

func (w *watcher) open() error {
	var err error
	if w.links, err = listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE); err != nil {
		return err
	}
	if w.rules, err = listen(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		return err
	}
	return unix.Pipe2(w.waker[:], unix.O_CLOEXEC|unix.O_NONBLOCK)
}

func listen(protocol int, groups ...int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fd, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, eventsBuffer) // more is better; an overflow is reported by the kernel
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return fd, err
		}
	}
	return fd, nil
}

func (w *watcher) close() {
	for _, fd := range []int{w.links, w.rules, w.waker[0], w.waker[1]} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// end makes run return.
func (w *watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ending = true; !w.gone {
		_, _ = unix.Write(w.waker[1], []byte{0})
	}
}

func (w *watcher) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ending
}

// run sends changes until end is called. A change is sent after a quiet period, together with those that arrived meanwhile.
func (w *watcher) run() {
	defer close(w.changes)
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.gone = true
		w.close()
	}()
	buf := make([]byte, maxEvent)
	fds := []unix.PollFd{{Fd: int32(w.links), Events: unix.POLLIN}, {Fd: int32(w.rules), Events: unix.POLLIN}, {Fd: int32(w.waker[0]), Events: unix.POLLIN}}
	pending := false
	for !w.ended() {
		wait := -1
		if pending {
			wait = int(eventsQuiet.Milliseconds())
		}
		n, err := unix.Poll(fds, wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // never: the sockets are ours
		}
		if n == 0 && pending {
			pending = false
			select {
			case w.changes <- struct{}{}:
			default: // the previous send was not received yet
			}
			continue
		}
		for _, fd := range []int{w.links, w.rules} {
			pending = w.drain(fd, buf) || pending
		}
	}
}

// drain reads the pending messages of a socket, and reports whether any of them is relevant.
func (w *watcher) drain(fd int, buf []byte) bool {
	worth := false
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			worth, w.touched = true, false // notifications were lost
			continue
		case err != nil || n == 0:
			return worth
		}
		worth = w.relevant(fd == w.rules, buf[:n]) || worth
	}
}

// relevant reports whether messages may be about a change by another program.
func (w *watcher) relevant(rules bool, data []byte) bool {
	worth := false
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		kind := binary.NativeEndian.Uint16(data[4:])
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return true // an unknown message may be relevant
		}
		body := data[unix.SizeofNlMsghdr:length]
		if rules {
			worth = w.rulesChanged(kind, body) || worth
		} else {
			worth = w.linkChanged(kind, body) || worth
		}
		data = data[min((length+3)&^3, len(data)):]
	}
	return worth
}

// linkChanged reports whether an interface of ours was removed or set down, or one that may be ours lost its address or the route to it: of IPv6
// addresses and of routes the kernel does not name the interface.
func (w *watcher) linkChanged(kind uint16, body []byte) bool {
	switch kind {
	case unix.RTM_DELLINK:
		return len(body) >= unix.SizeofIfInfomsg && strings.HasPrefix(text(attribute(body[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)), w.prefix)
	case unix.RTM_NEWLINK:
		if len(body) < unix.SizeofIfInfomsg {
			return false
		}
		flags, change := binary.NativeEndian.Uint32(body[8:]), binary.NativeEndian.Uint32(body[12:])
		return change != ^uint32(0) && change&unix.IFF_UP != 0 && flags&unix.IFF_UP == 0 &&
			strings.HasPrefix(text(attribute(body[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)), w.prefix)
	case unix.RTM_DELADDR:
		if len(body) >= unix.SizeofIfAddrmsg && body[0] == unix.AF_INET6 {
			return body[3] == unix.RT_SCOPE_UNIVERSE
		}
		return len(body) >= unix.SizeofIfAddrmsg && strings.HasPrefix(text(attribute(body[unix.SizeofIfAddrmsg:], unix.IFA_LABEL)), w.prefix)
	case unix.RTM_DELROUTE:
		return len(body) >= unix.SizeofRtMsg && body[4] == unix.RT_TABLE_MAIN && body[5] == unix.RTPROT_KERNEL && body[7] == unix.RTN_UNICAST &&
			!bytes.HasPrefix(attribute(body[unix.SizeofRtMsg:], unix.RTA_DST), []byte{0xfe, 0x80}) // link-local: with each interface
	}
	return false
}

// Kinds of messages of nftables.
const (
	nfHeader   = 4 // bytes of nfgenmsg
	nfNewChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN
	nfNewGen   = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	nfTable    = 1 // the attribute that names the table, of every kind of message but nfNewGen
	nfHook     = unix.NFTA_CHAIN_HOOK
	nfGenPID   = 2 // NFTA_GEN_PROC_PID
)

// rulesChanged reports whether another program's transaction changed our table, or added a chain that may drop our packets: one with a hook.
// Programs such as kube-proxy change other chains all the time. The kernel sends a transaction's changes first, and the process that made it last.
func (w *watcher) rulesChanged(kind uint16, body []byte) bool {
	if len(body) < nfHeader {
		return false
	}
	attrs := body[nfHeader:]
	if kind != nfNewGen {
		ours := text(attribute(attrs, nfTable)) == w.table
		w.touched = w.touched || ours || kind == nfNewChain && attribute(attrs, nfHook) != nil
		return false
	}
	touched := w.touched
	w.touched = false
	pid := attribute(attrs, nfGenPID)
	if len(pid) == 4 {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", binary.BigEndian.Uint32(pid))); err == nil {
			return false
		}
	}
	return touched
}

// attribute finds a netlink attribute; nil: it is not there.
func attribute(data []byte, kind uint16) []byte {
	for len(data) >= unix.SizeofNlAttr {
		length, k := int(binary.NativeEndian.Uint16(data)), binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)
		if length < unix.SizeofNlAttr || length > len(data) {
			return nil
		}
		if k == kind {
			return data[unix.SizeofNlAttr:length]
		}
		data = data[min((length+3)&^3, len(data)):]
	}
	return nil
}

// text is a string attribute.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
