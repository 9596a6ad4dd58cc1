package nft

import (
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

// Stale matches conntrack entries that would still lead to an old backend: datagrams whose rewriting changed, and everything for a
// removed container. Without this a sender that never pauses would never reach the new backend.
type Stale struct {
	family ipam.Family
	dead   map[string]bool // addresses of removed containers
	left   map[string]bool // addresses of containers that are no longer a backend of something
	ports  map[uint16]bool // published UDP ports that had no backend
}

// MatchConntrackFlow implements netlink's filter.
func (s *Stale) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	from, rewritten := addressBytes(s.family, f.Reverse.SrcIP), !f.Forward.DstIP.Equal(f.Reverse.SrcIP)
	if rewritten && s.dead[string(from)] {
		return true
	}
	return f.Forward.Protocol == unix.IPPROTO_UDP && (rewritten && s.left[string(from)] || !rewritten && s.ports[f.Forward.DstPort])
}

func (s *Stale) Empty() bool { return len(s.dead)+len(s.left)+len(s.ports) == 0 }

// What netlink does not know of nfnetlink_conntrack.h.
const (
	attrFilter     = 25     // CTA_FILTER: which parts of the tuples count
	attrStatusMask = 26     // CTA_STATUS_MASK
	filterSource   = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC
	filterProtocol = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM
	filterDestPort = 1 << 5 // CTA_FILTER_F_CTA_PROTO_DST_PORT
	rewritten      = 1 << 5 // IPS_DST_NAT
)

// maxDeletions is how many requests cost less than reading the table once: the kernel looks through its table for each of them.
const maxDeletions = 16

// Deletions are requests to the kernel to remove the entries that [Stale.MatchConntrackFlow] matches. A kernel before Linux 6.8
// answers EINVAL and removes nothing. None with false: the caller must read the table. IPv6 addresses need that: Linux (6.18 too)
// compares them the wrong way round, and would remove the entries of all others.
func (s *Stale) Deletions() ([]*nl.NetlinkRequest, bool) {
	addresses := len(s.dead) + len(s.left)
	if addresses+len(s.ports) > maxDeletions || s.family == ipam.V6 && addresses > 0 {
		return nil, false
	}
	var out []*nl.NetlinkRequest
	for a := range s.dead {
		out = append(out, s.deletion(rewritten, nl.CTA_TUPLE_REPLY, filterSource, source(a)))
	}
	for a := range s.left {
		if !s.dead[a] {
			out = append(out, s.deletion(rewritten, nl.CTA_TUPLE_REPLY, filterSource|filterProtocol, source(a), datagrams()))
		}
	}
	for p := range s.ports {
		port := nl.NewRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(p))
		out = append(out, s.deletion(0, nl.CTA_TUPLE_ORIG, filterProtocol|filterDestPort, datagrams(port)))
	}
	return out, true
}

// deletion names the entries by their status and by those parts of a tuple that flags has. The tuple is never left out: a request
// without one empties the table of a kernel that does not know filters.
func (s *Stale) deletion(status uint32, tuple int, flags uint32, parts ...*nl.RtAttr) *nl.NetlinkRequest {
	family := uint8(unix.AF_INET)
	if s.family == ipam.V6 {
		family = unix.AF_INET6
	}
	r := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	r.AddData(nested(tuple, parts...))
	r.AddData(nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(status)))
	r.AddData(nl.NewRtAttr(attrStatusMask, nl.BEUint32Attr(rewritten)))
	r.AddData(nested(attrFilter, nl.NewRtAttr(tuple, nl.Uint32Attr(flags)))) // CTA_FILTER_ORIG_FLAGS, _REPLY_FLAGS: the tuples' numbers
	return r
}

// source is the part of a tuple with an IPv4 address that packets come from.
func source(a string) *nl.RtAttr {
	return nested(nl.CTA_TUPLE_IP, nl.NewRtAttr(nl.CTA_IP_V4_SRC, []byte(a)))
}

// datagrams is the part of a tuple that says UDP.
func datagrams(more ...*nl.RtAttr) *nl.RtAttr {
	return nested(nl.CTA_TUPLE_PROTO, append([]*nl.RtAttr{nl.NewRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})}, more...)...)
}

func nested(kind int, parts ...*nl.RtAttr) *nl.RtAttr {
	out := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
	for _, p := range parts {
		out.AddChild(p)
	}
	return out
}

// StaleAfter finds the entries that a change of the table makes stale.
func StaleAfter(f ipam.Family, before, after Contents) *Stale {
	s := &Stale{family: f, dead: map[string]bool{}, left: map[string]bool{}, ports: map[uint16]bool{}}
	for k := range before[setContainers] {
		if _, ok := after[setContainers][k]; !ok {
			s.dead[k] = true
		}
	}
	for _, m := range []struct {
		direct, shared string
		proto          int // offset of the protocol in the key; -1: all protocols
	}{{mapVIP, mapVIPShared, -1}, {MapPublish, mapPublishShared, 0}, {mapPublishAt, mapPublishAtShared, f.Size()}} {
		old, now := targets(f, before, m.direct, m.shared), targets(f, after, m.direct, m.shared)
		for k, addresses := range old {
			for a := range addresses {
				if !now[k][a] {
					s.left[a] = true
				}
			}
		}
		for k := range now {
			if m.proto >= 0 && old[k] == nil && k[m.proto] == unix.IPPROTO_UDP {
				s.ports[uint16(k[m.proto+4])<<8|uint16(k[m.proto+5])] = true
			}
		}
	}
	return s
}

// targets are the addresses that each key of a map is rewritten to.
func targets(f ipam.Family, e Contents, direct, shared string) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	add := func(k, v string) {
		if out[k] == nil {
			out[k] = map[string]bool{}
		}
		out[k][v[:f.Size()]] = true
	}
	for k, v := range e[direct] {
		add(k, v)
	}
	for k, v := range e[shared] {
		add(k[:len(k)-4], v)
	}
	return out
}

// addressBytes is an address in the form of our sets' keys.
func addressBytes(f ipam.Family, ip net.IP) []byte {
	if f == ipam.V4 {
		return ip.To4()
	}
	return ip.To16()
}
