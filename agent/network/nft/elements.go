package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

// Elements are the contents of our tables, one of each family. nil: the family needs no table.
type Elements [ipam.Families]Contents

// Contents are the elements of a table: by set and key, the value ("" in a plain set).
type Contents map[string]map[string]string

func (e Contents) put(set string, key, value []byte) {
	if e[set] == nil {
		e[set] = map[string]string{}
	}
	e[set][string(key)] = string(value)
}

// without are the elements of a set that other does not have with the same value.
func (e Contents) without(other Contents, set string) (out []nftables.SetElement) {
	for _, k := range slices.Sorted(maps.Keys(e[set])) {
		if v, ok := other[set][k]; !ok || v != e[set][k] {
			out = append(out, nftables.SetElement{Key: []byte(k), Val: []byte(e[set][k])})
		}
	}
	return out
}

// redirect maps a key, or each of its shares, to targets.
func (e Contents) redirect(direct, shared string, key []byte, targets [][]byte) {
	if len(targets) == 1 {
		e.put(direct, key, targets[0])
	}
	for i := range shares {
		if len(targets) > 1 {
			e.put(shared, slices.Concat(key, binaryutil.NativeEndian.PutUint32(uint32(i))), targets[i%len(targets)])
		}
	}
}

func ifname(name string) []byte {
	b := make([]byte, nameBytes)
	copy(b, name)
	return b
}

// padded is v in a register: network byte order, filled up to 4 bytes.
func padded(v uint16, bytes int) []byte {
	b := make([]byte, 4)
	if bytes == 1 {
		b[0] = byte(v)
	} else {
		binary.BigEndian.PutUint16(b, v)
	}
	return b
}

// ElementsOf derives the tables' contents. There is a table of IPv6 only when a network has such addresses.
func ElementsOf(s *ipam.State) Elements {
	var e Elements
	for f := range ipam.Families {
		if s.Uses(f) {
			e[f] = Contents{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		for f := range ipam.Families {
			if e[f] != nil {
				fill(s.Projects[name], e[f], f)
			}
		}
	}
	return e
}

// fill adds a project's elements of one family's table.
func fill(p *ipam.Project, e Contents, f ipam.Family) {
	for _, b := range p.Networks {
		if b.Routed() {
			e.put(setBridges, ifname(b.Name), nil)
			e.put(setNeighbours, slices.Concat(ifname(b.Name), ifname(b.Name)), nil)
			if b.Internal {
				e.put(setInternal, ifname(b.Name), nil)
			}
		}
	}
	for _, a := range p.Attachments {
		for _, n := range a.Networks {
			if ip := p.Address(a, n, f); ip.IsValid() && p.Networks[n].Routed() {
				e.put(setSelf, slices.Concat(ip.AsSlice(), ip.AsSlice()), nil)
				e.put(setContainers, ip.AsSlice(), nil)
			}
		}
	}
	for name, sv := range p.Services {
		ids := p.Backends(name)
		for n, pl := range sv.Endpoints {
			redirectService(p, e, n, pl.Family(f).VIP, ids)
			for r, vip := range pl.Family(f).Each {
				redirectService(p, e, n, vip, []string{p.Replica(name, r)})
			}
		}
	}
	publish(p, e, f)
}

// serve maps an address of a network to addresses of containers on it.
func redirectService(p *ipam.Project, e Contents, network string, vip netip.Addr, ids []string) {
	if !vip.IsValid() || !p.Networks[network].Routed() {
		return
	}
	e.put(setVIPs, vip.AsSlice(), nil)
	var targets [][]byte
	for _, id := range ids {
		if a := p.Attachments[id]; a != nil && slices.Contains(a.Networks, network) {
			if to := p.Address(a, network, ipam.FamilyOf(vip)); to.IsValid() {
				targets = append(targets, to.AsSlice())
			}
		}
	}
	e.redirect(mapVIP, mapVIPShared, slices.Concat(ifname(p.Networks[network].Name), vip.AsSlice()), targets)
}

// hostEndpoint is a published port without what is behind it.
type hostEndpoint struct {
	host     netip.Addr
	port     uint16
	protocol string
}

func endpointOf(p ipam.Port) hostEndpoint { return hostEndpoint{p.Host, p.HostPort, p.Protocol} }

// publish adds a project's published ports: those of the active backends. If two services of one project have the same
// port, as in an update, the service that is to have it gets it.
func publish(p *ipam.Project, e Contents, f ipam.Family) {
	var taken []ipam.Port
	for _, wanted := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(p.Services)) {
			sv, targets := p.Services[name], map[hostEndpoint][][]byte{}
			var mine []ipam.Port
			for _, id := range p.Backends(name) {
				a := p.Attachments[id]
				n := p.Ingress(a, f)
				if n == "" {
					continue
				}
				to := p.Address(a, n, f)
				for _, q := range a.Ports {
					named := slices.ContainsFunc(sv.Ports, func(r ipam.Port) bool { return endpointOf(r) == endpointOf(q) })
					if q.Host.IsValid() && ipam.FamilyOf(q.Host) != f || !to.IsValid() || named != wanted || slices.ContainsFunc(taken, q.Conflicts) {
						continue
					}
					mine = append(mine, q)
					targets[endpointOf(q)] = append(targets[endpointOf(q)], slices.Concat(to.AsSlice(), padded(q.ContainerPort, 2)))
				}
			}
			taken = append(taken, mine...)
			for d, to := range targets {
				key := slices.Concat(padded(ipam.ProtocolNumber(d.protocol), 1), padded(d.port, 2))
				if d.host.IsValid() {
					e.redirect(mapPublishAt, mapPublishAtShared, slices.Concat(d.host.AsSlice(), key), to)
				} else {
					e.redirect(MapPublish, mapPublishShared, key, to)
				}
			}
		}
	}
}

// describe makes an element of a table readable for people.
func describe(f ipam.Family, set, key, value string) string {
	name := func(s string) string { return string(bytes.TrimRight([]byte(s), "\x00")) }
	addr := func(s string) string { a, _ := netip.AddrFromSlice([]byte(s)); return a.String() }
	number := func(s string) string { return strconv.Itoa(int(binary.BigEndian.Uint16([]byte(s)))) }
	proto := func(s string) string {
		for _, p := range []string{"udp", "sctp"} {
			if uint16(s[0]) == ipam.ProtocolNumber(p) {
				return p
			}
		}
		return "tcp"
	}
	n := f.Size()
	to := func() string {
		if len(value) == n+4 {
			return addr(value[:n]) + ":" + number(value[n:])
		}
		return fmt.Sprintf("%x", value)
	}
	switch {
	case (set == setBridges || set == setInternal) && len(key) == nameBytes:
		return set + " " + name(key)
	case set == setNeighbours && len(key) == 2*nameBytes:
		return set + " " + name(key[:nameBytes])
	case (set == setContainers || set == setVIPs) && len(key) == n:
		return set + " " + addr(key)
	case set == setSelf && len(key) == 2*n:
		return set + " " + addr(key[:n])
	case (set == mapVIP || set == mapVIPShared) && len(key) >= nameBytes+n && len(value) == n:
		return fmt.Sprintf("%s %s to %s", set, addr(key[nameBytes:nameBytes+n]), addr(value))
	case (set == MapPublish || set == mapPublishShared) && len(key) >= 8:
		return fmt.Sprintf("%s %s/%s to %s", set, number(key[4:]), proto(key), to())
	case (set == mapPublishAt || set == mapPublishAtShared) && len(key) >= n+8:
		return fmt.Sprintf("%s %s:%s/%s to %s", set, addr(key[:n]), number(key[n+4:]), proto(key[n:]), to())
	}
	return fmt.Sprintf("%s %x %x", set, key, value)
}
