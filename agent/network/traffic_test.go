package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
)

func TestNeighbours(t *testing.T) {
	for _, bridged := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables="+bridged, func(t *testing.T) {
			w := newWorld(t)
			w.must(w.in(w.host, func() error { return setSysctl("net/bridge/bridge-nf-call-iptables", bridged) }))
			p := proj("line", svc("web", []string{"default"}), svc("broker", []string{"default"}))
			w.prepare(p)
			at1 := w.attach(p)
			web, broker := at1["web"].NetNS, at1["broker"].NetNS
			w.answer(web, "web", 80)
			w.answer(broker, "broker", 80)
			webAddr, brokerAddr := w.addr(idOf(p, "web"), "default"), w.addr(idOf(p, "broker"), "default")

			w.reaches(web, at(brokerAddr, 80), "broker", webAddr.String())
			w.reaches(broker, at(webAddr, 80), "web", brokerAddr.String())
			w.reaches(web, at(w.vip(p, "broker", "default"), 80), "broker", webAddr.String())
			w.reaches(broker, at(w.vip(p, "web", "default"), 80), "web", brokerAddr.String())
			w.reaches(web, at(w.vip(p, "web", "default"), 80), "web", "")
			w.reaches(web, at(webAddr, 80), "web", webAddr.String())
			w.reaches(w.host, at(webAddr, 80), "web", "")
			w.reaches(w.host, at(w.vip(p, "web", "default"), 80), "web", "")
			w.refuses(web, at(w.vip(p, "broker", "default"), 81))
			w.verified()
		})
	}
}

func TestNamesMeanServices(t *testing.T) {
	w := newWorld(t)
	broker := svc("broker", []string{"back"})
	broker.Networks[0].Aliases = []string{"mq", "nats"}
	web := svc("web", []string{"front", "back"})
	web.Hostname = "www.plant.example"
	p := proj("line", web, broker, svc("proxy", []string{"front"}))
	w.prepare(p)
	a := w.attach(p)
	read := func(service string) map[string]string {
		b, err := os.ReadFile(a[service].HostsFile)
		w.must(err)
		names := map[string]string{}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			for _, n := range f[1:] {
				if _, ok := names[n]; !ok {
					names[n] = f[0]
				}
			}
		}
		return names
	}
	vip := func(s, n string) string { return w.vip(p, s, n).String() }
	for service, want := range map[string]map[string]string{
		"web": {
			"www.plant.example": w.addr(idOf(p, "web"), "front").String(), "www": w.addr(idOf(p, "web"), "front").String(),
			"web": vip("web", "front"), "broker": vip("broker", "back"), "mq": vip("broker", "back"), "nats": vip("broker", "back"),
			"proxy": vip("proxy", "front"), "localhost": "127.0.0.1",
		},
		"broker": {"web": vip("web", "back"), "broker": w.addr(idOf(p, "broker"), "back").String(), "mq": vip("broker", "back")},
		"proxy":  {"web": vip("web", "front"), "proxy": w.addr(idOf(p, "proxy"), "front").String(), "localhost": "127.0.0.1"},
	} {
		got := read(service)
		for name, addr := range want {
			if got[name] != addr {
				t.Errorf("in %s, %s is %q, want %q", service, name, got[name], addr)
			}
		}
	}
	if got := read("proxy")["broker"]; got != "" {
		t.Errorf("proxy knows broker (%s) without sharing a network", got)
	}
	if a["web"].Hostname != "www.plant.example" || a["proxy"].Hostname != "proxy" {
		t.Errorf("hostnames %q, %q", a["web"].Hostname, a["proxy"].Hostname)
	}
	w.answer(a["broker"].NetNS, "broker", 4222)
	w.answer(a["web"].NetNS, "web", 80)
	w.reaches(a["web"].NetNS, read("web")["mq"]+":4222", "broker", w.addr(idOf(p, "web"), "back").String())
	w.reaches(a["proxy"].NetNS, read("proxy")["web"]+":80", "web", w.addr(idOf(p, "proxy"), "front").String())
	w.reaches(a["broker"].NetNS, read("broker")["web"]+":80", "web", w.addr(idOf(p, "broker"), "back").String())
	w.misses(a["proxy"].NetNS, at(w.addr(idOf(p, "broker"), "back"), 4222))
	w.misses(a["proxy"].NetNS, at(w.vip(p, "broker", "back"), 4222))
}

func TestPublishedPorts(t *testing.T) {
	w := newWorld(t)
	p := proj(
		"line",
		svc("web", []string{"default"}, "8080:80", "8080:80/udp"),
		svc("admin", []string{"default"}, "127.0.0.1:9000:80", "127.0.0.1:9000:80/udp"),
		svc("lan", []string{"default"}, w.hostAddr.String()+":9001:80", w.hostAddr.String()+":9001:80/udp"),
	)
	w.prepare(p)
	a := w.attach(p)
	for s, at := range a {
		w.answer(at.NetNS, s, 80)
	}
	host, lan := w.hostAddr.String(), w.lanAddr.String()
	w.reaches(w.host, "127.0.0.1:8080", "web", "")
	w.reaches(w.host, host+":8080", "web", "")
	w.reaches(w.lan, host+":8080", "web", lan)
	w.reaches(a["web"].NetNS, host+":8080", "web", "")
	w.reaches(a["admin"].NetNS, host+":8080", "web", w.addr(idOf(p, "admin"), "default").String())
	w.reaches(w.host, "127.0.0.1:9000", "admin", "")
	w.misses(w.host, host+":9000")
	w.misses(w.lan, host+":9000")
	w.reaches(w.lan, host+":9001", "lan", lan)
	w.reaches(w.host, host+":9001", "lan", "")
	w.misses(w.host, "127.0.0.1:9001")
	w.misses(w.lan, host+":80")
	if notes := w.m.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "ip_forward") {
		t.Errorf("notes %q, want one about ip_forward", notes)
	}
}

func TestEgressIsMasqueraded(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("web", []string{"default"}))
	w.prepare(p)
	a := w.attach(p)
	w.answer(w.lan, "lan", 53)
	w.reaches(a["web"].NetNS, at(w.lanAddr, 53), "lan", w.hostAddr.String())
	w.answer(w.host, "host", 54)
	// UDP would be answered from the bridge's address: the way of a server on 0.0.0.0, not ours.
	if got, err := w.ask(a["web"].NetNS, "tcp4", at(w.hostAddr, 54), patience); err != nil || got != "host "+w.addr(idOf(p, "web"), "default").String() {
		t.Errorf("the host itself: %q, %v", got, err)
	}
}

func TestProjectsAreIsolated(t *testing.T) {
	w := newWorld(t)
	p, q := proj("one", svc("web", []string{"default"})), proj("two", svc("web", []string{"default"}, "8080:80", "8080:80/udp"))
	w.prepare(p)
	w.prepare(q)
	a, b := w.attach(p), w.attach(q)
	w.answer(a["web"].NetNS, "one", 80)
	w.answer(b["web"].NetNS, "two", 80)
	one, two := w.addr(idOf(p, "web"), "default"), w.addr(idOf(q, "web"), "default")
	w.misses(a["web"].NetNS, at(two, 80))
	w.misses(b["web"].NetNS, at(one, 80))
	w.misses(a["web"].NetNS, at(w.vip(q, "web", "default"), 80))
	w.reaches(a["web"].NetNS, at(w.hostAddr, 8080), "two", one.String()) // published is published
	// A neighbour on the LAN that routes our addresses to this host gets nothing but published ports.
	w.must(w.in(w.lan, func() error { return runCommand(w, "ip", "route", "add", DefaultPool, "via", w.hostAddr.String()) }))
	w.misses(w.lan, at(one, 80))
	w.misses(w.lan, at(w.vip(p, "web", "default"), 80))
	// A packet to the host's loopback that a container sends on purpose.
	w.answer(w.host, "loopback", 7000)
	w.must(w.in(a["web"].NetNS, func() error {
		for _, args := range [][]string{
			{"ip", "link", "set", "lo", "down"},
			{"ip", "rule", "add", "pref", "1", "lookup", "100"},
			{"ip", "rule", "add", "pref", "2", "lookup", "local"},
			{"ip", "rule", "del", "pref", "0"},
			{"ip", "route", "add", "127.0.0.0/8", "via", w.m.state.Projects["one"].Networks["default"].GatewayAddr().String(), "dev", "eth0", "onlink", "src", one.String(), "table", "100"},
			{"sysctl", "-qw", "net.ipv4.conf.eth0.route_localnet=1"},
		} {
			if err := runCommand(w, args[0], args[1:]...); err != nil {
				return err
			}
		}
		return nil
	}))
	w.misses(a["web"].NetNS, "127.0.0.1:7000")
}

func TestSwitchMovesAServiceWithoutAGap(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("web", []string{"default"}, "8080:80", "8080:80/udp"), svc("client", []string{"default"}))
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["web"].NetNS, "old", 80)
	q := revised(p, "web", "2")
	w.prepare(q)
	fresh, err := w.m.Attach(w.ctx(), q.Name, containerOf(q, "web"))
	w.must(err)
	w.answer(fresh.NetNS, "new", 80)
	client, vip := a["client"].NetNS, at(w.vip(p, "web", "default"), 80)

	hosts, err := os.ReadFile(a["client"].HostsFile)
	w.must(err)
	everywhere := func(who string) {
		t.Helper()
		w.reaches(client, vip, who, "")
		w.reaches(w.lan, at(w.hostAddr, 8080), who, "")
		w.reaches(w.host, "127.0.0.1:8080", who, "")
	}
	everywhere("old")
	if w.addr(idOf(p, "web"), "default") == w.addr(idOf(q, "web"), "default") {
		t.Fatal("two live containers have one address")
	}
	w.must(w.m.Activate(w.ctx(), q.Name, "web", idOf(q, "web")))
	everywhere("new")
	w.must(w.m.Detach(w.ctx(), idOf(p, "web")))
	everywhere("new")
	if now, err := os.ReadFile(a["client"].HostsFile); err != nil || string(now) != string(hosts) {
		t.Errorf("the client's hosts file changed: %v\n%s\n%s", err, hosts, now)
	}
	w.verified()

	r := revised(q, "web", "3") // and the replica's first address is free again
	w.prepare(r)
	_, err = w.m.Attach(w.ctx(), r.Name, containerOf(r, "web"))
	w.must(err)
	w.must(w.m.Detach(w.ctx(), idOf(q, "web"))) // without a Switch, the one that is left answers
	if !w.m.ActiveBackends()[idOf(r, "web")] {
		t.Errorf("%v answer, want %q", w.m.ActiveBackends(), idOf(r, "web"))
	}
	w.must(w.m.Detach(w.ctx(), idOf(r, "web")))
	w.refuses(client, vip)
	w.must(w.m.Teardown(w.ctx(), p.Name))
	w.clean()
}

func runCommand(w *world, name string, args ...string) error {
	out, err := exec.CommandContext(w.ctx(), name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// Programs that look for their peers, as those of BACnet/IP do, ask all on their network, by its address or by that of every
// network. Nothing of another network hears it.
func TestBroadcastsReachTheNetwork(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("asks", []string{"default"}), svc("peer", []string{"default"}))
	q := proj("other", svc("far", []string{"default"}))
	for _, x := range []*workload.Project{p, q} {
		w.prepare(x)
	}
	a, far := w.attach(p), w.attach(q)["far"]
	var peer, stranger, asks net.PacketConn
	for c, ns := range map[*net.PacketConn]string{&peer: a["peer"].NetNS, &stranger: far.NetNS, &asks: a["asks"].NetNS} {
		w.must(w.in(ns, func() (err error) { *c, err = net.ListenPacket("udp4", "0.0.0.0:47808"); return err }))
		defer (*c).Close()
	}
	buf := make([]byte, 64)
	for _, to := range []netip.Addr{ipam.Broadcast(w.m.state.Projects["line"].Networks["default"].Prefix), netip.MustParseAddr("255.255.255.255")} {
		_, err := asks.WriteTo([]byte("who-is"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 47808)))
		w.must(err)
		w.must(peer.SetDeadline(time.Now().Add(patience)))
		n, from, err := peer.ReadFrom(buf)
		if err != nil || string(buf[:n]) != "who-is" {
			t.Fatalf("%s: the peer hears %q, %v", to, buf[:n], err)
		}
		if host, _, _ := net.SplitHostPort(from.String()); host != w.addr(idOf(p, "asks"), "default").String() {
			t.Errorf("%s: from %s", to, from)
		}
		_, err = peer.WriteTo([]byte("i-am"), from)
		w.must(err)
		w.must(asks.SetDeadline(time.Now().Add(patience)))
		for string(buf[:n]) != "i-am" { // it hears itself, too
			if n, _, err = asks.ReadFrom(buf); err != nil {
				t.Fatalf("%s: no answer: %v", to, err)
			}
		}
	}
	w.must(stranger.SetDeadline(time.Now().Add(short)))
	if n, from, err := stranger.ReadFrom(buf); err == nil {
		t.Errorf("another network hears %q from %s", buf[:n], from)
	}
	w.verified()
}

// Of a range of host ports for one port each replica has one, in an update, too.
func TestReplicasHaveTheirPorts(t *testing.T) {
	w := newWorld(t)
	s := svc("web", []string{"default"}, "8300:80", "8301:80")
	s.Replicas, s.Ports[0].Replica, s.Ports[1].Replica = 2, 1, 2
	p := proj("line", s)
	f := &farm{world: w, p: p}
	w.prepare(p)
	f.start(p, 1, "one")
	f.start(p, 2, "two")
	f.change(p, 1)
	f.change(p, 2)
	for port, who := range map[uint16]string{8300: "one", 8301: "two"} {
		for range 5 {
			w.reachesTCP(w.lan, at(w.hostAddr, port), who)
		}
	}
	q := revised(p, "web", "2")
	w.prepare(q)
	f.start(q, 2, "new")
	f.change(q, 2)
	w.reachesTCP(w.lan, at(w.hostAddr, 8301), "new")
	w.reachesTCP(w.lan, at(w.hostAddr, 8300), "one")
	w.verified()
}

func (w *world) reachesTCP(ns, to, who string) {
	w.t.Helper()
	if got, err := w.ask(ns, "tcp4", to, patience); err != nil || !strings.HasPrefix(got, who+" ") {
		w.t.Errorf("%s: %q, %v, want %q", to, got, err, who)
	}
}

// A host name that the file gives a service is a name for others, too, unless a service or an alias has it.
func TestHostnamesAreNames(t *testing.T) {
	w := newWorld(t)
	a, b, c := svc("a", []string{"default"}), svc("b", []string{"default"}), svc("c", []string{"default"})
	a.Hostname, b.Hostname, c.Networks[0].Aliases = "press", "db", []string{"db"}
	p := proj("line", a, b, c)
	w.prepare(p)
	hosts, err := os.ReadFile(w.attach(p)["c"].HostsFile)
	w.must(err)
	for _, line := range []string{"\ta press\n", "\tb\n", "\tdb\n"} {
		if !strings.Contains(string(hosts), line) {
			t.Errorf("no line %q in\n%s", line, hosts)
		}
	}
}
