package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

// The named sets and maps of our table. The rules never change; projects add elements to these.
const (
	setBridges    = "bridges"    // interfaces of project networks
	setInternal   = "internal"   // those without a route out
	setNeighbours = "neighbours" // incoming . outgoing interface with allowed traffic: each bridge with itself
	setContainers = "containers" // addresses of containers
	setSelf       = "self"       // an address with itself: a container that reaches itself through the host
	setVIPs       = "vips"       // all service addresses
	mapVIP        = "vip"        // bridge . service address : container
	MapPublish    = "publish"    // protocol . port : container . port
	mapPublishAt  = "publish_at" // host address . protocol . port : container . port

	// For several backends the keys of the three maps above are in these maps instead, once for each share.
	mapVIPShared       = "vip_shared"
	mapPublishShared   = "publish_shared"
	mapPublishAtShared = "publish_at_shared"
)

// shares is the number of random parts that the connections of one address or port are divided into. It divides evenly among 2
// to 6, 10, 12 and more containers; otherwise the largest part is at most a sixth above the smallest.
const shares = 60

const (
	firstRegister = 1  // 16 bytes wide, also the 4 registers of 4 bytes from 8 on
	nextRegister  = 2  // the 16 bytes after it
	word0         = 8  // the first 4 bytes of firstRegister
	nameWords     = 4  // of an interface's name
	nameBytes     = 16 // IFNAMSIZ
	dstNATStatus  = 1 << 5
	rejectICMP    = 0   // NFT_REJECT_ICMP_UNREACH
	rejectReset   = 1   // NFT_REJECT_TCP_RST
	maxElements   = 200 // of one netlink message: its length field has 16 bits
)

// sets declares the sets and maps of table t. Their ids tie the messages of one transaction together.
func sets(t *nftables.Table) []*nftables.Set {
	addr, name, proto, port := nftables.TypeIPAddr, nftables.TypeIFName, nftables.TypeInetProto, nftables.TypeInetService
	if t.Family == nftables.TableFamilyIPv6 {
		addr = nftables.TypeIP6Addr
	}
	share := nftables.TypeMark // a number in the machine's byte order that nft can print
	concat := nftables.MustConcatSetType
	list := []*nftables.Set{
		{Name: setBridges, KeyType: name, KeyByteOrder: binaryutil.NativeEndian}, // for nft's output
		{Name: setInternal, KeyType: name, KeyByteOrder: binaryutil.NativeEndian},
		{Name: setNeighbours, KeyType: concat(name, name)},
		{Name: setContainers, KeyType: addr},
		{Name: setSelf, KeyType: concat(addr, addr)},
		{Name: setVIPs, KeyType: addr},
		{Name: mapVIP, KeyType: concat(name, addr), IsMap: true, DataType: addr},
		{Name: MapPublish, KeyType: concat(proto, port), IsMap: true, DataType: concat(addr, port)},
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
	comment string
	exprs   []expr.Any
}

// Pieces of rules. Each loads a register, or continues only if it matches.
func meta(key expr.MetaKey, register uint32) expr.Any {
	return &expr.Meta{Key: key, Register: register}
}

func header(base expr.PayloadBase, offset, length, register uint32) expr.Any {
	return &expr.Payload{Base: base, Offset: offset, Len: length, DestRegister: register}
}

// headers is what differs between the families in rules.
type headers struct {
	source, destination uint32 // offsets of addresses in the header
	size                uint32 // of an address, in bytes
	words               uint32 // of an address, in 4 bytes
	loopback            []byte // prefix of loopback addresses
	unreachable         uint8  // code of the ICMP message: port
	icmp, redirect      byte   // protocol; type of the message
	nat                 uint32
}

func headersOf(f ipam.Family) headers {
	if f == ipam.V6 {
		return headers{8, 24, 16, 4, netip.IPv6Loopback().AsSlice(), 4, unix.IPPROTO_ICMPV6, 137, unix.NFPROTO_IPV6}
	}
	return headers{12, 16, 4, 1, []byte{127}, 3, unix.IPPROTO_ICMP, 5, unix.NFPROTO_IPV4}
}

func (w headers) from(register uint32) expr.Any {
	return header(expr.PayloadBaseNetworkHeader, w.source, w.size, register)
}

func (w headers) to(register uint32) expr.Any {
	return header(expr.PayloadBaseNetworkHeader, w.destination, w.size, register)
}

// loops matches a loopback address at an offset of the header.
func (w headers) loops(at uint32) []expr.Any {
	return []expr.Any{header(expr.PayloadBaseNetworkHeader, at, uint32(len(w.loopback)), firstRegister), equals(w.loopback...)}
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

func equals(value ...byte) expr.Any {
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

func (w headers) rewrite(withPort bool) expr.Any {
	n := &expr.NAT{Type: expr.NATTypeDestNAT, Family: w.nat, RegAddrMin: firstRegister}
	if withPort {
		n.RegProtoMin, n.Specified = word0+w.words, true
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
func chains(f ipam.Family) []chain {
	w := headersOf(f)
	from, to := meta(expr.MetaKeyIIFNAME, firstRegister), meta(expr.MetaKeyOIFNAME, firstRegister)
	known := flow(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	return []chain{
		{"guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, []rule{
			{"the host's loopback is not for containers", all(from, in(setBridges), w.loops(w.destination), verdict(expr.VerdictDrop))},
		}},
		{"prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, w.rewrites(expr.MetaKeyIIFNAME)},
		{"output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, w.rewrites(expr.MetaKeyOIFNAME)},
		{"postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, []rule{
			{"a container that talks to itself", all(w.from(word0), w.to(word0+w.words), in(setSelf), &expr.Masq{})},
			{"the host's loopback to a published port", all(to, in(setBridges), w.loops(w.source), &expr.Masq{})},
			{"containers to the world", all(w.from(firstRegister), in(setContainers), to, notIn(setBridges), &expr.Masq{})},
		}},
		{"forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, []rule{
			// A TCP reset: the kernel limits ICMP errors and redirects to a neighbour with one counter, and soon sends neither.
			{"a service without a backend, TCP", all(
				w.to(firstRegister), in(setVIPs), meta(expr.MetaKeyL4PROTO, firstRegister), equals(unix.IPPROTO_TCP), &expr.Reject{Type: rejectReset},
			)},
			{"a service without a backend", all(w.to(firstRegister), in(setVIPs), &expr.Reject{Type: rejectICMP, Code: w.unreachable})},
			{"one network", all(from, meta(expr.MetaKeyOIFNAME, nextRegister), in(setNeighbours), verdict(expr.VerdictAccept))},
			{"no way out of an internal network", all(from, in(setInternal), verdict(expr.VerdictDrop))},
			{"no way into an internal network", all(to, in(setInternal), verdict(expr.VerdictDrop))},
			{"answers to containers", all(to, in(setBridges), known, verdict(expr.VerdictAccept))},
			{"published ports", all(to, in(setBridges), flow(expr.CtKeySTATUS, dstNATStatus), verdict(expr.VerdictAccept))},
			{"nothing else to containers", all(to, in(setBridges), verdict(expr.VerdictDrop))},
		}},
		{"redirects", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, []rule{
			{"neighbours talk through the host", all(
				to, in(setBridges), meta(expr.MetaKeyL4PROTO, firstRegister), equals(w.icmp),
				header(expr.PayloadBaseTransportHeader, 0, 1, firstRegister), equals(w.redirect), verdict(expr.VerdictDrop),
			)},
		}},
	}
}

// rewrites changes the destination of a packet on interface side to its backend.
func (w headers) rewrites(side expr.MetaKey) []rule {
	local := []expr.Any{
		&expr.Fib{Register: firstRegister, FlagDADDR: true, ResultADDRTYPE: true},
		equals(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)...),
	}
	vip := all(meta(side, firstRegister), w.to(nextRegister))
	one := all(local, w.to(word0), meta(expr.MetaKeyL4PROTO, word0+w.words), targetPort(word0+w.words+1))
	every := all(local, meta(expr.MetaKeyL4PROTO, word0), targetPort(word0+1))
	services := []rule{
		{"service address to its container", all(vip, mapped(mapVIP), w.rewrite(false))},
		{"service address to one of its containers", all(vip, draw(word0+nameWords+w.words), mapped(mapVIPShared), w.rewrite(false))},
	}
	if w.nat == unix.NFPROTO_IPV6 { // a packet that is not rewritten is rejected at once, so that clients try another address
		services = append(services, rule{"the kernel takes no answers for the IPv6 loopback", all(w.loops(w.destination), verdict(expr.VerdictReturn))})
	}
	return append(
		services,
		rule{"port published on one address", all(one, mapped(mapPublishAt), w.rewrite(true))},
		rule{"port published on one address, shared", all(one, draw(word0+w.words+2), mapped(mapPublishAtShared), w.rewrite(true))},
		rule{"port published on every address", all(every, mapped(MapPublish), w.rewrite(true))},
		rule{"port published on every address, shared", all(every, draw(word0+2), mapped(mapPublishShared), w.rewrite(true))},
	)
}
