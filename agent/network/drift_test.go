package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

// A firewall's reload flushes all tables. A call that changes nothing must not believe its memory.
func TestUnchangedAttachMendsAFlushedRuleset(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	w.run("nft", "flush", "ruleset")
	w.attach(p)
	serves(w, p, a)
}

// A host that roams gets other name servers; containers that run see them through the file that they have mounted.
func TestRestoreRefreshesNameServers(t *testing.T) {
	w := newWorld(t)
	hosts := filepath.Join(t.TempDir(), "resolv.conf")
	w.must(os.WriteFile(hosts, []byte("nameserver 192.0.2.1\n"), 0o600))
	w.m.names = []string{hosts}
	_, a := twoServices(w)
	w.verified()
	before, err := os.Stat(a["web"].ResolvConf)
	w.must(err)
	w.must(os.WriteFile(hosts, []byte("nameserver 192.0.2.99\n"), 0o600))
	var drift *Drift
	if err := w.m.Verify(w.ctx()); !errors.As(err, &drift) || !strings.Contains(err.Error(), "resolv.conf is out of date") {
		t.Errorf("Verify = %v, want a drift about resolv.conf", err)
	}
	w.must(w.m.Restore(w.ctx()))
	w.verified()
	after, err := os.Stat(a["web"].ResolvConf)
	w.must(err)
	if data, err := os.ReadFile(a["web"].ResolvConf); err != nil || string(data) != "nameserver 192.0.2.99\n" || !os.SameFile(before, after) {
		t.Errorf("resolv.conf holds %q, %v, same file %v", data, err, os.SameFile(before, after))
	}
}

// The disk is full and the program starts again: nothing changed, so nothing may need to be written.
func TestUnchangedPrepareAfterARestartWritesNothing(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	w.reopen()
	w.must(os.MkdirAll(filepath.Join(savedAt(w.o)+".tmp", "full"), 0o700)) // a directory in the place of the temporary file: no write succeeds
	w.prepare(p)
	w.attach(p)
	serves(w, p, a)
	more := proj("more", svc("x", []string{"default"}))
	if err := w.m.Prepare(w.ctx(), more); err == nil {
		t.Error("a new project was not saved, and nobody said so")
	}
	if got := w.m.Projects(); len(got) != 1 {
		t.Errorf("projects %q, want the one that is saved", got)
	}
	w.must(os.RemoveAll(savedAt(w.o) + ".tmp"))
	w.prepare(more)
}

// What could not be looked at once may have been well: it is a thing to repair, but not one that was repaired.
func TestOnlyWhatWasSeenIsToldAsRepaired(t *testing.T) {
	before := &Drift{Things: []string{"bridge is gone", "rules cannot be read: busy", "link is down"}, unreadable: []string{"rules cannot be read: busy"}}
	if got := before.without(&Drift{}); !slices.Equal(got, []string{"bridge is gone", "link is down"}) {
		t.Errorf("repaired %q", got)
	}
	if got := before.without(&Drift{Things: []string{"link is down"}}); !slices.Equal(got, []string{"bridge is gone"}) {
		t.Errorf("repaired beside an error %q", got)
	}

	w := newWorld(t)
	twoServices(w)
	closed, err := os.Open(w.host)
	w.must(err)
	w.must(closed.Close())
	w.m.tables[ipam.V6].NS = closed
	w.m.tables[ipam.V6].Close()
	d, err := w.m.drift(w.ctx())
	w.must(err)
	if len(d.unreadable) != 1 || !slices.Equal(d.unreadable, d.Things) {
		t.Errorf("drift %q, of which %q could not be looked at, want the same one", d.Things, d.unreadable)
	}
}

// Who answers follows the rules, also where the host cannot be told to forward.
func TestRestoreFollowsRulesThatStand(t *testing.T) {
	w := newWorld(t)
	p, _ := twoServices(w)
	w.reopen()
	ns := w.m.host.ns
	closed, err := os.Open(w.host)
	w.must(err)
	w.must(closed.Close())
	w.m.host.ns = closed
	err = w.m.Restore(w.ctx())
	w.m.host.ns = ns
	if err == nil {
		t.Error("Restore has no error")
	}
	if id := idOf(p, "web"); !w.m.ActiveBackends()[id] {
		t.Errorf("%v answer, want also %q", w.m.ActiveBackends(), id)
	}
}

// Another interface has a route to a bridge's subnet, as a VPN sets it, when the bridge's own is lost: both are there after Restore.
func TestLostRouteBesideAnothers(t *testing.T) {
	w := newWorld(t)
	w.lined()
	p := proj("line", svc("web", []string{"default"}))
	p.Networks[0].IPv6 = true
	w.prepare(p)
	b := w.m.state.Projects["line"].Networks["default"]
	for f, family := range []string{ipam.V4: "-4", ipam.V6: "-6"} {
		subnet, metric := b.Family(ipam.Family(f)).Prefix.String(), fmt.Sprint(connectedMetric[f])
		w.run("ip", family, "route", "append", subnet, "dev", "uplink", "metric", metric, "proto", "static")
		w.run("ip", family, "route", "del", subnet, "dev", b.Name)
		w.drifts("has lost its route")
		w.must(w.m.Restore(w.ctx()))
		w.verified()
		w.must(w.m.Restore(w.ctx()))
		list := w.run("ip", family, "route", "show", subnet)
		if strings.Count(list, "dev uplink") != 1 || strings.Count(list, "dev "+b.Name) != 1 {
			t.Errorf("routes to %s, want one by each interface:\n%s", subnet, list)
		}
	}
}
