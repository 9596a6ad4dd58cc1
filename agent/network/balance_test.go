package network

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// deaf makes every call to nftables fail until the returned function is called.
func (w *world) deaf() (hear func()) {
	w.t.Helper()
	f, err := os.Create(filepath.Join(w.t.TempDir(), "no namespace"))
	w.must(err)
	was := w.m.tables
	for i := range w.m.tables {
		w.m.tables[i].NS = f
		w.m.tables[i].Close()
	}
	return func() {
		for i := range w.m.tables {
			w.m.tables[i].NS = was[i].NS
		}
		f.Close()
	}
}

// twoRevisions is a project whose service runs in two revisions: the old one answers.
func twoRevisions(w *world) (p, q *workload.Project, client string) {
	w.t.Helper()
	front := []string{"default"}
	p = proj("line", svc("web", front, "8080:80", "8080:80/udp"), svc("client", front))
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["web"].NetNS, "old", 80)
	q = revised(p, "web", "2")
	w.prepare(q)
	fresh, err := w.m.Attach(w.ctx(), q.Name, containerOf(q, "web"))
	w.must(err)
	w.answer(fresh.NetNS, "new", 80)
	return p, q, a["client"].NetNS
}

// A Switch that the kernel did not take is not shown as done: whoever sees the new container answer stops the old one.
func TestASwitchThatTheKernelRefusesIsNotShownAsDone(t *testing.T) {
	w := newWorld(t)
	p, q, client := twoRevisions(w)
	vip := at(w.vip(p, "web", "default"), 80)
	var flow net.Conn // never pauses, so that it follows only when the kernel forgets it
	w.must(w.in(client, func() (err error) {
		flow, err = net.Dial("udp4", vip)
		return err
	}))
	defer flow.Close()
	says := func(want string) {
		t.Helper()
		_ = flow.SetDeadline(time.Now().Add(patience))
		buf := make([]byte, 64)
		if _, err := flow.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		if n, err := flow.Read(buf); err != nil || string(buf[:min(n, len(want))]) != want {
			t.Fatalf("the open flow: %q, %v, want an answer of %q", buf[:n], err, want)
		}
	}
	says("old")
	old, fresh := idOf(p, "web"), idOf(q, "web")
	answers := func(want, not string) {
		t.Helper()
		if got := w.m.ActiveBackends(); !got[want] || got[not] {
			t.Errorf("%v answer, want %q and not %q", got, want, not)
		}
	}
	hear := w.deaf()
	if err := w.m.Activate(w.ctx(), q.Name, "web", fresh); err == nil {
		t.Fatal("no error")
	}
	answers(old, fresh)
	if err := w.m.Deactivate(w.ctx(), old); err == nil { // nothing to change, and the kernel is still behind
		t.Error("another call does not see that the kernel is behind")
	}
	answers(old, fresh)
	hear()
	w.reopen() // what is saved is not what the kernel has
	if got := w.m.ActiveBackends(); len(got) != 0 {
		t.Errorf("%v answer, before anything was applied", got)
	}
	hear = w.deaf()
	if err := w.m.Restore(w.ctx()); err == nil {
		t.Fatal("no error")
	}
	if got := w.m.ActiveBackends(); len(got) != 0 {
		t.Errorf("%v answer, after nothing could be applied", got)
	}
	hear()
	w.reaches(client, vip, "old", "")
	says("old")
	w.must(w.m.Activate(w.ctx(), q.Name, "web", fresh)) // as the loop does for one that does not answer yet
	answers(fresh, old)
	w.reaches(client, vip, "new", "")
	w.reaches(w.lan, at(w.hostAddr, 8080), "new", "")
	says("new")
	w.verified()
}

// The same in one life of the program: the connections that exist are looked at although an earlier try took the change over.
func TestASwitchThatIsTriedAgainMovesDatagrams(t *testing.T) {
	w := newWorld(t)
	p, q, client := twoRevisions(w)
	var flow net.Conn
	w.must(w.in(client, func() (err error) {
		flow, err = net.Dial("udp4", at(w.vip(p, "web", "default"), 80))
		return err
	}))
	defer flow.Close()
	buf := make([]byte, 64)
	for i, want := range []string{"old", "new"} {
		if i == 1 {
			hear := w.deaf()
			if err := w.m.Activate(w.ctx(), q.Name, "web", idOf(q, "web")); err == nil {
				t.Fatal("no error")
			}
			hear()
			w.must(w.m.Activate(w.ctx(), q.Name, "web", idOf(q, "web")))
		}
		_ = flow.SetDeadline(time.Now().Add(patience))
		_, err := flow.Write([]byte("?"))
		w.must(err)
		if n, err := flow.Read(buf); err != nil || string(buf[:min(n, 3)]) != want {
			t.Fatalf("%q, %v, want an answer of %q", buf[:n], err, want)
		}
	}
}
