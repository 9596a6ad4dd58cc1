package ipam

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
)

const (
	subnetBits    = 24 // one network: a gateway and 253 addresses
	localBits     = 64
	maxSubnetBits = 29 // a gateway and 5 addresses: with fewer, two services cannot be updated
)

// ChooseSubnet picks a subnet of a pool that overlaps nothing taken, for a network that needs so many addresses.
//
// While half of the pool is free, a network gets a whole /24: the one that key hashes to, or the next free one, so that the
// same network on the same device usually gets the same addresses again, in any order of projects. After that it gets
// about twice the addresses that it needs, from the end of the pool, where small subnets are adjacent.
func ChooseSubnet(pool netip.Prefix, key string, need int, taken []netip.Prefix) (netip.Prefix, bool) {
	base, whole := binary.BigEndian.Uint32(pool.Masked().Addr().AsSlice()), uint64(1)<<(32-pool.Bits())
	used := ranges(taken)
	try := func(size int, n uint32) (netip.Prefix, bool) {
		p := netip.PrefixFrom(addr4(base+n<<(32-size)), size)
		return p, !used.overlaps(p)
	}
	if used.within(pool) < whole/2 {
		sum := sha256.Sum256([]byte(key))
		count := uint32(1) << (subnetBits - pool.Bits())
		start := binary.BigEndian.Uint32(sum[:4]) % count
		for i := range count {
			if p, ok := try(subnetBits, (start+i)%count); ok {
				return p, true
			}
		}
	}
	for size := fit(2 * need); size <= fit(need); size++ {
		for n := uint32(1) << (size - pool.Bits()); n > 0; n-- {
			if p, ok := try(size, n-1); ok {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}

// fit is the prefix length of the smallest subnet with need addresses beside those of the gateway, the network and broadcasts.
// It is never larger than a whole network.
func fit(need int) int {
	return min(max(subnetBits, 32-bits.Len(uint(need+2))), maxSubnetBits)
}

// occupied is a sorted list of IPv4 ranges, from the first to the last address, that do not overlap.
type occupied [][2]uint32

func ranges(taken []netip.Prefix) occupied {
	var out occupied
	for _, p := range taken {
		if p.Addr().Is4() {
			from := binary.BigEndian.Uint32(p.Masked().Addr().AsSlice())
			out = append(out, [2]uint32{from, from | uint32(1<<(32-p.Bits())-1)})
		}
	}
	slices.SortFunc(out, func(a, b [2]uint32) int { return cmp.Compare(a[0], b[0]) })
	last := -1
	for _, r := range out {
		if last >= 0 && r[0] <= out[last][1] {
			out[last][1] = max(out[last][1], r[1])
			continue
		}
		last++
		out[last] = r
	}
	return out[:last+1]
}

func (o occupied) overlaps(p netip.Prefix) bool {
	r := ranges([]netip.Prefix{p})[0]
	i := sort.Search(len(o), func(i int) bool { return o[i][1] >= r[0] })
	return i < len(o) && o[i][0] <= r[1]
}

// within counts the addresses that lie in p.
func (o occupied) within(p netip.Prefix) (n uint64) {
	all := ranges([]netip.Prefix{p})[0]
	for _, r := range o {
		if from, to := max(r[0], all[0]), min(r[1], all[1]); from <= to {
			n += uint64(to-from) + 1
		}
	}
	return n
}

func addr4(v uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

// ChooseLocal picks a network of this device's unique local IPv6 addresses: the one that key hashes to, or the next free one.
func ChooseLocal(pool netip.Prefix, key string, taken func(netip.Prefix) bool) (netip.Prefix, bool) {
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

// addresses are the assigned addresses of a network, also those of other projects that share it.
func (s *State) addresses(b *Network, project, network string) map[netip.Addr]bool {
	used := map[netip.Addr]bool{}
	for name, p := range s.Projects {
		for n, other := range p.Networks {
			if !(name == project && n == network) && (b.Shared == "" || other.Shared != b.Shared) {
				continue
			}
			for _, sv := range p.Services {
				if pl := sv.Endpoints[n]; pl != nil {
					for f := range Families {
						for a := range pl.Family(f).all {
							used[a] = true
						}
						used[pl.Family(f).Fixed] = true
					}
				}
			}
		}
	}
	return used
}

// HardwareAddrOf derives a link address from an IP address: a container that takes over an address takes over this too, and no
// neighbour entry becomes stale.
func HardwareAddrOf(four, six netip.Addr) []byte {
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
