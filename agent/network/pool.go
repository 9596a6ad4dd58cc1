package network

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
)

const (
	minPoolBits   = 8
	maxPoolBits   = 26
	subnetBits    = 24 // one network of a pool of /20 or larger: a gateway and 253 addresses
	networksAFill = 4  // a smaller pool is cut into 2^4 networks
	localBits     = 64
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

// chooseLocal picks a network of this device's own IPv6 addresses, as [chooseSubnet] does.
func chooseLocal(pool netip.Prefix, key string, taken func(netip.Prefix) bool) (netip.Prefix, bool) {
	sum := sha256.Sum256([]byte(key))
	start := binary.BigEndian.Uint16(sum[:2])
	for i := range uint32(1) << 16 {
		b := pool.Masked().Addr().As16()
		binary.BigEndian.PutUint16(b[6:8], start+uint16(i))
		if p := netip.PrefixFrom(netip.AddrFrom16(b), localBits); !taken(p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// newLocal chooses IPv6 addresses that nobody else is likely to have: RFC 4193.
func newLocal() (netip.Prefix, error) {
	b := [16]byte{0xfd}
	if _, err := rand.Read(b[1:6]); err != nil {
		return netip.Prefix{}, fmt.Errorf("choose IPv6 addresses for this device: %w", err)
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), 48), nil
}

// addresses are those of a network that were given away, also by other projects that share it.
func (s *state) addresses(b *bridge, project, network string) map[netip.Addr]bool {
	used := map[netip.Addr]bool{}
	for name, p := range s.Projects {
		for n, other := range p.Networks {
			if !(name == project && n == network) && (b.Shared == "" || other.Shared != b.Shared) {
				continue
			}
			for _, sv := range p.Services {
				if pl := sv.Places[n]; pl != nil {
					for f := range families {
						for a := range pl.of(f).all {
							used[a] = true
						}
						used[pl.of(f).Fixed] = true
					}
				}
			}
		}
	}
	return used
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
func hardware(four, six netip.Addr) []byte {
	var b [4]byte
	switch {
	case four.Is4():
		b = four.As4()
	case six.IsValid():
		sum := sha256.Sum256(six.AsSlice())
		copy(b[:], sum[:])
	}
	return []byte{0x02, 0x4c, b[0], b[1], b[2], b[3]}
}
