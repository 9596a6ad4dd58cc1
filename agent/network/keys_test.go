package network

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// lined gives the world's host and its neighbour IPv6 addresses on their link.
func (w *world) lined() (host, lan netip.Addr) {
	w.t.Helper()
	host, lan = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	for ns, a := range map[string]netip.Addr{w.host: host, w.lan: lan} {
		h, f, err := openNamespace(ns)
		w.must(err)
		w.must(inNamespace(int(f.Fd()), func() error {
			return setSysctls([][2]string{{"net/ipv6/conf/uplink/accept_dad", "0"}, {"net/ipv6/conf/uplink/disable_ipv6", "0"}})
		}))
		l, err := h.LinkByName("uplink")
		w.must(err)
		w.must(h.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, 64)), Flags: unix.IFA_F_NODAD}))
		h.Close()
		f.Close()
	}
	return host, lan
}

// answer6 is answer for TCP over IPv6.
func (w *world) answer6(ns, name string, port string) {
	w.t.Helper()
	var l net.Listener
	w.must(w.in(ns, func() (err error) { l, err = net.Listen("tcp6", "[::]:"+port); return err }))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(name + " " + netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().String()))
			c.Close()
		}
	}()
	w.t.Cleanup(func() { l.Close(); <-done })
}

func (w *world) reaches6(ns, to, who, from string) {
	w.t.Helper()
	got, err := w.ask(ns, "tcp6", to, patience)
	name, source, _ := strings.Cut(got, " ")
	if err != nil || name != who || from != "" && source != from {
		w.t.Errorf("tcp6 %s from %s: answer %q, %v, want %q from %q", to, filepath.Base(ns), got, err, who, from)
	}
}

func (w *world) six(id, network string) netip.Addr {
	_, p := w.m.state.Find(id)
	return p.Address(p.Attachments[id], network, ipam.V6)
}

func TestIPv6(t *testing.T) {
	w := newWorld(t)
	host, lan := w.lined()
	p := proj("line", svc("web", []string{"default"}, "8080:80"), svc("client", []string{"default"}))
	p.Networks[0].IPv6 = true
	p.Services[0].Ports = append(p.Services[0].Ports, workload.Port{HostIP: host, HostPort: 9443, ContainerPort: 80, Protocol: "tcp"})
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["web"].NetNS, "web", 80)
	web, client := w.six(idOf(p, "web"), "default"), w.six(idOf(p, "client"), "default")
	if b := w.m.state.Projects["line"].Networks["default"]; !b.Six.Prefix.Addr().IsPrivate() || b.Six.Prefix.Bits() != 64 || !b.Six.Prefix.Contains(web) {
		t.Errorf("subnet %s", b.Six.Prefix)
	}
	w.answer6(a["web"].NetNS, "web6", "81")
	vip := w.m.state.Projects["line"].Services["web"].Endpoints["default"].Six.VIP
	w.reaches6(a["client"].NetNS, at(web, 81), "web6", client.String())
	w.reaches6(a["client"].NetNS, at(vip, 81), "web6", client.String())
	w.reaches6(a["web"].NetNS, at(vip, 81), "web6", "")
	w.reaches6(w.host, at(vip, 81), "web6", "")
	w.refuse6(a["client"].NetNS, at(vip, 82))
	if got, err := w.ask(w.lan, "tcp4", at(w.hostAddr, 8080), patience); err != nil || got != "web "+w.lanAddr.String() {
		t.Errorf("published over IPv4: %q, %v", got, err)
	}
	hosts, err := os.ReadFile(a["client"].HostsFile)
	w.must(err)
	if !strings.Contains(string(hosts), vip.String()+"\tweb\n") || !strings.Contains(string(hosts), client.String()+"\tclient\n") {
		t.Errorf("hosts:\n%s", hosts)
	}
	// Out, and in by published ports.
	w.answer6(w.lan, "lan", "53")
	w.reaches6(a["client"].NetNS, at(lan, 53), "lan", host.String())
	w.verified()

	q := revised(p, "web", "2")
	q.Services[0].Ports[0].ContainerPort, q.Services[0].Ports[1].ContainerPort = 81, 81
	w.prepare(q)
	fresh, err := w.m.Attach(w.ctx(), "line", containerOf(q, "web"))
	w.must(err)
	w.answer6(fresh.NetNS, "new6", "81")
	w.must(w.m.Activate(w.ctx(), "line", "web", idOf(q, "web")))
	w.reaches6(w.lan, at(host, 8080), "new6", lan.String())
	w.reaches6(w.lan, at(host, 9443), "new6", lan.String())
	w.reaches6(w.host, at(host, 8080), "new6", "")
	w.reaches6(a["client"].NetNS, at(vip, 81), "new6", client.String())
	w.must(w.in(w.lan, func() error { return runCommand(w, "ip", "-6", "route", "add", "fc00::/7", "via", host.String()) }))
	if got, err := w.ask(w.lan, "tcp6", at(web, 81), short); err == nil {
		t.Errorf("a container is reached from outside: %q", got)
	}
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	w.verified()
	w.run("nft", "delete", "table", "ip6", "longshore")
	w.drifts("table longshore is gone")
	w.must(w.m.Restore(w.ctx()))
	w.reaches6(w.lan, at(host, 9443), "new6", lan.String())
	bridge := w.m.state.Projects["line"].Networks["default"].Name
	ctx, cancel := context.WithCancel(t.Context())
	events, err := w.m.Watch(ctx)
	w.must(err)
	for what, flush := range map[string][]string{
		"has lost its route": {"-6", "route", "flush", "dev", bridge}, "has lost its address": {"-6", "addr", "flush", "dev", bridge, "scope", "global"},
	} {
		for quiet := false; !quiet; { // of events that our own change caused
			select {
			case <-events:
			case <-time.After(silence):
				quiet = true
			}
		}
		w.run("ip", flush...)
		select {
		case <-events:
		case <-time.After(patience):
			t.Errorf("no event: it %s", what)
		}
		w.drifts(what)
		w.must(w.m.Restore(w.ctx()))
		w.reaches6(w.lan, at(host, 9443), "new6", lan.String())
		w.verified()
	}
	cancel()
	for range events { // until it is closed
	}
	w.must(w.m.Teardown(w.ctx(), "line"))
	w.clean()
}

func (w *world) refuse6(ns, to string) {
	w.t.Helper()
	if _, err := w.ask(ns, "tcp6", to, patience); !errors.Is(err, unix.ECONNREFUSED) {
		w.t.Errorf("tcp6 %s: %v, want connection refused", to, err)
	}
}

// drifts wants Verify to find something.
func (w *world) drifts(says string) {
	w.t.Helper()
	var drift *Drift
	if err := w.m.Verify(w.ctx()); !errors.As(err, &drift) || !strings.Contains(err.Error(), says) {
		w.t.Errorf("Verify = %v, want a drift that says %q", err, says)
	}
}

func TestIPv6Only(t *testing.T) {
	w := newWorld(t)
	_, lan := w.lined()
	w.must(w.in(w.host, func() error { return setSysctl("net/ipv6/conf/uplink/accept_ra", "1") }))
	p := proj("line", svc("web", []string{"default"}), svc("client", []string{"default"}))
	p.Networks[0].IPv6, p.Networks[0].NoIPv4 = true, true
	p.Networks[0].Subnets = []workload.Subnet{{Prefix: netip.MustParsePrefix("fd77:1:2:3::/64"), Gateway: netip.MustParseAddr("fd77:1:2:3::ff")}}
	p.Services[0].Networks[0].IPv6 = netip.MustParseAddr("fd77:1:2:3::80")
	w.prepare(p)
	a := w.attach(p)
	w.answer6(a["web"].NetNS, "web", "80")
	w.reaches6(a["client"].NetNS, "[fd77:1:2:3::80]:80", "web", w.six(idOf(p, "client"), "default").String())
	w.answer6(w.lan, "lan", "53")
	w.reaches6(a["client"].NetNS, at(lan, 53), "lan", "")
	w.must(w.in(a["web"].NetNS, func() error {
		addrs, err := net.InterfaceAddrs()
		for _, x := range addrs {
			if n := x.(*net.IPNet); n.IP.To4() != nil && !n.IP.IsLoopback() {
				t.Errorf("IPv4 address %s", n)
			}
		}
		return err
	}))
	w.must(w.in(w.host, func() error {
		v, err := sysctl("net/ipv6/conf/uplink/accept_ra")
		if v != "2" {
			t.Errorf("the uplink listens to routers no more: accept_ra is %s", v)
		}
		return err
	}))
	w.verified()
}

func TestInternalNetworks(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("db", []string{"back"}), svc("app", []string{"back", "front"}, "8080:80", "8080:80/udp"), svc("other", []string{"back"}))
	for i := range p.Networks {
		p.Networks[i].Internal = p.Networks[i].Name == "back"
	}
	w.prepare(p)
	a := w.attach(p)
	for name, at := range a {
		w.answer(at.NetNS, name, 80)
	}
	w.answer(w.lan, "lan", 53)
	w.reaches(a["other"].NetNS, at(w.vip(p, "db", "back"), 80), "db", w.addr(idOf(p, "other"), "back").String())
	w.reaches(a["app"].NetNS, at(w.vip(p, "db", "back"), 80), "db", w.addr(idOf(p, "app"), "back").String())
	w.reaches(a["app"].NetNS, at(w.lanAddr, 53), "lan", w.hostAddr.String()) // by its other network
	w.reaches(w.lan, at(w.hostAddr, 8080), "app", w.lanAddr.String())
	w.misses(a["db"].NetNS, at(w.lanAddr, 53))
	w.inside(a["db"].NetNS, "ip", "route", "add", "default", "via", w.m.state.Projects["line"].Networks["back"].GatewayAddr().String(), "dev", "eth0", "onlink")
	w.misses(a["db"].NetNS, at(w.lanAddr, 53)) // nor when it finds its own route
	w.misses(a["db"].NetNS, at(w.hostAddr, 8080))
	w.verified()

	// It opens without its containers being made anew.
	q := *p
	q.Networks = append([]workload.Network(nil), p.Networks...)
	for i := range q.Networks {
		q.Networks[i].Internal = false
	}
	w.prepare(&q)
	w.reaches(a["db"].NetNS, at(w.lanAddr, 53), "lan", w.hostAddr.String())
	w.must(w.m.Restore(w.ctx()))
	w.verified()
}

func TestFixedAddressesAndInterfaces(t *testing.T) {
	w := newWorld(t)
	web := svc("web", []string{"a", "b"}, "8080:80", "8080:80/udp")
	web.Networks[0].IPv4, web.Networks[0].MAC, web.Networks[0].Interface = netip.MustParseAddr("172.30.5.10"), "02:aa:bb:cc:dd:01", "field0"
	web.Networks[1].Gateway = true
	p := proj("line", svc("peer", []string{"a", "b"}), web)
	p.Networks[0].Subnets = []workload.Subnet{{
		Prefix: netip.MustParsePrefix("172.30.5.0/24"), Gateway: netip.MustParseAddr("172.30.5.9"),
		Range: netip.MustParsePrefix("172.30.5.8/29"), Reserved: []netip.Addr{netip.MustParseAddr("172.30.5.8")},
	}}
	p.Networks[1].MTU = 1400
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["web"].NetNS, "web", 80)
	w.answer(w.lan, "lan", 53)
	if got := w.addr(idOf(p, "web"), "a").String(); got != "172.30.5.10" {
		t.Errorf("address %s", got)
	}
	if got := w.addr(idOf(p, "peer"), "a").String(); got != "172.30.5.11" {
		t.Errorf("the peer's address is %s, want the first of the range that is free", got)
	}
	w.reaches(a["peer"].NetNS, "172.30.5.10:80", "web", "172.30.5.11")
	w.reaches(w.lan, at(w.hostAddr, 8080), "web", w.lanAddr.String())
	w.reaches(a["web"].NetNS, at(w.lanAddr, 53), "lan", "")
	w.must(w.in(a["web"].NetNS, func() error {
		for name, want := range map[string]struct {
			mac string
			mtu int
		}{"field0": {"02:aa:bb:cc:dd:01", 1500}, "eth0": {"", 1400}} {
			i, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			if want.mac != "" && i.HardwareAddr.String() != want.mac || i.MTU != want.mtu {
				t.Errorf("%s has %s and MTU %d, want %+v", name, i.HardwareAddr, i.MTU, want)
			}
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		for _, r := range routes {
			if gw := w.m.state.Projects["line"].Networks["b"].GatewayAddr(); (r.Dst == nil || r.Dst.IP.IsUnspecified()) && !r.Gw.Equal(gw.AsSlice()) {
				t.Errorf("default route %v, want by %s", r, gw)
			}
		}
		return err
	}))
	w.verified()

	// Its next revision waits for the address.
	q := revised(p, "web", "2")
	w.prepare(q)
	if _, err := w.m.Attach(w.ctx(), "line", containerOf(q, "web")); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("Attach = %v, want a conflict", err)
	}
	w.must(w.m.Detach(w.ctx(), idOf(p, "web")))
	fresh, err := w.m.Attach(w.ctx(), "line", containerOf(q, "web"))
	w.must(err)
	w.answer(fresh.NetNS, "new", 80)
	w.reaches(a["peer"].NetNS, "172.30.5.10:80", "new", "172.30.5.11")
	// A name's address makes room for one that is fixed.
	r := *q
	r.Services = append([]workload.Service(nil), q.Services...)
	late := svc("late", []string{"a"})
	late.Networks[0].IPv4 = w.vip(q, "web", "a")
	r.Services = append(r.Services, late)
	w.prepare(&r)
	if w.vip(&r, "web", "a") == late.Networks[0].IPv4 {
		t.Error("two have one address")
	}
	b, err := w.m.Attach(w.ctx(), "line", containerOf(&r, "late"))
	w.must(err)
	w.answer(b.NetNS, "late", 80)
	w.reaches(a["peer"].NetNS, at(late.Networks[0].IPv4, 80), "late", "")
	w.reaches(a["peer"].NetNS, at(w.vip(&r, "web", "a"), 80), "new", "")
	w.verified()
}

func TestRenumberedNetwork(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	q := *p
	q.Networks = append([]workload.Network(nil), p.Networks...)
	for i := range q.Networks {
		if q.Networks[i].Name == "back" {
			q.Networks[i].Subnets = []workload.Subnet{{Prefix: netip.MustParsePrefix("172.31.7.0/24")}}
		}
	}
	w.prepare(&q)
	if got := w.addr(idOf(p, "web"), "back"); !netip.MustParsePrefix("172.31.7.0/24").Contains(got) {
		t.Errorf("address %s", got)
	}
	serves(w, &q, a)
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	serves(w, &q, a)
	w.prepare(&q)
	serves(w, &q, a)
	w.must(w.m.Teardown(w.ctx(), "line"))
	w.clean()
}

func TestNamespaceModes(t *testing.T) {
	w := newWorld(t)
	w.m.hosts = filepath.Join(t.TempDir(), "hosts")
	w.must(os.WriteFile(w.m.hosts, []byte("127.0.0.1 localhost\n192.0.2.7 ours"), 0o600))
	w.m.names = []string{filepath.Join(t.TempDir(), "resolv.conf")}
	w.must(os.WriteFile(w.m.names[0], []byte("nameserver 127.0.0.53\nsearch a.example\noptions edns0\n"), 0o600))
	web := svc("web", []string{"default"}, "8080:80", "8080:80/udp")
	web.Hosts = []workload.Host{{Name: "registry", Address: "192.0.2.9"}, {Name: "device", Address: "host-gateway"}, {Name: "side", Address: "192.0.2.10"}}
	web.DNS = workload.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.53")}, Search: []string{"."}, Options: []string{"ndots:2"}}
	web.Domainname = "plant.example"
	side, host, none := svc("side", nil), svc("host", nil), svc("none", nil)
	side.Namespaces.Network, host.Namespaces.Network, none.Namespaces.Network = workload.ServiceNamespace("web"), workload.HostNamespace, workload.NoNamespace
	host.Hosts = []workload.Host{{Name: "device", Address: "host-gateway"}, {Name: "x", Address: "192.0.2.9"}}
	p := proj("line", web, side, host, none)
	w.prepare(p)
	if _, err := w.m.Attach(w.ctx(), "line", containerOf(p, "side")); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Attach before the service it joins = %v, want not found", err)
	}
	a := w.attach(p)
	if a["side"] != a["web"] {
		t.Errorf("side has %+v, want what web has: %+v", a["side"], a["web"])
	}
	if a["host"].NetNS != "" || a["none"].NetNS == "" {
		t.Errorf("namespaces %q, %q", a["host"].NetNS, a["none"].NetNS)
	}
	read := func(path string) string {
		b, err := os.ReadFile(path)
		w.must(err)
		return string(b)
	}
	own, gw := w.addr(idOf(p, "web"), "default").String(), w.m.state.Projects["line"].Networks["default"].GatewayAddr().String()
	for path, want := range map[string]string{
		a["host"].HostsFile:  "127.0.0.1 localhost\n192.0.2.7 ours\n127.0.0.1\tdevice\n192.0.2.9\tx\n",
		a["host"].ResolvConf: "nameserver 127.0.0.53\nsearch a.example\noptions edns0\n",
		a["web"].ResolvConf:  "nameserver 192.0.2.53\noptions ndots:2\n",
		a["web"].HostsFile: "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + own + "\tweb.plant.example web\n" +
			"192.0.2.9\tregistry\n" + gw + "\tdevice\n192.0.2.10\tside\n" + w.vip(p, "web", "default").String() + "\tweb-1\n",
		a["none"].HostsFile: "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\tnone\n",
	} {
		if got := read(path); got != want {
			t.Errorf("%s:\n%swant\n%s", strings.TrimPrefix(path, w.o.RunDir), got, want)
		}
	}
	w.must(w.in(a["none"].NetNS, func() error {
		list, err := net.Interfaces()
		if len(list) != 1 || list[0].Name != "lo" || list[0].Flags&net.FlagUp == 0 {
			t.Errorf("interfaces without a network: %v", list)
		}
		return err
	}))
	w.answer(a["side"].NetNS, "side", 80)
	w.reaches(w.lan, at(w.hostAddr, 8080), "side", w.lanAddr.String())
	w.verified()
	w.must(w.m.Restore(w.ctx()))

	// The service that is joined gets another container: who joins it follows with its next start.
	q := revised(p, "web", "2")
	w.prepare(q)
	w.must(w.m.Detach(w.ctx(), idOf(p, "web")))
	w.must(w.m.Restore(w.ctx()))
	fresh, err := w.m.Attach(w.ctx(), "line", containerOf(q, "web"))
	w.must(err)
	again, err := w.m.Attach(w.ctx(), "line", containerOf(q, "side"))
	w.must(err)
	if again != fresh || fresh.NetNS == a["web"].NetNS {
		t.Errorf("side has %+v, want what the new web has: %+v", again, fresh)
	}
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	w.verified()
	w.must(w.m.Teardown(w.ctx(), "line"))
	w.clean()
}

func TestSharedNetworks(t *testing.T) {
	w := newWorld(t)
	w.must(w.m.Close())
	w.o.Shared = []Shared{{Name: "plant", Subnet: netip.MustParsePrefix("172.29.0.0/24")}, {Name: "lab"}}
	w.open()
	joined := func(name, service string) *workload.Project {
		p := proj(name, svc(service, []string{"bus"}))
		p.Networks[0].External = "plant"
		return p
	}
	p, q := joined("one", "broker"), joined("two", "client")
	w.prepare(p)
	w.prepare(q)
	a, b := w.attach(p), w.attach(q)
	w.answer(a["broker"].NetNS, "broker", 80)
	w.reaches(b["client"].NetNS, at(w.vip(p, "broker", "bus"), 80), "broker", w.addr(idOf(q, "client"), "bus").String())
	hosts, err := os.ReadFile(b["client"].HostsFile)
	w.must(err)
	if !strings.Contains(string(hosts), w.vip(p, "broker", "bus").String()+"\tbroker\n") {
		t.Errorf("a neighbour's name is missing:\n%s", hosts)
	}
	if w.addr(idOf(p, "broker"), "bus") == w.addr(idOf(q, "client"), "bus") {
		t.Error("two containers have one address")
	}
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	w.verified()
	w.must(w.m.Teardown(w.ctx(), "one"))
	if hosts, err = os.ReadFile(b["client"].HostsFile); err != nil || strings.Contains(string(hosts), "broker") {
		t.Errorf("a name outlives its project: %v\n%s", err, hosts)
	}
	w.verified()
	stranger := joined("three", "x")
	stranger.Networks[0].External = "none"
	if err := w.m.Prepare(w.ctx(), stranger); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) == "" {
		t.Errorf("Prepare = %v, want not found", err)
	}
	w.must(w.m.Teardown(w.ctx(), "two"))
	w.clean()
}

func TestMacvlan(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("plc", []string{"field"}), svc("hmi", []string{"field", "default"}, "8080:80", "8080:80/udp"))
	for i := range p.Networks {
		if n := &p.Networks[i]; n.Name == "field" {
			n.Driver, n.Options = workload.Macvlan, map[string]string{"parent": "uplink", "macvlan_mode": "bridge"}
			n.Subnets = []workload.Subnet{{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Gateway: w.lanAddr, Range: netip.MustParsePrefix("198.51.100.64/28")}}
		}
	}
	p.Services[0].Networks[0].IPv4, p.Services[0].Networks[0].MAC = netip.MustParseAddr("198.51.100.70"), "02:00:00:00:00:70"
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["plc"].NetNS, "plc", 80)
	w.answer(a["hmi"].NetNS, "hmi", 80)
	w.answer(w.lan, "lan", 53)
	w.reaches(w.lan, "198.51.100.70:80", "plc", w.lanAddr.String())
	w.reaches(a["plc"].NetNS, at(w.lanAddr, 53), "lan", "198.51.100.70")
	hmi := w.addr(idOf(p, "hmi"), "field")
	w.reaches(a["plc"].NetNS, at(hmi, 80), "hmi", "198.51.100.70")
	// Over TCP: a server of datagrams on every address answers from the one that its default route has.
	if got, err := w.ask(w.lan, "tcp4", at(w.hostAddr, 8080), patience); err != nil || got != "hmi "+w.lanAddr.String() {
		t.Errorf("published port: %q, %v", got, err)
	}
	hosts, err := os.ReadFile(a["hmi"].HostsFile)
	w.must(err)
	if !strings.Contains(string(hosts), "198.51.100.70\tplc\n") {
		t.Errorf("hosts:\n%s", hosts)
	}
	w.verified()

	// A name follows the container that answers.
	q := revised(p, "hmi", "2")
	w.prepare(q)
	_, err = w.m.Attach(w.ctx(), "line", containerOf(q, "hmi"))
	w.must(err)
	w.must(w.m.Activate(w.ctx(), "line", "hmi", idOf(q, "hmi")))
	if hosts, err = os.ReadFile(a["plc"].HostsFile); err != nil || !strings.Contains(string(hosts), w.addr(idOf(q, "hmi"), "field").String()+"\thmi\n") {
		t.Errorf("hosts after the switch: %v\n%s", err, hosts)
	}
	w.inside(a["plc"].NetNS, "ip", "link", "del", "eth0")
	w.drifts("is gone")
	w.must(w.m.Restore(w.ctx()))
	w.reaches(w.lan, "198.51.100.70:80", "plc", w.lanAddr.String())
	w.verified()
	w.must(w.m.Teardown(w.ctx(), "line"))
	w.clean()

	for i := range p.Networks {
		if p.Networks[i].Options != nil {
			p.Networks[i].Options["parent"] = "eth7"
		}
	}
	if err := w.m.Admit(w.ctx(), []*workload.Project{p}); !errors.Is(err, fault.ErrNotFound) || !strings.Contains(err.Error(), "eth7") {
		t.Errorf("Admit = %v, want the missing parent named", err)
	}
}

func TestNetworkKeysAreRefused(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		name string
		edit func(p *workload.Project)
		want error
		says string
	}{
		{"macvlan without a subnet", func(p *workload.Project) {
			p.Networks[0].Driver, p.Networks[0].Options = workload.Macvlan, map[string]string{"parent": "uplink"}
		}, fault.ErrInvalid, "subnet"},
		{"subnet of the host", func(p *workload.Project) {
			p.Networks[0].Subnets = []workload.Subnet{{Prefix: netip.MustParsePrefix("198.51.100.128/25")}}
		}, fault.ErrConflict, "198.51.100.0/24"},
		{"two subnets of a family", func(p *workload.Project) {
			p.Networks[0].Subnets = []workload.Subnet{{Prefix: netip.MustParsePrefix("172.30.0.0/24")}, {Prefix: netip.MustParsePrefix("172.30.1.0/24")}}
		}, fault.ErrUnsupported, "one of a family"},
		{"address outside", func(p *workload.Project) {
			p.Services[0].Networks[0].IPv4 = netip.MustParseAddr("172.30.1.1")
		}, fault.ErrInvalid, "172.30.1.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := proj("line", svc("web", []string{"default"}))
			tt.edit(p)
			if err := w.m.Prepare(w.ctx(), p); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Prepare = %v, want %v saying %q", err, tt.want, tt.says)
			}
		})
	}
	ipvlan := proj("line", svc("web", []string{"default"}))
	ipvlan.Networks[0].Driver, ipvlan.Networks[0].Options = workload.IPvlan, map[string]string{"parent": "uplink", "ipvlan_mode": "l2"}
	ipvlan.Networks[0].Subnets = []workload.Subnet{{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Gateway: w.lanAddr, Range: netip.MustParsePrefix("198.51.100.64/28")}}
	if err := w.m.checkDriver(workload.IPvlan); err == nil {
		w.prepare(ipvlan)
		a := w.attach(ipvlan)
		w.answer(w.lan, "lan", 53)
		w.reaches(a["web"].NetNS, at(w.lanAddr, 53), "lan", "")
		w.must(w.m.Teardown(w.ctx(), "line"))
	} else if err := w.m.Admit(w.ctx(), []*workload.Project{ipvlan}); !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "driver ipvlan: this kernel has none") {
		t.Errorf("Admit with ipvlan = %v, want it refused: the kernel has none", err)
	}
	if err := w.m.checkDriver(workload.Macvlan); err != nil {
		t.Errorf("macvlan: %v", err)
	}
	w.clean()
	sctp := proj("line", svc("web", []string{"default"}, "80:80"))
	sctp.Services[0].Ports[0].Protocol = "sctp"
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
		w.prepare(sctp)
		w.attach(sctp)
		w.verified()
	} else if err := w.m.Admit(w.ctx(), []*workload.Project{sctp}); !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "no SCTP") {
		t.Errorf("Admit with SCTP = %v, want it refused: the kernel has none", err)
	}
}

// A port that is published on every address is not on the IPv6 loopback, whose answers the kernel drops: who tries it first, as
// clients do that ask for localhost, is refused at once and tries the next address.
func TestIPv6LoopbackIsRefusedAtOnce(t *testing.T) {
	w := newWorld(t)
	p := proj("six", svc("web", []string{"default"}, "8080:80", "8080:80/udp"))
	p.Networks[0].IPv6 = true
	w.prepare(p)
	w.answer6(w.attach(p)["web"].NetNS, "web", "80")
	if _, err := w.ask(w.host, "tcp6", "[::1]:8080", patience); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("TCP to the IPv6 loopback: %v, want connection refused", err)
	}
	if _, err := w.ask(w.host, "udp6", "[::1]:8080", patience); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a datagram to the IPv6 loopback: %v, want connection refused", err)
	}
	w.reaches6(w.host, at(w.six(idOf(p, "web"), "default"), 80), "web", "")
	w.reaches6(w.host, at(w.m.state.Projects["six"].Networks["default"].Six.GatewayAddr(), 8080), "web", "")
	w.verified()
}

// A network's MTU changes for containers that run, too; without one it is that of the device's uplink again.
func TestMTUFollows(t *testing.T) {
	w := newWorld(t)
	w.run("ip", "route", "add", "default", "via", w.lanAddr.String())
	p := proj("line", svc("web", []string{"default"}))
	w.prepare(p)
	ns := w.attach(p)["web"].NetNS
	for _, mtu := range []int{1300, 1400, 0} {
		q := *p
		q.Networks = []workload.Network{{Name: "default", MTU: mtu}}
		w.prepare(&q)
		want := cmp.Or(mtu, 1500)
		b := w.m.state.Projects["line"].Networks["default"]
		for _, where := range [][2]string{{w.host, b.Name}, {w.host, w.m.vethName(idOf(p, "web"), "default")}, {ns, "eth0"}} {
			w.must(w.in(where[0], func() error {
				i, err := net.InterfaceByName(where[1])
				if err == nil && i.MTU != want {
					t.Errorf("%s has the MTU %d, want %d", where[1], i.MTU, want)
				}
				return err
			}))
		}
		w.verified()
	}
}
