package network

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// silence is how long nothing is told before a test takes it that nothing will be: the kernel tells at once, and the watcher
// [eventsQuiet] later.
const silence = 2 * time.Second

// An error of the kernel, or an empty message, does not end what listens: it would be deaf until the next start.
func TestWatcherListensOn(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	w := &watcher{heard: make(chan struct{}, 1)}
	f := os.NewFile(uintptr(fds[0]), "netlink")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.read(f, false)
	}()
	for _, message := range [][]byte{nil, make([]byte, unix.SizeofNlMsghdr)} { // the second is of no known length
		if err := unix.Send(fds[1], message, 0); err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.heard:
		case <-ended:
			t.Fatal("it listens no more")
		case <-time.After(patience):
			t.Fatal("nothing was heard")
		}
	}
	f.Close()
	<-ended
}

// An agent that watches repairs at once what somebody broke, and what it does itself does not keep it busy.
func TestBrokenThingsAreToldAndMended(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := w.m.Watch(ctx)
	w.must(err)
	bridge := w.m.state.Projects["line"].Networks["back"].Name
	for _, tt := range []struct {
		name   string
		breaks []string
	}{
		{"flushed ruleset", []string{"nft", "flush", "ruleset"}},
		{"deleted element", []string{"nft", "flush", "map", "longshore", "publish"}},
		{"removed bridge", []string{"ip", "link", "del", bridge}},
		{"removed link", []string{"ip", "link", "del", w.m.vethName(idOf(p, "web"), "back")}},
		{"bridge set down", []string{"ip", "link", "set", bridge, "down"}},
		{"removed address", []string{"ip", "addr", "flush", "dev", bridge}},
		{"removed route", []string{"ip", "route", "flush", "dev", bridge}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.run(tt.breaks[0], tt.breaks[1:]...)
			begin := time.Now()
			for {
				select {
				case <-events:
				case <-time.After(patience):
					t.Fatal("nothing was told")
				}
				var drift *Drift
				if err := w.m.Verify(w.ctx()); errors.As(err, &drift) {
					break // else it was an echo of the repair before
				}
			}
			w.must(w.m.Restore(w.ctx()))
			t.Logf("told and repaired after %v", time.Since(begin).Round(time.Millisecond))
			serves(w, p, a)
		})
	}
	// settled waits until nothing has been told for a while. What is told may be an echo of a change of our own, so a word too
	// many is none: but nothing may have drifted, and they end.
	settled := func() {
		t.Helper()
		for end := time.Now().Add(patience); time.Now().Before(end); {
			select {
			case <-events:
				if err := w.m.Verify(w.ctx()); err != nil {
					t.Errorf("our own changes, or what is nobody's business: %v", err)
				}
			case <-time.After(silence):
				return
			}
		}
		t.Errorf("told without an end, for %v", patience)
	}
	settled()
	q := revised(p, "web", "2")
	w.prepare(q)
	_, err = w.m.Attach(w.ctx(), "line", containerOf(q, "web"))
	w.must(err)
	w.must(w.m.Activate(w.ctx(), "line", "web", idOf(q, "web")))
	w.run("ip", "link", "add", "br-theirs", "type", "bridge")
	w.run("ip", "link", "del", "br-theirs")
	w.run("nft", "add table ip theirs; add set ip theirs x { type ipv4_addr; }; add element ip theirs x { 192.0.2.1 }")
	settled()
	w.run("nft", "add chain ip theirs jumps; add rule ip theirs jumps accept; flush chain ip theirs jumps; delete chain ip theirs jumps")
	select {
	case <-events:
		t.Error("a chain without a hook was told: no packet of ours passes it")
	case <-time.After(silence):
	}
	w.run("nft", "add chain ip theirs fw { type filter hook forward priority 0; policy drop; }")
	select {
	case <-events:
	case <-time.After(patience):
		t.Error("another firewall was not told")
	}
	cancel()
	for range events { // until it is closed
	}
	again, err := w.m.Watch(t.Context())
	w.must(err)
	w.must(w.m.Close())
	for range again {
	}
	w.open()
}

func FuzzNotifications(f *testing.F) {
	name := append([]byte{14, 0, byte(unix.IFLA_IFNAME), 0}, "ls1234b001\x00\x00\x00"...)
	message := func(kind uint16, body []byte) []byte {
		b := make([]byte, unix.SizeofNlMsghdr)
		binary.NativeEndian.PutUint32(b, uint32(len(b)+len(body)))
		binary.NativeEndian.PutUint16(b[4:], kind)
		return append(b, body...)
	}
	f.Add(true, message(nfNewGen, []byte{0, 0, 0, 0, 8, 0, nfGenPID, 0, 0, 0, 0, 1}))
	f.Add(true, message(nfNewChain, []byte{0, 0, 0, 0, 14, 0, nfTable, 0, 'l', 'o', 'n', 'g', 's', 'h', 'o', 'r', 'e', 0}))
	f.Add(false, message(unix.RTM_DELLINK, append(make([]byte, unix.SizeofIfInfomsg), name...)))
	f.Add(false, message(unix.RTM_NEWLINK, append(make([]byte, unix.SizeofIfInfomsg), name...)))
	f.Add(false, message(unix.RTM_DELADDR, append(make([]byte, unix.SizeofIfAddrmsg), name...)))
	f.Add(false, []byte{1, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, rules bool, data []byte) {
		w := &watcher{table: "longshore", prefix: "ls1234"}
		w.relevant(rules, data)
		w.relevant(rules, data)
	})
}

func TestFirewallsThatLetUsPass(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		name, rules string
		blocks      bool
	}{
		{"nothing allowed", "", true},
		{"others allowed", `iifname "docker0" accept; ip saddr 172.17.0.0/16 accept`, true},
		{"established only", "ct state established accept", true},
		{"our interfaces", `iifname "` + w.m.host.prefix + `*" accept`, false},
		{"our addresses", "ip saddr 10.210.0.0/16 accept", false},
		{"everything", "counter accept", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.must(w.in(w.host, func() error {
				c := exec.CommandContext(w.ctx(), "nft", "-f", "-")
				c.Stdin = strings.NewReader("add table ip filter\ndelete table ip filter\ntable ip filter {\nchain FORWARD { type filter hook forward priority 0; policy drop; " + tt.rules + "\n}\n}\n")
				return c.Run()
			}))
			who, err := w.m.blockers()
			w.must(err)
			if len(who) > 0 != tt.blocks {
				t.Errorf("blockers: %v, want %v", who, tt.blocks)
			}
		})
	}
}
