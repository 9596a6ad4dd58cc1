package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// twoServices is a prepared and attached project whose web container answers on port 80.
func twoServices(w *world) (*workload.Project, map[string]workload.Attached) {
	w.t.Helper()
	p := proj("line", svc("web", []string{"front", "back"}, "8080:80", "8080:80/udp"), svc("client", []string{"back"}))
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["web"].NetNS, "web", 80)
	return p, a
}

// serves wants web to answer wherever it should.
func serves(w *world, p *workload.Project, a map[string]workload.Attached) {
	w.t.Helper()
	w.reaches(a["client"].NetNS, at(w.vip(p, "web", "back"), 80), "web", w.addr(idOf(p, "client"), "back").String())
	w.reaches(w.lan, at(w.hostAddr, 8080), "web", w.lanAddr.String())
	w.verified()
}

func TestAddressesOutliveTheProgram(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	before, vip := w.m.Addresses(idOf(p, "web")), w.vip(p, "web", "back")
	w.reopen()
	serves(w, p, a) // traffic does not need the program, nor does its return disturb it
	w.must(w.m.Restore(w.ctx()))
	serves(w, p, a)
	w.prepare(p)
	if again := w.attach(p); again["web"] != a["web"] {
		t.Errorf("attached again: %+v, want %+v", again["web"], a["web"])
	}
	serves(w, p, a)
	if after := w.m.Addresses(idOf(p, "web")); fmt.Sprint(after) != fmt.Sprint(before) || w.vip(p, "web", "back") != vip {
		t.Errorf("addresses %v, %v, want %v, %v", after, w.vip(p, "web", "back"), before, vip)
	}
	// Detached, gone from the kernel, and back: still the same address.
	w.must(w.m.Detach(w.ctx(), idOf(p, "web")))
	w.reopen()
	w.attach(p)
	if after := w.m.Addresses(idOf(p, "web")); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("addresses after coming back %v, want %v", after, before)
	}
}

func TestRestoreMends(t *testing.T) {
	for _, tt := range []struct {
		name, drift string
		breakIt     func(w *world, p *workload.Project)
		gone        bool // the namespace: what ran in it is cut off
	}{
		{name: "flushed ruleset", drift: "is gone", breakIt: func(w *world, _ *workload.Project) { w.run("nft", "flush", "ruleset") }},
		{name: "flushed chain", drift: "other rules", breakIt: func(w *world, _ *workload.Project) { w.run("nft", "flush", "chain", "longshore", "prerouting") }},
		{name: "removed chain", drift: "other rules", breakIt: func(w *world, _ *workload.Project) { w.run("nft", "delete", "chain", "longshore", "forward") }},
		{name: "emptied map", drift: "lacks vip", breakIt: func(w *world, _ *workload.Project) { w.run("nft", "flush", "map", "longshore", "vip") }},
		{name: "foreign element", drift: "foreign publish 81/tcp", breakIt: func(w *world, _ *workload.Project) {
			w.run("nft", "add", "element", "longshore", "publish", "{ tcp . 81 : 10.210.1.1 . 81 }")
		}},
		{name: "removed bridge", drift: "bridge", breakIt: func(w *world, p *workload.Project) {
			w.run("ip", "link", "del", w.m.state.Projects[p.Name].Networks["back"].Name)
		}},
		{name: "bridge without address", drift: "lost its address", breakIt: func(w *world, p *workload.Project) {
			w.run("ip", "addr", "flush", "dev", w.m.state.Projects[p.Name].Networks["back"].Name)
		}},
		{name: "bridge down", drift: "is down", breakIt: func(w *world, p *workload.Project) {
			w.run("ip", "link", "set", w.m.state.Projects[p.Name].Networks["back"].Name, "down")
		}},
		{name: "removed link", drift: "link to network", breakIt: func(w *world, p *workload.Project) {
			w.run("ip", "link", "del", w.m.vethName(idOf(p, "web"), "back"))
		}},
		{name: "link taken out of the bridge", drift: "not in the bridge", breakIt: func(w *world, p *workload.Project) {
			w.run("ip", "link", "set", w.m.vethName(idOf(p, "web"), "front"), "nomaster")
		}},
		{name: "forwarding off", drift: "ip_forward is off", breakIt: func(w *world, _ *workload.Project) { w.run("sysctl", "-qw", "net.ipv4.ip_forward=0") }},
		{name: "changed setting", drift: "has the setting", breakIt: func(w *world, p *workload.Project) {
			w.run("sysctl", "-qw", "net.ipv4.conf."+w.m.state.Projects[p.Name].Networks["back"].Name+".send_redirects=1")
		}},
		{name: "changed address in the container", drift: "has lost its address", breakIt: func(w *world, p *workload.Project) {
			w.inside(w.m.netnsPath(idOf(p, "web")), "ip", "addr", "flush", "dev", "eth1")
		}},
		{name: "route gone in the container", drift: "has lost its route", breakIt: func(w *world, p *workload.Project) {
			w.inside(w.m.netnsPath(idOf(p, "web")), "ip", "route", "flush", "dev", "eth0")
		}},
		{name: "loopback down in the container", drift: "loopback is down", breakIt: func(w *world, p *workload.Project) {
			w.inside(w.m.netnsPath(idOf(p, "web")), "ip", "link", "set", "lo", "down")
		}},
		{name: "removed files", drift: "hosts is gone", breakIt: func(w *world, p *workload.Project) {
			w.must(os.Remove(filepath.Join(w.m.filesDir(idOf(p, "web")), ownFiles, "hosts")))
		}},
		{name: "removed namespace", drift: "namespace is gone", gone: true, breakIt: func(w *world, p *workload.Project) {
			w.must(unpin(w.m.netnsPath(idOf(p, "web"))))
			w.run("ip", "link", "del", w.m.vethName(idOf(p, "web"), "front"))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			p, a := twoServices(w)
			serves(w, p, a)
			tt.breakIt(w, p)
			err := w.m.Verify(w.ctx())
			var drift *Drift
			if tt.drift != "" && (!errors.As(err, &drift) || !strings.Contains(err.Error(), tt.drift) || !errors.Is(err, fault.ErrTemporary)) {
				t.Errorf("Verify = %v, want a drift with %q", err, tt.drift)
			}
			w.must(w.m.Restore(w.ctx()))
			if tt.gone {
				w.answer(a["web"].NetNS, "web", 80)
			}
			serves(w, p, a)
		})
	}
}

func TestAnotherToolsFlushIsMendedByAnyChange(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	w.run("nft", "flush", "ruleset")
	more := proj("more", svc("x", []string{"default"}))
	w.prepare(more)
	serves(w, p, a)
}

func TestReboot(t *testing.T) {
	w := newWorld(t)
	p, _ := twoServices(w)
	before := w.m.Addresses(idOf(p, "web"))
	w.must(w.m.Close())
	// The kernel forgets everything, and so does the run directory.
	w.unmount()
	w.must(os.RemoveAll(w.o.RunDir))
	w.removeHost()
	w.makeHost()
	w.open()

	var drift *Drift
	if err := w.m.Verify(w.ctx()); !errors.As(err, &drift) || len(drift.Things) < 5 {
		t.Errorf("Verify after a reboot = %v, want everything to be missing", err)
	}
	w.must(w.m.Restore(w.ctx()))
	w.verified()
	a := w.attach(p)
	if after := w.m.Addresses(idOf(p, "web")); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("addresses %v, want %v", after, before)
	}
	w.answer(a["web"].NetNS, "web", 80)
	serves(w, p, a)
}

func TestAttachAfterRebootNeedsNoRestore(t *testing.T) {
	w := newWorld(t)
	p, _ := twoServices(w)
	w.must(w.m.Close())
	w.unmount()
	w.must(os.RemoveAll(w.o.RunDir))
	w.removeHost()
	w.makeHost()
	w.open()
	a := w.attach(p)
	w.answer(a["web"].NetNS, "web", 80)
	serves(w, p, a)
}

func TestOrphansAreSweptAndOthersAreNot(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	w.must(w.m.Close())
	// A second container that the state forgets, as after a disk was restored from a backup.
	path := savedAt(w.o)
	saved, err := os.ReadFile(path)
	w.must(err)
	w.open()
	more := proj("more", svc("x", []string{"default"}))
	w.prepare(more)
	w.attach(more)
	w.must(w.m.Close())
	w.must(os.WriteFile(path, saved, 0o600))

	w.run("ip", "link", "add", "br-theirs", "type", "bridge")
	w.run("ip", "link", "add", namePrefix(DefaultTable)+"b12345678", "type", "bridge") // our pattern by chance, their alias
	w.run("ip", "link", "set", namePrefix(DefaultTable)+"b12345678", "alias", "theirs")
	w.run("nft", "add", "table", "ip", "theirs")
	w.open()
	w.must(w.m.Restore(w.ctx()))
	links := w.run("ip", "-br", "link")
	for _, name := range []string{"br-theirs", namePrefix(DefaultTable) + "b12345678"} {
		if !strings.Contains(links, name) {
			t.Errorf("%s is gone", name)
		}
	}
	if !strings.Contains(w.run("nft", "list", "tables"), "theirs") {
		t.Error("table theirs is gone")
	}
	for _, name := range []string{hashName(w.m.host.prefix, "b", "more/default", 0), w.m.vethName(idOf(more, "x"), "default")} {
		if strings.Contains(links, name) {
			t.Errorf("%s was not swept", name)
		}
	}
	if _, err := os.Stat(w.m.netnsPath(idOf(more, "x"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespace was not swept: %v", err)
	}
	serves(w, p, a)
}

func TestDamagedState(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	path, addresses := savedAt(w.o), w.m.Addresses(idOf(p, "web"))
	for _, tt := range []struct {
		name string
		data func(whole []byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"truncated", func(b []byte) []byte { return b[:len(b)/2] }},
		{"flipped bit", func(b []byte) []byte { b = slices.Clone(b); b[len(b)/2] ^= 4; return b }},
		{"another address", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`.254"`), []byte(`.250"`)) }},
		{"trailing data", func(b []byte) []byte { return append(slices.Clone(b), "{}"...) }},
		{"not JSON", func([]byte) []byte { return []byte("\xff\x00") }},
		{"too large", func(b []byte) []byte { return append(slices.Clone(b), make([]byte, ipam.MaxState)...) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &world{t: t, m: w.m, o: w.o, host: w.host, lan: w.lan, hostAddr: w.hostAddr, lanAddr: w.lanAddr}
			whole, err := os.ReadFile(path)
			w.must(err)
			damaged := tt.data(whole)
			w.must(os.WriteFile(path, damaged, 0o600))
			m, err := Open(w.o)
			w.must(err)
			w.m = m
			defer func() { w.m.Close() }()
			if notes := strings.Join(m.Notes(), "; "); !strings.Contains(notes, "damaged") {
				t.Errorf("notes %q, want the damage told", notes)
			}
			stays(w, p, a, addresses)
		})
	}
}

// A new agent.db takes the place of a damaged one: its store has no state, and the containers run on.
func TestLostState(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	addresses := w.m.Addresses(idOf(p, "web"))
	for range 2 { // the second time, the state in the store is the one that was taken from the copy
		w.must(w.m.Close())
		w.must(os.Remove(savedAt(w.o)))
		w.open()
		stays(w, p, a, addresses)
	}
	w.must(w.m.Teardown(w.ctx(), p.Name))
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	w.clean()
}

// stays wants everything of the containers that run to be as it was, although the manager's store lost its state: they are not
// attached again.
func stays(w *world, p *workload.Project, a map[string]workload.Attached, addresses map[string]netip.Addr) {
	w.t.Helper()
	w.must(w.m.Restore(w.ctx()))
	serves(w, p, a)
	w.prepare(p)
	serves(w, p, a)
	if got := w.m.Addresses(idOf(p, "web")); !maps.Equal(got, addresses) {
		w.t.Errorf("addresses %v, were %v", got, addresses)
	}
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	serves(w, p, a)
}

// The copy is made whenever it is not what the store has, also when nothing changes: after a reboot, and after a program that
// made none.
func TestTheCopyIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	copied := filepath.Join(w.o.RunDir, copyFile)
	whole, err := os.ReadFile(copied)
	w.must(err)
	w.prepare(proj("more", svc("x", []string{"default"})))
	for name, data := range map[string][]byte{"missing": nil, "older": whole, "damaged": whole[:len(whole)/2]} {
		w.must(w.m.Close())
		w.must(os.Remove(copied))
		if data != nil {
			w.must(os.WriteFile(copied, data, 0o600))
		}
		w.open()
		w.must(w.m.Restore(w.ctx()))
		serves(w, p, a)
		if got := w.m.Projects(); len(got) != 2 {
			t.Errorf("%s copy: projects %q, want those of the store", name, got)
		}
		saved, err := os.ReadFile(savedAt(w.o))
		w.must(err)
		if got, err := os.ReadFile(copied); !bytes.Equal(got, saved) {
			t.Errorf("%s copy: it is not what the store has: %v", name, err)
		}
	}
}

// A copy that cannot be written any more must not stay: containers that it does not know would lose their networks by it.
func TestAnOldCopyDoesNotStay(t *testing.T) {
	w := newWorld(t)
	copied := filepath.Join(w.o.RunDir, copyFile)
	p, a := twoServices(w)
	w.must(os.MkdirAll(filepath.Join(copied+".tmp", "full"), 0o700)) // no write succeeds
	w.prepare(proj("more", svc("x", []string{"default"})))
	if _, err := os.Stat(copied); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy without the new project: %v, want none", err)
	}
	serves(w, p, a)
	w.must(os.RemoveAll(copied + ".tmp"))
	w.prepare(p)
	if _, err := os.Stat(copied); err != nil {
		t.Errorf("the copy was not written again: %v", err)
	}
}

// Without the state and its copy, a container has its networks back when it is attached again.
func TestStateAndCopyAreLost(t *testing.T) {
	for name, lose := range map[string]func(copied string) error{
		"missing": os.Remove,
		"damaged": func(copied string) error { return os.Truncate(copied, 100) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p, a := twoServices(w)
			addresses := w.m.Addresses(idOf(p, "web"))
			w.must(w.m.Close())
			w.must(os.Remove(savedAt(w.o)))
			w.must(lose(filepath.Join(w.o.RunDir, copyFile)))
			w.open()
			w.must(w.m.Restore(w.ctx())) // must not sweep what may belong to running containers
			w.reaches(w.lan, at(w.hostAddr, 8080), "web", "")
			w.prepare(p)
			again := w.attach(p)
			serves(w, p, again)
			if d := cmp.Diff(a, again); d != "" {
				t.Errorf("attached anew (-before +after):\n%s", d)
			}
			if got := w.m.Addresses(idOf(p, "web")); !maps.Equal(got, addresses) {
				t.Errorf("addresses %v, were %v", got, addresses)
			}
		})
	}
}

// TestInterrupted stops an attach and a detach after each kernel object, as SIGKILL would, by taking away what came later.
func TestInterrupted(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	id := idOf(p, "web")
	ns := w.m.netnsPath(id)
	for _, tt := range []struct {
		name  string
		undo  func()
		fresh bool
	}{
		{"namespace file not mounted", func() {
			w.must(unpin(ns))
			w.must(os.WriteFile(ns, nil, 0o444))
		}, true},
		{"link without bridge", func() { w.run("ip", "link", "set", w.m.vethName(id, "front"), "nomaster") }, false},
		{"link without alias", func() { w.run("ip", "link", "set", w.m.vethName(id, "front"), "alias", "") }, false},
		{"link to nowhere", func() {
			w.run("ip", "link", "del", w.m.vethName(id, "front"))
			w.run("ip", "link", "add", w.m.vethName(id, "front"), "type", "veth", "peer", "name", "lost")
		}, false},
		{"no address", func() { w.inside(ns, "ip", "addr", "flush", "dev", "eth0") }, false},
		{"no route", func() { w.inside(ns, "ip", "route", "flush", "dev", "eth1") }, false},
		{"lo down", func() { w.inside(ns, "ip", "link", "set", "lo", "down") }, false},
		{"temporary files", func() {
			w.must(os.WriteFile(filepath.Join(w.m.filesDir(id), "hosts.tmp"), []byte("x"), 0o644))
			w.must(os.WriteFile(savedAt(w.o)+".tmp", []byte("x"), 0o644))
		}, false},
		{"rules without elements", func() { w.run("nft", "delete", "table", "ip", "longshore") }, false},
		{"detach after the table", func() { w.run("nft", "flush", "map", "ip", "longshore", "publish") }, false},
		{"detach after a link", func() { w.run("ip", "link", "del", w.m.vethName(id, "back")) }, false},
	} {
		tt.undo()
		w.reopen()
		again := w.attach(p)
		if again["web"] != a["web"] {
			t.Errorf("%s: attached as %+v, want %+v", tt.name, again["web"], a["web"])
		}
		if tt.fresh {
			w.answer(ns, "web", 80)
		}
		w.must(w.m.Restore(w.ctx()))
		serves(w, p, a)
		if t.Failed() {
			t.Fatal(tt.name)
		}
	}
	// A detach that was cut short after everything but the state's record.
	w.must(unpin(ns))
	for _, n := range []string{"front", "back"} {
		w.run("ip", "link", "del", w.m.vethName(id, n))
	}
	w.must(w.m.Detach(w.ctx(), id))
	w.must(w.m.Detach(w.ctx(), id))
	w.verified()
	w.must(w.m.Teardown(w.ctx(), p.Name))
	w.must(w.m.Teardown(w.ctx(), p.Name))
	w.clean()
}

func (w *world) inside(ns, name string, args ...string) {
	w.t.Helper()
	w.must(w.in(ns, func() error { return runCommand(w, name, args...) }))
}

func TestStaleNamespaceOfADeadLink(t *testing.T) {
	// eth0 of an earlier, interrupted attach, whose other end went elsewhere.
	w := newWorld(t)
	p := proj("line", svc("web", []string{"default"}), svc("client", []string{"default"}))
	w.prepare(p)
	w.must(pin(w.m.netnsPath(idOf(p, "web"))))
	w.inside(w.m.netnsPath(idOf(p, "web")), "ip", "link", "add", "eth0", "type", "bridge")
	a := w.attach(p)
	w.answer(a["web"].NetNS, "web", 80)
	w.reaches(a["client"].NetNS, at(w.vip(p, "web", "default"), 80), "web", "")
}

func TestLinkEndsNeverShareAnIndex(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("web", []string{"default"}))
	w.prepare(p)
	bridge, err := linkByName(w.m.host.links, w.m.state.Projects["line"].Networks["default"].Name)
	w.must(err)
	ns := w.m.netnsPath(idOf(p, "web"))
	w.must(pin(ns))
	for range bridge.Attrs().Index - 1 { // the container's next index is then the host's next one
		w.inside(ns, "ip", "link", "add", "x", "type", "bridge")
		w.inside(ns, "ip", "link", "del", "x")
	}
	a := w.attach(p)
	l, err := linkByName(w.m.host.links, w.m.vethName(idOf(p, "web"), "default"))
	w.must(err)
	if l.Attrs().Index == l.Attrs().ParentIndex || l.Attrs().Index != bridge.Attrs().Index+1 {
		t.Errorf("index %d, of the other end %d, of the bridge %d", l.Attrs().Index, l.Attrs().ParentIndex, bridge.Attrs().Index)
	}
	w.answer(a["web"].NetNS, "web", 80)
	w.reaches(w.host, at(w.vip(p, "web", "default"), 80), "web", "")
}

func TestDatagramsFollowTheService(t *testing.T) {
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprintf("the table is read: %t", reads), func(t *testing.T) { datagramsFollow(t, reads) })
	}
}

func datagramsFollow(t *testing.T, reads bool) {
	w := newWorld(t)
	w.m.host.reads = reads
	p := proj("line", svc("web", []string{"default"}, "5353:53/udp"), svc("client", []string{"default"}))
	w.prepare(p)
	client, err := w.m.Attach(w.ctx(), p.Name, containerOf(p, "client"))
	w.must(err)
	dial := func(ns, to string) net.Conn {
		var c net.Conn
		w.must(w.in(ns, func() (err error) { c, err = net.Dial("udp4", to); return err }))
		t.Cleanup(func() { c.Close() })
		return c
	}
	// Both senders keep their ports and never stop: to the host's port before anybody has it, and to the service.
	far, near := dial(w.lan, at(w.hostAddr, 5353)), dial(client.NetNS, at(w.vip(p, "web", "default"), 53))
	hears := func(c net.Conn, who string) {
		t.Helper()
		deadline := time.Now().Add(patience)
		buf := make([]byte, 64)
		for time.Now().Before(deadline) {
			_, _ = c.Write([]byte("?"))
			_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if n, err := c.Read(buf); err == nil && strings.HasPrefix(string(buf[:n]), who+" ") {
				return
			}
		}
		t.Errorf("a sender with a fixed port never heard %s", who)
	}
	for range 3 {
		_, _ = far.Write([]byte("?"))
	}
	old, err := w.m.Attach(w.ctx(), p.Name, containerOf(p, "web"))
	w.must(err)
	w.answer(old.NetNS, "old", 53)
	hears(far, "old")
	hears(near, "old")
	q := revised(p, "web", "2")
	w.prepare(q)
	fresh, err := w.m.Attach(w.ctx(), q.Name, containerOf(q, "web"))
	w.must(err)
	w.answer(fresh.NetNS, "new", 53)
	w.must(w.m.Activate(w.ctx(), q.Name, "web", idOf(q, "web")))
	hears(far, "new")
	hears(near, "new")
	w.must(w.m.Detach(w.ctx(), idOf(q, "web")))
	hears(far, "old")
	hears(near, "old")
	w.looked(reads)
}

// What the host tracks of other containers, of other ports and of other protocols stays when a container goes.
func TestOnlyConnectionsOfARemovedContainerAreForgotten(t *testing.T) {
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprintf("the table is read: %t", reads), func(t *testing.T) {
			w := newWorld(t)
			w.m.host.reads = reads
			host, _ := w.lined()
			p := proj("line", svc("web", []string{"default"}, "8080:80", "8080:80/udp", "8180:81"), svc("back", []string{"default"}, "9090:80", "9090:80/udp", "9190:81"))
			p.Networks[0].IPv6 = true
			w.prepare(p)
			a := w.attach(p)
			for _, s := range []string{"web", "back"} {
				w.answer(a[s].NetNS, s, 80)
				w.answer6(a[s].NetNS, s, "81")
			}
			w.reaches(w.lan, at(w.hostAddr, 8080), "web", "")
			w.reaches(w.lan, at(w.hostAddr, 9090), "back", "")
			w.reaches6(w.lan, at(host, 8180), "web", "")
			w.reaches6(w.lan, at(host, 9190), "back", "")
			w.misses(w.lan, at(w.hostAddr, 7070))
			before := w.tracked()
			gone := 0
			for k := range before {
				if k.port == 8080 || k.port == 8180 {
					gone++
				}
			}
			if gone != 3 || len(before) < 7 {
				t.Fatalf("%d tracked, %d of them of the container, want 3 of at least 7: %v", len(before), gone, before)
			}
			w.must(w.m.Detach(w.ctx(), idOf(p, "web")))
			after := w.tracked()
			for k := range before {
				if of := k.port == 8080 || k.port == 8180; after[k] == of {
					t.Errorf("%v: tracked %t after the detach of the container", k, after[k])
				}
			}
			w.looked(reads)
		})
	}
}

// looked wants that the kernel looked for entries unless the table had to be read. One before Linux 6.8 cannot.
func (w *world) looked(reads bool) {
	w.t.Helper()
	var u unix.Utsname
	w.must(unix.Uname(&u))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	w.must(err)
	if want := reads || major < 6 || major == 6 && minor < 8; w.m.host.reads != want {
		w.t.Errorf("the table is read: %t, want %t", !want, want)
	}
}

// trackedKey tells the host's tracked connections apart.
type trackedKey struct {
	protocol uint8
	to       string
	port     uint16
}

// tracked are the connections from the neighbour that the host tracks.
func (w *world) tracked() map[trackedKey]bool {
	w.t.Helper()
	out := map[trackedKey]bool{}
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := w.m.host.links.ConntrackTableList(netlink.ConntrackTable, f)
		w.must(err)
		for _, c := range flows {
			if c.Forward.Protocol == unix.IPPROTO_TCP || c.Forward.Protocol == unix.IPPROTO_UDP {
				out[trackedKey{c.Forward.Protocol, c.Forward.DstIP.String(), c.Forward.DstPort}] = true
			}
		}
	}
	return out
}

// A detached container is cut off at once, also when a process of it is still there. It can be attached again before the kernel has
// deleted its old link, and Close waits for that.
func TestDetachedContainersAreCutOffAtOnce(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	w.answer(a["client"].NetNS, "client", 80)
	id, client := idOf(p, "web"), at(w.addr(idOf(p, "client"), "back"), 80)
	for range 3 {
		held, err := os.Open(a["web"].NetNS)
		w.must(err)
		defer held.Close()
		old := fmt.Sprintf("/proc/self/fd/%d", held.Fd())
		w.reaches(old, client, "client", "")
		w.must(w.m.Detach(w.ctx(), id))
		if l, err := linkByName(w.m.host.links, w.m.vethName(id, "back")); l != nil || err != nil {
			t.Errorf("the link after the detach: %v, %v", l, err)
		}
		w.misses(old, client)
		a = w.attach(p)
		w.answer(a["web"].NetNS, "web", 80)
		serves(w, p, a)
	}
	w.must(w.m.Detach(w.ctx(), id))
	w.reopen()
	list, err := completeList(w.m.host.links.LinkList)
	w.must(err)
	for _, l := range list {
		if name := l.Attrs().Name; strings.HasPrefix(name, w.m.host.prefix+"x") {
			t.Errorf("interface %s is left over", name)
		}
	}
}

func TestFiftyAttachmentsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	var services []workload.Service
	for i := range 25 {
		services = append(services, svc(fmt.Sprintf("s%02d", i), []string{"default"}, fmt.Sprintf("%d:80", 9000+i)))
	}
	p, q := proj("one", services...), proj("two")
	for i := range services {
		s := services[i]
		s.Ports = nil
		q.Services = append(q.Services, s)
	}
	q.Networks = p.Networks
	w.prepare(p)
	w.prepare(q)
	a := w.attach(p)
	w.attach(q)
	w.answer(a["s24"].NetNS, "s24", 80)
	w.reaches(a["s00"].NetNS, at(w.vip(p, "s24", "default"), 80), "s24", "")
	if got, err := w.ask(w.lan, "tcp4", at(w.hostAddr, 9024), patience); err != nil || got != "s24 "+w.lanAddr.String() {
		t.Errorf("published port: %q, %v", got, err)
	}
	w.verified()
	fds := countFiles(w)
	for range 2 {
		w.attach(p)
		w.verified()
	}
	if now := countFiles(w); now > fds {
		t.Errorf("%d open files after attaching again, %d before", now, fds)
	}
	w.must(w.m.Teardown(w.ctx(), "one"))
	for _, c := range q.Containers() {
		w.must(w.m.Detach(w.ctx(), c.ID))
	}
	w.must(w.m.Teardown(w.ctx(), "two"))
	if got := w.m.Projects(); len(got) > 0 {
		t.Errorf("projects %q, want none", got)
	}
	w.clean()
}

func countFiles(w *world) int {
	w.t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	w.must(err)
	return len(entries)
}

func TestManagersDoNotDisturbEachOther(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	other := *w
	other.o = Options{
		Store: testenv.NetworkState(savedAt(w.o) + "2"), DataDir: w.o.DataDir + "2", RunDir: w.o.RunDir + "2", NetNS: w.host, Table: "longshore_demo",
		Pool: netip.MustParsePrefix("10.210.0.0/16"), // even the same pool: live routes are avoided
	}
	other.open()
	t.Cleanup(func() {
		other.unmount()
		other.m.Close()
	})
	q := proj("line", svc("web", []string{"front", "back"}, "8081:80"), svc("client", []string{"back"}))
	other.prepare(q)
	b := other.attach(q)
	other.answer(b["web"].NetNS, "other", 80)
	w.must(w.m.Restore(w.ctx()))
	other.must(other.m.Restore(w.ctx()))
	serves(w, p, a)
	other.reaches(b["client"].NetNS, at(other.vip(q, "web", "back"), 80), "other", "")
	if got, err := w.ask(w.lan, "tcp4", at(w.hostAddr, 8081), patience); err != nil || !strings.HasPrefix(got, "other ") {
		t.Errorf("the other's port: %q, %v", got, err)
	}
	other.must(other.m.Teardown(w.ctx(), "line"))
	other.clean()
	serves(w, p, a)
}

func TestPoolAvoidsWhatTheHostUses(t *testing.T) {
	w := newWorld(t)
	w.run("ip", "route", "add", "10.210.0.0/17", "via", w.lanAddr.String())
	w.must(w.m.Close())
	w.o.Pool = netip.MustParsePrefix("10.210.0.0/16")
	w.open()
	p := proj("line")
	for i := range 20 {
		p.Networks = append(p.Networks, workload.Network{Name: fmt.Sprintf("n%d", i)})
	}
	w.prepare(p)
	for n, b := range w.m.state.Projects["line"].Networks {
		if b.Prefix.Overlaps(netip.MustParsePrefix("10.210.0.0/17")) {
			t.Errorf("network %s got %s", n, b.Prefix)
		}
	}
	w.must(w.m.Teardown(w.ctx(), "line"))
	w.run("ip", "route", "add", "10.0.0.0/8", "via", w.lanAddr.String())
	err := w.m.Prepare(w.ctx(), p)
	if !errors.Is(err, fault.ErrConflict) || !errors.Is(err, ipam.ErrNoSubnet) || fault.Hint(err) == "" {
		t.Errorf("Prepare = %v, want ErrConflict with a hint", err)
	}
	if got := w.m.Projects(); len(got) > 0 {
		t.Errorf("projects after a refusal: %q", got)
	}
	w.clean()
}

func TestCancelledCallsChangeNothing(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	_, attachErr := w.m.Attach(ctx, p.Name, containerOf(p, "web"))
	for name, err := range map[string]error{
		"Prepare": w.m.Prepare(ctx, proj("x")), "Attach": attachErr, "Detach": w.m.Detach(ctx, idOf(p, "web")),
		"Teardown": w.m.Teardown(ctx, p.Name), "Switch": w.m.Activate(ctx, p.Name, "web", idOf(p, "web")),
		"Verify": w.m.Verify(ctx), "Restore": w.m.Restore(ctx),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want context.Canceled", name, err)
		}
	}
	serves(w, p, a)
}

func TestClosedManagerRefuses(t *testing.T) {
	w := newWorld(t)
	p, _ := twoServices(w)
	w.must(w.m.Close())
	w.must(w.m.Close())
	for name, err := range map[string]error{
		"Prepare": w.m.Prepare(w.ctx(), p), "Verify": w.m.Verify(w.ctx()), "Restore": w.m.Restore(w.ctx()), "Teardown": w.m.Teardown(w.ctx(), p.Name),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s = %v, want closed", name, err)
		}
	}
	w.open()
}

func TestUnreadableNamespacePath(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if _, err := Open(inDir(dir, dir, filepath.Join(dir, "none"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open = %v, want not exist", err)
	}
}
