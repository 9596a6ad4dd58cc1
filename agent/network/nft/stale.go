package nft

import (
	"net"

	"github.com/vishvananda/netlink"
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
