package ipam

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Family is IPv4 or IPv6.
type Family int

const (
	V4 Family = iota
	V6
	Families // number of families
)

func FamilyOf(a netip.Addr) Family {
	if a.Is4() || a.Is4In6() {
		return V4
	}
	return V6
}

// Bits of an address.
func (f Family) Bits() int {
	if f == V6 {
		return 128
	}
	return 32
}

// Size is how many bytes an address has.
func (f Family) Size() int { return f.Bits() / 8 }

// Subnet is a network's addresses of one family. The zero value: none.
type Subnet struct {
	Prefix     netip.Prefix `json:"subnet,omitzero"`
	Gateway    netip.Addr   `json:"gateway,omitzero"`     // zero: the first address
	Range      netip.Prefix `json:"range,omitzero"`       // container addresses are chosen from it; zero: from the whole subnet
	Reserved   []netip.Addr `json:"reserved,omitempty"`   // never chosen
	Configured bool         `json:"configured,omitempty"` // by the project; else chosen from the device's pool
}

func (s *Subnet) Valid() bool { return s.Prefix.IsValid() }

func (s *Subnet) GatewayAddr() netip.Addr {
	if s.Gateway.IsValid() || !s.Valid() {
		return s.Gateway
	}
	return s.Prefix.Addr().Next()
}

// Same reports whether links that were created for s also work for other.
func (s *Subnet) Same(other *Subnet) bool {
	return s.Prefix == other.Prefix && s.GatewayAddr() == other.GatewayAddr()
}

// maxChoices bounds how many addresses of a subnet are tried: more than containers that a device can run.
const maxChoices = 1 << 16

// choose returns an unused address: for containers from the start of the subnet, for services from its end.
func (s *Subnet) choose(used map[netip.Addr]bool, service bool) (netip.Addr, bool) {
	within, first := s.Prefix, uint32(1)
	if s.Range.IsValid() && !service {
		within, first = s.Range, 0
	}
	count := uint32(maxChoices)
	if host := within.Addr().BitLen() - within.Bits(); host < 16 {
		count = 1 << host
	}
	for i := first; i < count; i++ {
		n := i
		if service {
			n = count - 1 - i
		}
		a := offset(within.Addr(), n)
		if a == s.Prefix.Addr() || a == Broadcast(s.Prefix) || a == s.GatewayAddr() || used[a] || slices.Contains(s.Reserved, a) {
			continue
		}
		return a, true
	}
	return netip.Addr{}, false
}

// Broadcast is the highest address of a subnet: the broadcast address of IPv4.
func Broadcast(p netip.Prefix) netip.Addr {
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

// Slots are the addresses of a service on a network, of one family.
type Slots struct {
	VIP       netip.Addr            `json:"vip,omitzero"`
	Addresses map[string]netip.Addr `json:"addresses,omitempty"` // by slot, see slotKey
	Each      map[int]netip.Addr    `json:"each,omitempty"`      // address of each replica's name, where there are several
	Fixed     netip.Addr            `json:"fixed,omitzero"`      // the container's address as the project sets it
}

// set gives a slot an address.
func (s *Slots) set(key string, a netip.Addr) {
	if s.Addresses == nil {
		s.Addresses = map[string]netip.Addr{}
	}
	s.Addresses[key] = a
}

// all are all addresses.
func (s *Slots) all(yield func(netip.Addr) bool) {
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
