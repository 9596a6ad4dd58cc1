package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
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
	w := &watcher{table: m.o.Table, prefix: m.host.prefix, heard: make(chan struct{}, 1)}
	var links, rules *os.File
	err := m.host.do(func() (err error) {
		links, err = listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		if err != nil {
			return err
		}
		if rules, err = listen(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
			return errors.Join(err, links.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("watch the networks: %w", err)
	}
	changes := make(chan struct{}, 1)
	m.watchers.Go(func() { w.run(ctx, m.closing, changes, links, rules) })
	return changes, nil
}

// watcher listens to the kernel's notifications.
type watcher struct {
	table, prefix string
	heard         chan struct{} // has room for one
	touched       bool          // the current transaction changed the rules
}

func listen(protocol int, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, eventsBuffer) // more is better; an overflow is reported by the kernel
	for _, g := range groups {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g))
	}
	f := os.NewFile(uintptr(fd), "netlink")
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// run sends changes until ctx ends or closing is closed. A change is sent after a quiet period, together with those that arrived meanwhile.
func (w *watcher) run(ctx context.Context, closing <-chan struct{}, changes chan<- struct{}, links, rules *os.File) {
	defer close(changes)
	var reads sync.WaitGroup
	defer reads.Wait()
	for _, f := range []*os.File{links, rules} {
		reads.Go(func() { w.read(f, f == rules) })
		defer f.Close() // ends the read
	}
	var quiet <-chan time.Time
	for {
		select {
		case <-w.heard:
			quiet = time.After(eventsQuiet)
		case <-quiet:
			quiet = nil
			select {
			case changes <- struct{}{}:
			default: // the previous send was not received yet
			}
		case <-ctx.Done():
			return
		case <-closing:
			return
		}
	}
}

// read reads the messages of a socket until it is closed.
func (w *watcher) read(f *os.File, rules bool) {
	buf := make([]byte, maxEvent)
	for {
		n, err := f.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		lost := err != nil // notifications: with ENOBUFS, or another error of the kernel that made them
		if lost && rules {
			w.touched = false
		}
		if lost || w.relevant(rules, buf[:n]) {
			select {
			case w.heard <- struct{}{}:
			default:
			}
		}
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
