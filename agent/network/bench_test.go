package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// BenchmarkAttach is one container on one network of a project of ten, durable record included.
func BenchmarkAttach(b *testing.B) {
	w, c := benchWorld(b)
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		_, err := w.m.Attach(b.Context(), "bench", c)
		took = append(took, time.Since(begin))
		w.must(err)
		b.StopTimer()
		w.must(w.m.Detach(b.Context(), c.ID))
		b.StartTimer()
	}
	slices.Sort(took) // the mean is that of the disk when others use it too
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/median")
}

// BenchmarkAttachCNI is what the usual plugins need for one container: a bridge, an address, a published port, the firewall.
func BenchmarkAttachCNI(b *testing.B) {
	if err := testenv.InstallDebian(b.Context(), os.Stderr, "iptables"); err != nil {
		b.Skip(err)
	}
	bin := ""
	for _, plugin := range []string{"bridge", "host-local", "portmap", "firewall"} {
		bin = filepath.Dir(testenv.Program(b, "nerdctl-"+plugin))
	}
	box := testenv.NewBox(b)
	host, err := box.Network(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	ns, err := os.Open(host)
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "bench", "plugins": [
		{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "172.29.0.0/24"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}]}`, b.TempDir()))
	if err != nil {
		b.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, b.TempDir(), nil)
	one := func(n int) time.Duration {
		path, err := box.Network(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		rt := &libcni.RuntimeConf{ContainerID: fmt.Sprint("bench", n), NetNS: path, IfName: "eth0", CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		}}
		begin := time.Now()
		err = inNamespace(int(ns.Fd()), func() error { _, err := cni.AddNetworkList(b.Context(), list, rt); return err })
		took := time.Since(begin)
		err = errors.Join(err, inNamespace(int(ns.Fd()), func() error { return cni.DelNetworkList(b.Context(), list, rt) }))
		if err != nil {
			b.Fatal(err)
		}
		return took
	}
	var took []time.Duration
	for n := 0; b.Loop(); {
		for range 10 {
			took = append(took, one(n))
			n++
		}
	}
	b.ReportMetric(0, "ns/op") // it holds the way back too
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/median")
}

// BenchmarkAttachAgain is the same before a restart of a container: everything is there.
func BenchmarkAttachAgain(b *testing.B) {
	w, c := benchWorld(b)
	for b.Loop() {
		_, err := w.m.Attach(b.Context(), "bench", c)
		w.must(err)
	}
}

func BenchmarkDetach(b *testing.B) {
	w, c := benchWorld(b)
	for b.Loop() {
		b.StopTimer()
		_, err := w.m.Attach(b.Context(), "bench", c)
		w.must(err)
		b.StartTimer()
		w.must(w.m.Detach(b.Context(), c.ID))
	}
}

// BenchmarkDetachAmongConnections is the same on a machine that tracks 100,000 connections of others.
func BenchmarkDetachAmongConnections(b *testing.B) {
	w, c := benchWorld(b)
	w.connections(100_000)
	for b.Loop() {
		b.StopTimer()
		_, err := w.m.Attach(b.Context(), "bench", c)
		w.must(err)
		b.StartTimer()
		w.must(w.m.Detach(b.Context(), c.ID))
	}
}

// connections adds entries of connections that are not ours to the host's conntrack table.
func (w *world) connections(n int) {
	w.t.Helper()
	from, to := net.IPv4(203, 0, 113, 1).To4(), net.IPv4(203, 0, 113, 2).To4()
	for i := range n {
		there := netlink.IPTuple{SrcIP: from, DstIP: to, SrcPort: uint16(i), DstPort: uint16(1 + i>>16), Protocol: unix.IPPROTO_TCP}
		back := netlink.IPTuple{SrcIP: to, DstIP: from, SrcPort: there.DstPort, DstPort: there.SrcPort, Protocol: unix.IPPROTO_TCP}
		w.must(w.m.host.links.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, Forward: there, Reverse: back, TimeOut: 3600,
			ProtoInfo: &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED},
		}))
	}
}

func BenchmarkSwitch(b *testing.B) {
	w, c := benchWorld(b)
	d := c
	d.ID += "x"
	for _, x := range []workload.Container{c, d} {
		_, err := w.m.Attach(b.Context(), "bench", x)
		w.must(err)
	}
	ids := []string{d.ID, c.ID}
	for b.Loop() {
		w.must(w.m.Activate(b.Context(), "bench", c.Service.Name, ids[0]))
		ids[0], ids[1] = ids[1], ids[0]
	}
}

func BenchmarkVerify(b *testing.B) {
	w, _ := benchWorld(b)
	for b.Loop() {
		w.must(w.m.Verify(b.Context()))
	}
}

func benchWorld(b *testing.B) (*world, workload.Container) {
	b.Helper()
	w := newWorld(b)
	var services []workload.Service
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		services = append(services, svc(n, []string{"default"}))
	}
	services[9].Ports = []workload.Port{mustPort("8080:80")}
	p := proj("bench", services...)
	w.prepare(p)
	for _, c := range p.Containers()[:9] {
		_, err := w.m.Attach(b.Context(), p.Name, c)
		w.must(err)
	}
	return w, p.Containers()[9]
}
