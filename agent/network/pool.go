package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	minPoolBits   = 8
	maxPoolBits   = 26
	subnetBits    = 24 // one network of a pool of /20 or larger: a gateway and 253 addresses
	networksAFill = 4  // a smaller pool is cut into 2^4 networks
	maxSubnetBits = 29 // a gateway and 5 addresses: fewer hold no service that can be updated beside another
)

// cut is the size of the networks that a pool is split into.
func cut(pool netip.Prefix) int {
	return min(max(subnetBits, pool.Bits()+networksAFill), maxSubnetBits)
}

// chooseSubnet picks the network of a pool that key hashes to, or the next one that overlaps nothing taken. The same
// network on the same device mostly gets the same addresses again, whatever order projects come in.
func chooseSubnet(pool netip.Prefix, key string, taken func(netip.Prefix) bool) (netip.Prefix, bool) {
	bits := cut(pool)
	count := uint32(1) << (bits - pool.Bits())
	sum := sha256.Sum256([]byte(key))
	start := binary.BigEndian.Uint32(sum[:4]) % count
	base := binary.BigEndian.Uint32(pool.Masked().Addr().AsSlice())
	for i := range count {
		p := netip.PrefixFrom(addr4(base+(start+i)%count<<(32-bits)), bits)
		if !taken(p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func addr4(v uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

// addresses are the addresses of a network that a project gave away.
func (p *project) addresses(network string) map[netip.Addr]bool {
	used := map[netip.Addr]bool{}
	for _, s := range p.Services {
		if pl := s.Places[network]; pl != nil {
			used[pl.VIP] = true
			for _, a := range pl.Addresses {
				used[a] = true
			}
			for _, a := range pl.Each {
				used[a] = true
			}
		}
	}
	return used
}

// takeAddress returns a free address of a network: containers from below, services from above.
func (p *project) takeAddress(network string, vip bool) (netip.Addr, error) {
	b := p.Networks[network]
	used := p.addresses(network)
	base := binary.BigEndian.Uint32(b.Subnet.Addr().AsSlice())
	last := uint32(1)<<(32-b.Subnet.Bits()) - 2 // the one after it is the broadcast address
	for i := uint32(2); i <= last; i++ {
		n := i
		if vip {
			n = last + 2 - i
		}
		if a := addr4(base + n); !used[a] {
			return a, nil
		}
	}
	return netip.Addr{}, fault.WithHint(fmt.Errorf("network %q: no address left in %s: %w", network, b.Subnet, fault.ErrConflict),
		"split the network, or give the device a larger network pool")
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

// hardware is the link address that goes with an address: a container that takes over an address takes over this too, and no
// neighbour's memory goes stale.
func hardware(a netip.Addr) []byte {
	b := a.As4()
	return []byte{0x02, 0x4c, b[0], b[1], b[2], b[3]}
}
