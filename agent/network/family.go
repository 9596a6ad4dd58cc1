package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// family is one kind of addresses. Everything that has an address has one of each, or none.
type family int

const (
	v4 family = iota
	v6
	families // how many there are
)

func familyOf(a netip.Addr) family {
	if a.Is4() || a.Is4In6() {
		return v4
	}
	return v6
}

// bits of an address.
func (f family) bits() int {
	if f == v6 {
		return 128
	}
	return 32
}

// size is how many bytes an address has.
func (f family) size() int { return f.bits() / 8 }

func (f family) socket() int {
	if f == v6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (f family) table() nftables.TableFamily {
	if f == v6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// sysctl is the folder of the family's settings.
func (f family) sysctl() string {
	if f == v6 {
		return "net/ipv6/conf/"
	}
	return "net/ipv4/conf/"
}

// span is a network's addresses of one family. The zero value: none.
type span struct {
	Subnet   netip.Prefix `json:"subnet,omitzero"`
	Gateway  netip.Addr   `json:"gateway,omitzero"`   // zero: the first address
	Range    netip.Prefix `json:"range,omitzero"`     // what containers' addresses are chosen from; zero: all
	Reserved []netip.Addr `json:"reserved,omitempty"` // never chosen
	Given    bool         `json:"given,omitempty"`    // the project says so; else chosen from the device's pool
}

func (s *span) valid() bool { return s.Subnet.IsValid() }

func (s *span) gateway() netip.Addr {
	if s.Gateway.IsValid() || !s.valid() {
		return s.Gateway
	}
	return s.Subnet.Addr().Next()
}

// same tells whether links that were made for s serve other too.
func (s *span) same(other *span) bool {
	return s.Subnet == other.Subnet && s.gateway() == other.gateway()
}

// nearly is how many addresses of a subnet are ever looked at: more than containers that a device can run.
const nearly = 1 << 16

// choose returns an address that is not used: of containers from below, of services from above.
func (s *span) choose(used map[netip.Addr]bool, service bool) (netip.Addr, bool) {
	within, first := s.Subnet, uint32(1)
	if s.Range.IsValid() && !service {
		within, first = s.Range, 0
	}
	count := uint32(nearly)
	if host := within.Addr().BitLen() - within.Bits(); host < 16 {
		count = 1 << host
	}
	for i := first; i < count; i++ {
		n := i
		if service {
			n = count - 1 - i
		}
		a := offset(within.Addr(), n)
		if a == s.Subnet.Addr() || a == last(s.Subnet) || a == s.gateway() || used[a] || slices.Contains(s.Reserved, a) {
			continue
		}
		return a, true
	}
	return netip.Addr{}, false
}

// last is the highest address of a subnet: the broadcast address of IPv4.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// offset is the address n after a.
func offset(a netip.Addr, n uint32) netip.Addr {
	b := a.AsSlice()
	tail := b[len(b)-4:]
	binary.BigEndian.PutUint32(tail, binary.BigEndian.Uint32(tail)+n)
	out, _ := netip.AddrFromSlice(b)
	return out
}

// seats are the addresses of a service on a network, of one family.
type seats struct {
	VIP       netip.Addr            `json:"vip,omitzero"`
	Addresses map[string]netip.Addr `json:"addresses,omitempty"` // by seat
	Each      map[int]netip.Addr    `json:"each,omitempty"`      // address of each replica's name, where there are several
	Fixed     netip.Addr            `json:"fixed,omitzero"`      // what the project wants the container's address to be
}

// all are all addresses.
func (s *seats) all(yield func(netip.Addr) bool) {
	if s.VIP.IsValid() && !yield(s.VIP) {
		return
	}
	for _, a := range s.Addresses {
		if !yield(a) {
			return
		}
	}
	for _, a := range s.Each {
		if !yield(a) {
			return
		}
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
