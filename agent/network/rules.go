package network

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
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The named sets and maps of our table. The rules never change; what projects need is elements of these.
const (
	setBridges    = "bridges"    // interfaces of project networks
	setNeighbours = "neighbours" // incoming . outgoing interface that may talk: each bridge with itself
	setContainers = "containers" // addresses of containers
	setSelf       = "self"       // an address with itself: a container that reaches itself through the host
	setVIPs       = "vips"       // all service addresses
	mapVIP        = "vip"        // bridge . service address : container
	mapPublish    = "publish"    // protocol . port : container . port
	mapPublishAt  = "publish_at" // host address . protocol . port : container . port

	// Where several containers answer, keys of the three maps above stand here instead, once with each share.
	mapVIPShared       = "vip_shared"
	mapPublishShared   = "publish_shared"
	mapPublishAtShared = "publish_at_shared"
)

// shares is how many parts the connections of one address or port are dealt out in, at random. It divides evenly among 2
// to 6, 10, 12 and more containers; among others the largest part is at most a sixth above the smallest.
const shares = 60

const (
	firstRegister = 1 // 16 bytes wide, also the 4 registers of 4 bytes from 8 on
	nextRegister  = 2 // the 16 bytes after it
	word0         = 8 // the first 4 bytes of firstRegister
	word1, word2  = 9, 10
	word3         = 11
	word5         = 13 // the second 4 bytes of nextRegister
	nameBytes     = 16 // IFNAMSIZ
	dstNATStatus  = 1 << 5
	rejectICMP    = 0 // NFT_REJECT_ICMP_UNREACH
	rejectReset   = 1 // NFT_REJECT_TCP_RST
	portUnreach   = 3
	icmpRedirect  = 5
	maxElements   = 200 // of one netlink message: its length field has 16 bits
)

// elements are the contents of our table: by set, by key, what the key maps to ("" in a plain set).
type elements map[string]map[string]string

func (e elements) put(set string, key, value []byte) {
	if e[set] == nil {
		e[set] = map[string]string{}
	}
	e[set][string(key)] = string(value)
}

// lead lets a key lead to targets: by itself, or by its shares.
func (e elements) lead(direct, shared string, key []byte, targets [][]byte) {
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

func protocol(name string) uint16 {
	if name == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// elements derives the table's contents.
func (s *state) elements() elements {
	e := elements{}
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		p := s.Projects[name]
		for _, b := range p.Networks {
			e.put(setBridges, ifname(b.Name), nil)
			e.put(setNeighbours, slices.Concat(ifname(b.Name), ifname(b.Name)), nil)
		}
		for _, a := range p.Attachments {
			for _, n := range a.Networks {
				ip := p.address(a, n).AsSlice()
				e.put(setContainers, ip, nil)
				e.put(setSelf, slices.Concat(ip, ip), nil)
			}
		}
		for name, sv := range p.Services {
			ids := p.answering(name)
			for n, pl := range sv.Places {
				p.serve(e, n, pl.VIP, ids)
				for r, vip := range pl.Each {
					p.serve(e, n, vip, []string{p.replica(name, r)})
				}
			}
		}
		p.publish(e)
	}
	return e
}

// serve lets an address of a network lead to those of containers that are on it.
func (p *project) serve(e elements, network string, vip netip.Addr, ids []string) {
	e.put(setVIPs, vip.AsSlice(), nil)
	var targets [][]byte
	for _, id := range ids {
		if a := p.Attachments[id]; a != nil && slices.Contains(a.Networks, network) {
			targets = append(targets, p.address(a, network).AsSlice())
		}
	}
	e.lead(mapVIP, mapVIPShared, slices.Concat(ifname(p.Networks[network].Name), vip.AsSlice()), targets)
}

// door is a published port without what is behind it.
type door struct {
	host     netip.Addr
	port     uint16
	protocol string
}

func (p port) door() door { return door{p.Host, p.HostPort, p.Protocol} }

// publish adds a project's published ports: those of the containers that answer for their services. Where two services
// of one project claim a port, which an update can bring about, the one that is to have it gets it.
func (p *project) publish(e elements) {
	var taken []port
	for _, wanted := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(p.Services)) {
			sv, targets := p.Services[name], map[door][][]byte{}
			var mine []port
			for _, id := range p.answering(name) {
				a := p.Attachments[id]
				if len(a.Networks) == 0 {
					continue
				}
				for _, q := range a.Ports {
					named := slices.ContainsFunc(sv.Ports, func(r port) bool { return r.door() == q.door() })
					if named != wanted || slices.ContainsFunc(taken, q.clashes) {
						continue
					}
					mine = append(mine, q)
					targets[q.door()] = append(targets[q.door()], slices.Concat(p.address(a, a.Networks[0]).AsSlice(), padded(q.ContainerPort, 2)))
				}
			}
			taken = append(taken, mine...)
			for d, to := range targets {
				key := slices.Concat(padded(protocol(d.protocol), 1), padded(d.port, 2))
				if d.host.IsValid() {
					e.lead(mapPublishAt, mapPublishAtShared, slices.Concat(d.host.AsSlice(), key), to)
				} else {
					e.lead(mapPublish, mapPublishShared, key, to)
				}
			}
		}
	}
}

// describe makes an element readable for people.
func describe(set, key, value string) string {
	name := func(s string) string { return string(bytes.TrimRight([]byte(s), "\x00")) }
	addr := func(s string) string { a, _ := netip.AddrFromSlice([]byte(s)); return a.String() }
	number := func(s string) string { return strconv.Itoa(int(binary.BigEndian.Uint16([]byte(s)))) }
	proto := func(s string) string {
		if s[0] == unix.IPPROTO_UDP {
			return "udp"
		}
		return "tcp"
	}
	switch {
	case set == setBridges && len(key) == 16:
		return set + " " + name(key)
	case set == setNeighbours && len(key) == 32:
		return set + " " + name(key[:16])
	case (set == setContainers || set == setVIPs) && len(key) == 4:
		return set + " " + addr(key)
	case set == setSelf && len(key) == 8:
		return set + " " + addr(key[:4])
	case set == mapVIP && len(key) == 20 && len(value) == 4, set == mapVIPShared && len(key) == 24 && len(value) == 4:
		return fmt.Sprintf("%s %s to %s", set, addr(key[16:20]), addr(value))
	case set == mapPublish && len(key) == 8 && len(value) == 8, set == mapPublishShared && len(key) == 12 && len(value) == 8:
		return fmt.Sprintf("%s %s/%s to %s:%s", set, number(key[4:]), proto(key), addr(value[:4]), number(value[4:]))
	case set == mapPublishAt && len(key) == 12 && len(value) == 8, set == mapPublishAtShared && len(key) == 16 && len(value) == 8:
		return fmt.Sprintf("%s %s:%s/%s to %s:%s", set, addr(key[:4]), number(key[8:]), proto(key[4:]), addr(value[:4]), number(value[4:]))
	}
	return fmt.Sprintf("%s %x %x", set, key, value)
}

// sets declares the sets and maps of table t. Their ids tie the messages of one transaction together.
func sets(t *nftables.Table) []*nftables.Set {
	addr, name, proto, port := nftables.TypeIPAddr, nftables.TypeIFName, nftables.TypeInetProto, nftables.TypeInetService
	share := nftables.TypeMark // a number in the machine's byte order that nft can print
	concat := nftables.MustConcatSetType
	list := []*nftables.Set{
		{Name: setBridges, KeyType: name, KeyByteOrder: binaryutil.NativeEndian}, // tells nft how to print it
		{Name: setNeighbours, KeyType: concat(name, name)},
		{Name: setContainers, KeyType: addr},
		{Name: setSelf, KeyType: concat(addr, addr)},
		{Name: setVIPs, KeyType: addr},
		{Name: mapVIP, KeyType: concat(name, addr), IsMap: true, DataType: addr},
		{Name: mapPublish, KeyType: concat(proto, port), IsMap: true, DataType: concat(addr, port)},
		{Name: mapPublishAt, KeyType: concat(addr, proto, port), IsMap: true, DataType: concat(addr, port)},
		{Name: mapVIPShared, KeyType: concat(name, addr, share), IsMap: true, DataType: addr},
		{Name: mapPublishShared, KeyType: concat(proto, port, share), IsMap: true, DataType: concat(addr, port)},
		{Name: mapPublishAtShared, KeyType: concat(addr, proto, port, share), IsMap: true, DataType: concat(addr, port)},
	}
	for i, s := range list {
		s.Table, s.ID = t, uint32(i+1)
	}
	return list
}

// chain is a base chain and its rules, each with the words that stand beside it in a listing.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    []rule
}

type rule struct {
	says  string
	exprs []expr.Any
}

// Pieces of rules. Each leaves what it loads in a register or goes on only when it matches.
func meta(key expr.MetaKey, register uint32) expr.Any {
	return &expr.Meta{Key: key, Register: register}
}

func header(base expr.PayloadBase, offset, length, register uint32) expr.Any {
	return &expr.Payload{Base: base, Offset: offset, Len: length, DestRegister: register}
}

func source(register uint32) expr.Any { return header(expr.PayloadBaseNetworkHeader, 12, 4, register) }

func destination(register uint32) expr.Any {
	return header(expr.PayloadBaseNetworkHeader, 16, 4, register)
}

func targetPort(register uint32) expr.Any {
	return header(expr.PayloadBaseTransportHeader, 2, 2, register)
}

func in(set string) expr.Any {
	return &expr.Lookup{SourceRegister: firstRegister, SetName: set}
}

func notIn(set string) expr.Any {
	return &expr.Lookup{SourceRegister: firstRegister, SetName: set, Invert: true}
}

func mapped(set string) expr.Any {
	return &expr.Lookup{SourceRegister: firstRegister, SetName: set, DestRegister: firstRegister, IsDestRegSet: true}
}

// draw picks a share.
func draw(register uint32) expr.Any {
	return &expr.Numgen{Register: register, Modulus: shares, Type: unix.NFT_NG_RANDOM}
}

func is(value ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: value}
}

// flow matches a connection any of whose bits of key is set.
func flow(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: firstRegister, Key: key},
		&expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, 4)},
	}
}

func verdict(kind expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: kind} }

func rewrite(withPort bool) expr.Any {
	n := &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: firstRegister}
	if withPort {
		n.RegProtoMin, n.Specified = word1, true
	}
	return n
}

func all(parts ...any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		switch v := p.(type) {
		case expr.Any:
			out = append(out, v)
		case []expr.Any:
			out = append(out, v...)
		}
	}
	return out
}

// chains are our rules, the same on every device.
func chains() []chain {
	local := []expr.Any{
		&expr.Fib{Register: firstRegister, FlagDADDR: true, ResultADDRTYPE: true},
		is(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)...),
	}
	// rewrites sends a packet that goes through interface side to where it is meant to end.
	rewrites := func(side expr.MetaKey) []rule {
		vip := all(meta(side, firstRegister), destination(nextRegister))
		one := all(local, destination(word0), meta(expr.MetaKeyL4PROTO, word1), targetPort(word2))
		every := all(local, meta(expr.MetaKeyL4PROTO, word0), targetPort(word1))
		return []rule{
			{"service address to its container", all(vip, mapped(mapVIP), rewrite(false))},
			{"service address to one of its containers", all(vip, draw(word5), mapped(mapVIPShared), rewrite(false))},
			{"port published on one address", all(one, mapped(mapPublishAt), rewrite(true))},
			{"port published on one address, shared", all(one, draw(word3), mapped(mapPublishAtShared), rewrite(true))},
			{"port published on every address", all(every, mapped(mapPublish), rewrite(true))},
			{"port published on every address, shared", all(every, draw(word2), mapped(mapPublishShared), rewrite(true))},
		}
	}
	from, to := meta(expr.MetaKeyIIFNAME, firstRegister), meta(expr.MetaKeyOIFNAME, firstRegister)
	known := flow(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	return []chain{
		{"guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, []rule{
			{"the host's loopback is not for containers", all(from, in(setBridges), header(expr.PayloadBaseNetworkHeader, 16, 1, firstRegister), is(127), verdict(expr.VerdictDrop))},
		}},
		{"prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, rewrites(expr.MetaKeyIIFNAME)},
		{"output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, rewrites(expr.MetaKeyOIFNAME)},
		{"postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, []rule{
			{"a container that talks to itself", all(source(word0), destination(word1), in(setSelf), &expr.Masq{})},
			{"the host's loopback to a published port", all(to, in(setBridges), header(expr.PayloadBaseNetworkHeader, 12, 1, firstRegister), is(127), &expr.Masq{})},
			{"containers to the world", all(source(firstRegister), in(setContainers), to, notIn(setBridges), &expr.Masq{})},
		}},
		{"forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, []rule{
			// A reset of our own: the kernel counts ICMP errors and redirects to a neighbour together, and soon sends neither.
			{"a service that nobody serves, TCP", all(
				destination(firstRegister), in(setVIPs), meta(expr.MetaKeyL4PROTO, firstRegister), is(unix.IPPROTO_TCP), &expr.Reject{Type: rejectReset},
			)},
			{"a service that nobody serves", all(destination(firstRegister), in(setVIPs), &expr.Reject{Type: rejectICMP, Code: portUnreach})},
			{"one network", all(from, meta(expr.MetaKeyOIFNAME, nextRegister), in(setNeighbours), verdict(expr.VerdictAccept))},
			{"answers to containers", all(to, in(setBridges), known, verdict(expr.VerdictAccept))},
			{"published ports", all(to, in(setBridges), flow(expr.CtKeySTATUS, dstNATStatus), verdict(expr.VerdictAccept))},
			{"nothing else to containers", all(to, in(setBridges), verdict(expr.VerdictDrop))},
		}},
		{"redirects", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, []rule{
			{"neighbours talk through the host", all(
				to, in(setBridges), meta(expr.MetaKeyL4PROTO, firstRegister), is(unix.IPPROTO_ICMP),
				header(expr.PayloadBaseTransportHeader, 0, 1, firstRegister), is(icmpRedirect), verdict(expr.VerdictDrop),
			)},
		}},
	}
}
