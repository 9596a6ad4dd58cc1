package network

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// scaled returns p with so many replicas of a service.
func scaled(p *workload.Project, service string, n int) *workload.Project {
	q := *p
	q.Services = append([]workload.Service(nil), p.Services...)
	for i := range q.Services {
		if q.Services[i].Name == service {
			q.Services[i].Replicas = n
		}
	}
	return &q
}

func replicaOf(p *workload.Project, service string, n int) workload.Container {
	for _, c := range p.Containers() {
		if c.Service.Name == service && c.Replica == n {
			return c
		}
	}
	panic("no such replica")
}

// farm is a service of so many replicas that answer with their numbers, and a client.
type farm struct {
	*world
	p      *workload.Project
	client string // namespace
}

func newFarm(w *world, replicas int) *farm {
	w.t.Helper()
	p := scaled(proj("line", svc("web", []string{"default"}, "8080:80", "8080:80/udp", "127.0.0.1:9000:80", "127.0.0.1:9000:80/udp"), svc("client", []string{"default"})), "web", replicas)
	w.prepare(p)
	c, err := w.m.Attach(w.ctx(), p.Name, containerOf(p, "client"))
	w.must(err)
	return &farm{w, p, c.NetNS}
}

// start attaches one replica of p and lets it answer with name.
func (f *farm) start(p *workload.Project, n int, name string) workload.Attached {
	f.t.Helper()
	a, err := f.m.Attach(f.ctx(), p.Name, replicaOf(p, "web", n))
	f.must(err)
	f.answer(a.NetNS, name, 80)
	return a
}

func (f *farm) change(p *workload.Project, n int) {
	f.t.Helper()
	f.must(f.m.Activate(f.ctx(), p.Name, "web", replicaOf(p, "web", n).ID))
}

// shares wants all of names, and nobody else, to answer about equally often, wherever the service can be reached.
func (f *farm) shares(names ...string) {
	f.t.Helper()
	const asked = 60
	vip := at(f.vip(f.p, "web", "default"), 80)
	for _, way := range [][3]string{
		{f.client, "tcp4", vip},
		{f.client, "udp4", vip},
		{f.lan, "tcp4", at(f.hostAddr, 8080)},
		{f.lan, "udp4", at(f.hostAddr, 8080)},
		{f.host, "tcp4", "127.0.0.1:8080"},
		{f.host, "tcp4", "127.0.0.1:9000"},
	} {
		count := map[string]int{}
		for range asked {
			got, err := f.ask(way[0], way[1], way[2], patience)
			if err != nil {
				f.t.Fatalf("%s %s: %v", way[1], way[2], err)
			}
			name, _, _ := strings.Cut(got, " ")
			count[name]++
		}
		sum := 0
		for _, n := range names {
			if sum += count[n]; count[n] < asked/len(names)/4 {
				f.t.Errorf("%s %s: %s answered %d times of %d: %v", way[1], way[2], n, count[n], asked, count)
			}
		}
		if sum != asked {
			f.t.Errorf("%s %s: %v answered, want only %q", way[1], way[2], count, names)
		}
	}
}

func TestReplicasShareTheWork(t *testing.T) {
	w := newWorld(t)
	f := newFarm(w, 3)
	f.start(f.p, 1, "one")
	f.start(f.p, 2, "two")
	f.start(f.p, 3, "three")
	f.shares("one") // the first that came answers until somebody vouches for another
	f.change(f.p, 2)
	f.shares("two")
	f.change(f.p, 1)
	f.change(f.p, 3)
	f.shares("one", "two", "three")
	f.verified()

	q := revised(f.p, "web", "2")
	w.prepare(q)
	f.start(q, 2, "fresh")
	f.shares("one", "two", "three")
	f.change(q, 2)
	f.shares("one", "fresh", "three")
	want := map[string]bool{replicaOf(f.p, "web", 1).ID: true, replicaOf(q, "web", 2).ID: true, replicaOf(f.p, "web", 3).ID: true, idOf(f.p, "client"): true}
	if d := cmp.Diff(want, w.m.ActiveBackends()); d != "" {
		t.Errorf("answering: %s", d)
	}
	// Back to the old one, as a rollback does.
	f.change(f.p, 2)
	w.must(w.m.Detach(w.ctx(), replicaOf(q, "web", 2).ID))
	f.shares("one", "two", "three")
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	f.shares("one", "two", "three")

	// One after the other leaves; the last one stays, ill or not.
	w.must(w.m.Deactivate(w.ctx(), replicaOf(f.p, "web", 2).ID))
	f.shares("one", "three")
	w.must(w.m.Deactivate(w.ctx(), replicaOf(f.p, "web", 1).ID))
	w.must(w.m.Deactivate(w.ctx(), replicaOf(f.p, "web", 3).ID))
	w.must(w.m.Deactivate(w.ctx(), "never-seen"))
	f.shares("three")
	w.must(w.m.Detach(w.ctx(), replicaOf(f.p, "web", 3).ID))
	f.shares("one")
	f.verified()
	w.must(w.m.Teardown(w.ctx(), "line"))
	w.clean()
}

func TestReplicasHaveNames(t *testing.T) {
	w := newWorld(t)
	f := newFarm(w, 1)
	name := func(ns workload.Attached, n string) string {
		b, err := os.ReadFile(ns.HostsFile)
		w.must(err)
		for line := range strings.Lines(string(b)) {
			if fields := strings.Fields(line); len(fields) > 1 {
				for _, x := range fields[1:] {
					if x == n {
						return fields[0] + ":80"
					}
				}
			}
		}
		return ""
	}
	client, err := w.m.Attach(w.ctx(), "line", containerOf(f.p, "client"))
	w.must(err)
	one := f.start(f.p, 1, "one")
	w.reaches(client.NetNS, name(client, "web-1"), "one", "")
	q := scaled(f.p, "web", 3)
	w.prepare(q)
	two := f.start(q, 2, "two")
	f.start(q, 3, "three")
	for n := range 3 {
		if n == 0 {
			continue
		}
		f.change(q, n+1)
	}
	f.change(q, 1)
	for i, who := range []string{"one", "two", "three"} {
		w.reaches(client.NetNS, name(client, fmt.Sprintf("web-%d", i+1)), who, "")
	}
	if one.Hostname != "web" || two.Hostname != "web-2" {
		t.Errorf("hostnames %q and %q", one.Hostname, two.Hostname)
	}
	if got := name(two, "web-2"); got != at(w.addr(replicaOf(q, "web", 2).ID, "default"), 80) {
		t.Errorf("the second replica is %s to itself", got)
	}
	// The name stays with the replica, not with its container.
	r := revised(q, "web", "2")
	w.prepare(r)
	f.start(r, 2, "fresh")
	w.reaches(client.NetNS, name(client, "web-2"), "two", "")
	f.change(r, 2)
	w.reaches(client.NetNS, name(client, "web-2"), "fresh", "")
	w.verified()

	for _, n := range []int{2, 3} { // and goes with it
		w.must(w.m.Detach(w.ctx(), replicaOf(q, "web", n).ID))
	}
	w.must(w.m.Detach(w.ctx(), replicaOf(r, "web", 2).ID))
	w.prepare(f.p)
	if got := name(client, "web-2"); got != "" {
		t.Errorf("web-2 is still %s", got)
	}
	if pl := w.m.state.Projects["line"].Services["web"].Endpoints["default"]; len(pl.Each) > 0 || len(pl.Addresses) > 2 {
		t.Errorf("addresses of replicas that are gone: %v, %v", pl.Each, pl.Addresses)
	}
	w.reaches(client.NetNS, name(client, "web-1"), "one", "")
	w.verified()
}

func TestSwitchRefusesStrangers(t *testing.T) {
	w := newWorld(t)
	p, _ := twoServices(w)
	for _, tt := range [][3]string{{"line", "web", "x"}, {"line", "x", idOf(p, "web")}, {"x", "web", idOf(p, "web")}, {"line", "web", idOf(p, "client")}} {
		if err := w.m.Activate(w.ctx(), tt[0], tt[1], tt[2]); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("Switch(%q) = %v, want not found", tt, err)
		}
	}
}

// Who looks at containers does not wait for a plugin of the site's that hangs.
func TestAnsweringWaitsForNobody(t *testing.T) {
	w := newWorld(t)
	p, _ := twoServices(w)
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	want := map[string]bool{idOf(p, "web"): true, idOf(p, "client"): true}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	got := make(chan map[string]bool, 1)
	go func() { got <- w.m.ActiveBackends() }()
	select {
	case ids := <-got:
		if d := cmp.Diff(want, ids); d != "" {
			t.Errorf("answering (-want +got):\n%s", d)
		}
	case <-time.After(patience):
		t.Error("Answering waits for the manager")
	}
}
