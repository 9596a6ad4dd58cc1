package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute            // of a connection that should come about; the kernel needs microseconds
	short    = 300 * time.Millisecond // of one that should not
)

// world is a machine made of network namespaces: a host, and a neighbour on its LAN.
type world struct {
	t        testing.TB
	m        *Manager
	o        Options
	host     string // path of the namespace
	lan      string
	hostAddr netip.Addr // of the host on the LAN
	lanAddr  netip.Addr
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("TESTENV_REQUIRE") == "1" {
		t.Fatal("needs root, and TESTENV_REQUIRE=1")
	}
	t.Skip("needs root")
}

func newWorld(t testing.TB) *world {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	w := &world{
		t: t, host: filepath.Join(dir, "ns", "host"), lan: filepath.Join(dir, "ns", "lan"),
		hostAddr: netip.MustParseAddr("198.51.100.1"), lanAddr: netip.MustParseAddr("198.51.100.2"),
	}
	w.makeHost()
	t.Cleanup(w.removeHost)
	w.o = inDir(filepath.Join(dir, "data"), filepath.Join(dir, "run"), w.host)
	w.open()
	t.Cleanup(func() {
		w.unmount()
		w.m.Close()
	})
	return w
}

// unmount takes away what the manager mounted.
func (w *world) unmount() {
	w.t.Helper()
	for _, pattern := range []string{"netns/*", "files/*/" + ownFiles} {
		paths, _ := filepath.Glob(filepath.Join(w.o.RunDir, pattern))
		for _, p := range paths {
			w.must(unmount(p))
		}
	}
}

func (w *world) makeHost() {
	w.t.Helper()
	for _, ns := range []string{w.host, w.lan} {
		w.must(pin(ns))
	}
	// A new namespace starts with this machine's settings; ours has those of a machine that nobody set up.
	w.must(w.in(w.host, func() error { return setSysctl("net/ipv4/ip_forward", "0") }))
	hl, hf, err := openNamespace(w.host)
	w.must(err)
	defer hf.Close()
	defer hl.Close()
	ll, lf, err := openNamespace(w.lan)
	w.must(err)
	defer lf.Close()
	defer ll.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "uplink", 77 // not the peer's: see ensureWire
	w.must(hl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "uplink", PeerNamespace: netlink.NsFd(int(lf.Fd()))}))
	for h, a := range map[*netlink.Handle]netip.Addr{hl: w.hostAddr, ll: w.lanAddr} {
		w.must(raiseLoopback(h))
		l, err := h.LinkByName("uplink")
		w.must(err)
		w.must(h.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, 24))}))
		w.must(h.LinkSetUp(l))
	}
	w.must(waitCarrier(w.ctx(), hl, "uplink"))
	w.must(waitCarrier(w.ctx(), ll, "uplink"))
}

func (w *world) removeHost() { _, _ = unpin(w.host), unpin(w.lan) }

func (w *world) open() {
	w.t.Helper()
	m, err := Open(w.o)
	w.must(err)
	w.m = m
}

// inDir are the options of a manager that saves its state in a file of its data directory.
func inDir(data, run, netns string) Options {
	return Options{Store: testenv.NetworkState(filepath.Join(data, "networks")), DataDir: data, RunDir: run, NetNS: netns}
}

// savedAt is that file.
func savedAt(o Options) string { return string(o.Store.(testenv.NetworkState)) }

// reopen is a restart of the program.
func (w *world) reopen() {
	w.t.Helper()
	w.must(w.m.Close())
	w.open()
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	return ctx
}

// in runs f in the namespace pinned at ns.
func (w *world) in(ns string, f func() error) error {
	file, err := os.Open(ns)
	if err != nil {
		return err
	}
	defer file.Close()
	return inNamespace(int(file.Fd()), f)
}

// run runs a program in the host's namespace and returns what it says.
func (w *world) run(name string, args ...string) string {
	w.t.Helper()
	var out []byte
	err := w.in(w.host, func() (err error) {
		out, err = exec.CommandContext(w.ctx(), name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		w.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (w *world) prepare(p *workload.Project) {
	w.t.Helper()
	w.must(w.m.Prepare(w.ctx(), p))
}

// attach attaches every container of p and returns their namespaces by service.
func (w *world) attach(p *workload.Project) map[string]workload.Attached {
	w.t.Helper()
	out := map[string]workload.Attached{}
	for _, c := range p.Containers() {
		a, err := w.m.Attach(w.ctx(), p.Name, c)
		w.must(err)
		out[c.Service.Name] = a
	}
	return out
}

// answer serves TCP and UDP in a namespace: every connection and every datagram gets name, a space, and the address it came
// from.
func (w *world) answer(ns, name string, port uint16) {
	w.t.Helper()
	var l net.Listener
	var u net.PacketConn
	w.must(w.in(ns, func() (err error) {
		at := fmt.Sprintf("0.0.0.0:%d", port)
		if l, err = net.Listen("tcp4", at); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp4", at)
		return err
	}))
	reply := func(from net.Addr) []byte {
		return []byte(name + " " + netip.MustParseAddrPort(from.String()).Addr().String())
	}
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(reply(c.RemoteAddr()))
			c.Close()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 64)
		for {
			_, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(reply(from), from)
		}
	}()
	w.t.Cleanup(func() { l.Close(); u.Close(); <-done; <-done })
}

// ask connects from a namespace and returns the answer.
func (w *world) ask(ns, network, to string, patience time.Duration) (string, error) {
	var c net.Conn
	err := w.in(ns, func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).Dial(network, to)
		return err
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if strings.HasPrefix(network, "tcp") {
		b, err := io.ReadAll(io.LimitReader(c, 256))
		return string(b), err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	buf := make([]byte, 256)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

var bothKinds = []string{"tcp4", "udp4"}

func at(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

// reaches wants an answer over TCP and UDP. from "" accepts any source address.
func (w *world) reaches(ns, to, who, from string) {
	w.t.Helper()
	for _, kind := range bothKinds {
		got, err := w.ask(ns, kind, to, patience)
		if err != nil {
			w.t.Errorf("%s %s from %s: %v", kind, to, filepath.Base(ns), err)
			continue
		}
		name, source, _ := strings.Cut(got, " ")
		if name != who || from != "" && source != from {
			w.t.Errorf("%s %s from %s: answer %q, want %q from %q", kind, to, filepath.Base(ns), got, who, from)
		}
	}
}

// misses wants no answer.
func (w *world) misses(ns, to string) {
	w.t.Helper()
	for _, kind := range bothKinds {
		if got, err := w.ask(ns, kind, to, short); err == nil {
			w.t.Errorf("%s %s from %s: answered %q, want nothing", kind, to, filepath.Base(ns), got)
		}
	}
}

// refuses wants a quick refusal.
func (w *world) refuses(ns, to string) {
	w.t.Helper()
	if _, err := w.ask(ns, "tcp4", to, patience); !errors.Is(err, syscall.ECONNREFUSED) {
		w.t.Errorf("tcp4 %s from %s: %v, want connection refused", to, filepath.Base(ns), err)
	}
}

func (w *world) vip(p *workload.Project, service, network string) netip.Addr {
	w.t.Helper()
	a := w.m.serviceAddress(p.Name, service, network)
	if !a.IsValid() {
		w.t.Fatalf("service %q has no address on network %q", service, network)
	}
	return a
}

func (w *world) addr(id, network string) netip.Addr {
	w.t.Helper()
	a := w.m.Addresses(id)[network]
	if !a.IsValid() {
		w.t.Fatalf("container %q has no address on network %q", id, network)
	}
	return a
}

func (w *world) verified() {
	w.t.Helper()
	if err := w.m.Verify(w.ctx()); err != nil {
		w.t.Fatal(err)
	}
}

// leftovers lists what the manager's marks are on: interfaces, tables, mounts, files.
func (w *world) leftovers() []string {
	w.t.Helper()
	var out []string
	list, err := completeList(w.m.host.links.LinkList)
	w.must(err)
	for _, l := range list {
		if strings.HasPrefix(l.Attrs().Name, w.m.host.prefix) {
			out = append(out, "interface "+l.Attrs().Name)
		}
	}
	if strings.Contains(w.run("nft", "list", "tables"), " "+w.m.o.Table+"\n") {
		out = append(out, "table")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	w.must(err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " "+w.o.RunDir+"/") {
			out = append(out, "mount "+strings.Fields(line)[4])
		}
	}
	for _, dir := range []string{"netns", "files"} {
		entries, _ := os.ReadDir(filepath.Join(w.o.RunDir, dir))
		for _, e := range entries {
			out = append(out, dir+"/"+e.Name())
		}
	}
	return out
}

func (w *world) clean() {
	w.t.Helper()
	if left := w.leftovers(); len(left) > 0 {
		w.t.Errorf("left over: %q", left)
	}
}

// svc is a service on networks; ports are "8080:80", "127.0.0.1:8080:80" or with "/udp".
func svc(name string, networks []string, ports ...string) workload.Service {
	s := workload.Service{Name: name, Image: workload.Image{Repository: "x/" + name, Digest: digest.FromString(name)}}
	for _, n := range networks {
		s.Networks = append(s.Networks, workload.Attachment{Network: n})
	}
	for _, p := range ports {
		s.Ports = append(s.Ports, mustPort(p))
	}
	return s
}

func mustPort(s string) workload.Port {
	p := workload.Port{Protocol: "tcp"}
	if cut, ok := strings.CutSuffix(s, "/udp"); ok {
		s, p.Protocol = cut, "udp"
	}
	f := strings.Split(s, ":")
	if len(f) == 3 {
		p.HostIP, f = netip.MustParseAddr(f[0]), f[1:]
	}
	for i, to := range []*uint16{&p.HostPort, &p.ContainerPort} {
		n, err := strconv.ParseUint(f[i], 10, 16)
		if err != nil {
			panic(err)
		}
		*to = uint16(n)
	}
	return p
}

func proj(name string, services ...workload.Service) *workload.Project {
	p := &workload.Project{Name: name, Deployment: "d", Component: "c", Generation: 1, Services: services}
	seen := map[string]bool{}
	for _, s := range services {
		for _, n := range s.Networks {
			if !seen[n.Network] {
				seen[n.Network] = true
				p.Networks = append(p.Networks, workload.Network{Name: n.Network})
			}
		}
	}
	return p
}

// revised returns p with a service changed so that its container gets another id.
func revised(p *workload.Project, service, tag string) *workload.Project {
	q := *p
	q.Services = append([]workload.Service(nil), p.Services...)
	for i := range q.Services {
		if q.Services[i].Name == service {
			q.Services[i].Environment = append([]string(nil), "REVISION="+tag)
		}
	}
	return &q
}

func idOf(p *workload.Project, service string) string { return containerOf(p, service).ID }

func containerOf(p *workload.Project, service string) workload.Container {
	for _, c := range p.Containers() {
		if c.Service.Name == service {
			return c
		}
	}
	panic("no service " + service)
}

// attached are the ids of a project's attached containers, sorted.
func (m *Manager) attached(project string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.state.Projects[project]; p != nil {
		return slices.Sorted(maps.Keys(p.Attachments))
	}
	return nil
}

// serviceAddress is the IPv4 address of a service's name on one of its networks; invalid when there is none.
func (m *Manager) serviceAddress(project, service, network string) netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.state.Projects[project]; p != nil && p.Services[service] != nil && p.Services[service].Endpoints[network] != nil {
		return p.Services[service].Endpoints[network].VIP
	}
	return netip.Addr{}
}
