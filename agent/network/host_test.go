package network

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestPortsOfTheHostsProgramsAreRefused(t *testing.T) {
	w := newWorld(t)
	w.answer(w.host, "theirs", 8080)
	var six net.Listener
	w.must(w.in(w.host, func() (err error) { six, err = net.Listen("tcp", ":8443"); return err }))
	t.Cleanup(func() { six.Close() })
	own := filepath.Base(os.Args[0])
	for _, ports := range []string{"8080:80", "8080:80/udp", "127.0.0.1:8080:80", "8443:443"} {
		err := w.m.Prepare(w.ctx(), proj("line", svc("web", []string{"default"}, ports)))
		if !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" || !strings.Contains(err.Error(), "in use by program "+own[:min(15, len(own))]) {
			t.Errorf("Prepare with %s = %v, want ErrConflict naming this program", ports, err)
		}
	}
	if got := w.m.Projects(); len(got) > 0 {
		t.Errorf("projects after refusals: %q", got)
	}
	w.prepare(proj("line", svc("web", []string{"default"}, "8081:80", "8443:443/udp")))
	// What is published already stays so, whoever listens later.
	w.answer(w.host, "late", 8081)
	w.prepare(proj("line", svc("web", []string{"default"}, "8081:80")))
}

// All ports that a call publishes are compared with one list for each protocol and family.
func TestListenersAreListedOnce(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("web", []string{"default"}, "8080:80", "8081:81"), svc("db", []string{"default"}, "5432:5432", "5433:5433"))
	before := w.m.host.sockets.Seq
	w.must(w.m.Admit(w.ctx(), []*workload.Project{p}))
	w.prepare(p)
	if asked := w.m.host.sockets.Seq - before; asked != 4 {
		t.Errorf("the sockets were listed %d times, want once in each of two calls for each of two families", asked)
	}
}

func TestOtherFirewallsAreNoted(t *testing.T) {
	w := newWorld(t)
	w.run("nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
	w.prepare(proj("line", svc("web", []string{"default"})))
	w.prepare(proj("line", svc("web", []string{"default"})))
	notes := w.m.Notes()
	if len(notes) != 2 || !strings.Contains(notes[1], "chain FORWARD of table filter") || !strings.Contains(notes[1], w.m.host.prefix+"*") {
		t.Errorf("notes %q, want one about the other chain", notes)
	}
}

func TestUnchangedCallsWriteNothing(t *testing.T) {
	w := newWorld(t)
	p, _ := twoServices(w)
	before, err := os.Stat(savedAt(w.o))
	w.must(err)
	w.prepare(p)
	w.attach(p)
	w.must(w.m.Activate(w.ctx(), p.Name, "web", idOf(p, "web")))
	w.must(w.m.Restore(w.ctx()))
	w.must(w.m.Detach(w.ctx(), "never-seen"))
	after, err := os.Stat(savedAt(w.o))
	w.must(err)
	if !os.SameFile(before, after) {
		t.Error("the state file was written again")
	}
}

func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	var services []workload.Service
	for i := range 8 {
		services = append(services, svc(fmt.Sprintf("s%d", i), []string{"default"}))
	}
	p := proj("line", services...)
	w.prepare(p)
	var wg sync.WaitGroup
	for _, c := range p.Containers() {
		wg.Go(func() {
			for range 3 {
				if _, err := w.m.Attach(t.Context(), p.Name, c); err != nil {
					t.Error(err)
				}
				if err := w.m.Detach(t.Context(), c.ID); err != nil {
					t.Error(err)
				}
			}
			if _, err := w.m.Attach(t.Context(), p.Name, c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.verified()
	w.must(w.m.Teardown(w.ctx(), p.Name))
	w.clean()
}

func TestNamespaceOfARunningContainerIsPinnedAgain(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	id := idOf(p, "web")
	process := exec.CommandContext(t.Context(), "sleep", "600")
	w.must(w.in(a["web"].NetNS, process.Start))
	t.Cleanup(func() { _, _ = process.Process.Kill(), process.Wait() })
	w.must(unpin(a["web"].NetNS))
	var drift *Drift
	if err := w.m.Verify(w.ctx()); !errors.As(err, &drift) {
		t.Errorf("Verify = %v, want a drift", err)
	}
	before, err := linkByName(w.m.host.links, w.m.vethName(id, "front"))
	w.must(err)
	w.must(w.m.Restore(w.ctx()))
	after, err := linkByName(w.m.host.links, w.m.vethName(id, "front"))
	w.must(err)
	if before.Attrs().Index != after.Attrs().Index {
		t.Error("the link of a running container was made anew")
	}
	serves(w, p, a)
}

func TestNewServicesAreKnownToRunningContainers(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	mounted, err := os.Open(a["client"].HostsFile) // as a container has it
	w.must(err)
	defer mounted.Close()
	q := proj("line", p.Services[0], p.Services[1], svc("cache", []string{"back"}))
	w.prepare(q)
	b := make([]byte, 4096)
	n, _ := mounted.ReadAt(b, 0)
	if want := w.vip(q, "cache", "back").String() + "\tcache\n"; !strings.Contains(string(b[:n]), want) {
		t.Errorf("hosts file of a running container:\n%swant %q", b[:n], want)
	}
}

// again runs this test program once more, for one test, with another part to play.
func again(t *testing.T, test, part string, o Options) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.count=1")
	c.Env = append(os.Environ(), "NETWORK_PART="+part, "NETWORK_DATA="+o.DataDir, "NETWORK_RUN="+o.RunDir, "NETWORK_NS="+o.NetNS)
	return c
}

func killProject(revision string) *workload.Project {
	return revised(proj("line", svc("web", []string{"front", "back"}, "8080:80", "8080:80/udp"), svc("client", []string{"back"})), "web", revision)
}

// TestKilledAnywhere kills a program that prepares, attaches, switches, detaches and tears down without pause, at a moment
// that chance picks, and wants the next one to come to the same place.
func TestKilledAnywhere(t *testing.T) {
	if os.Getenv("NETWORK_PART") == "victim" {
		playVictim(t)
		return
	}
	w := newWorld(t)
	w.must(w.m.Close())
	dead := 0
	for range 25 {
		c := again(t, "TestKilledAnywhere", "victim", w.o)
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		w.must(c.Start())
		timer := time.AfterFunc(20*time.Millisecond+rand.N(220*time.Millisecond), func() { _ = c.Process.Kill() })
		err := c.Wait()
		timer.Stop()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("victim: %v\n%s", err, out.String())
		}
		dead++
		w.open()
		p := killProject("3")
		w.must(w.m.Restore(w.ctx()))
		w.verified()
		w.prepare(p)
		a := w.attach(p)
		for _, id := range w.m.attached(p.Name) { // older revisions that the victim left
			if id != idOf(p, "web") && id != idOf(p, "client") {
				w.must(w.m.Detach(w.ctx(), id))
			}
		}
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			in := *w
			in.t = t
			in.answer(a["web"].NetNS, "web", 80)
			serves(&in, p, a)
		})
		if t.Failed() {
			return
		}
		if dead%2 == 0 { // else the next victim begins with what is there
			w.must(w.m.Teardown(w.ctx(), p.Name))
			w.clean()
		}
		w.must(w.m.Close())
	}
	w.open()
	w.must(w.m.Teardown(w.ctx(), "line"))
	w.clean()
}

func playVictim(t *testing.T) {
	m, err := Open(inDir(os.Getenv("NETWORK_DATA"), os.Getenv("NETWORK_RUN"), os.Getenv("NETWORK_NS")))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(m.Restore(ctx))
	for {
		for _, revision := range []string{"1", "2"} {
			p := killProject(revision)
			check(m.Prepare(ctx, p))
			for _, c := range p.Containers() {
				_, err := m.Attach(ctx, p.Name, c)
				check(err)
			}
			check(m.Activate(ctx, p.Name, "web", idOf(p, "web")))
			for _, id := range m.attached(p.Name) {
				if id != idOf(p, "web") && id != idOf(p, "client") {
					check(m.Detach(ctx, id))
				}
			}
		}
		check(m.Teardown(ctx, "line"))
	}
}

// TestOwnNamespace is the way of the agent: the host is the namespace of the process. To keep this machine's out of it, the
// process is started in a new one.
func TestOwnNamespace(t *testing.T) {
	needRoot(t)
	if os.Getenv("NETWORK_PART") == "own" {
		playOwn(t)
		return
	}
	dir := t.TempDir()
	o := inDir(filepath.Join(dir, "data"), filepath.Join(dir, "run"), "")
	c := again(t, "TestOwnNamespace", "own", o)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("in its own namespace: %v\n%s", err, out)
	}
}

func playOwn(t *testing.T) {
	w := &world{t: t, host: "/proc/self/ns/net", lan: "/proc/self/ns/net", hostAddr: netip.MustParseAddr("127.0.0.1")}
	w.o = inDir(os.Getenv("NETWORK_DATA"), os.Getenv("NETWORK_RUN"), "")
	w.open()
	defer w.m.Close()
	w.must(raiseLoopback(w.m.host.links))
	p := proj("line", svc("web", []string{"default"}, "8080:80", "8080:80/udp"), svc("client", []string{"default"}))
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["web"].NetNS, "web", 80)
	w.reaches(a["client"].NetNS, at(w.vip(p, "web", "default"), 80), "web", w.addr(idOf(p, "client"), "default").String())
	w.reaches(w.host, "127.0.0.1:8080", "web", "")
	w.run("nft", "flush", "ruleset")
	w.must(w.m.Restore(w.ctx()))
	w.verified()
	w.reaches(w.host, "127.0.0.1:8080", "web", "")
	w.must(w.m.Teardown(w.ctx(), p.Name))
	w.clean()
}
