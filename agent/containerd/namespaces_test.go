package containerd_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
)

// namespace names one of a process's namespaces.
func namespace(t *testing.T, pid, kind string) string {
	t.Helper()
	to, err := os.Readlink("/proc/" + pid + "/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestNamespacesOfTheDevice(t *testing.T) {
	r := newRig(t, func(o *containerd.Options) { o.AllowPrivileged = true })
	img := r.pulled(nil)
	for _, kind := range []string{"pid", "ipc", "uts", "cgroup"} {
		t.Run(kind, func(t *testing.T) {
			s := server(img)
			ns, other := &s.Namespaces, "host"
			switch kind {
			case "pid":
				ns.PID = workload.HostNamespace
			case "ipc":
				ns.IPC = workload.HostNamespace
			case "uts":
				ns.UTS = workload.HostNamespace
			case "cgroup":
				ns.Cgroup, other = workload.PrivateNamespace, "private"
			}
			own := server(img)
			own.Name = "own"
			cs := r.up(project("ns"+kind, s, own))
			mine := namespace(t, "self", kind)
			got, isolated := namespace(t, itoa(r.seen(cs[0].ID).PID), kind), namespace(t, itoa(r.seen(cs[1].ID).PID), kind)
			if shared := got == mine; shared != (other == "host") {
				t.Errorf("%s: namespace %s, the device's is %s", other, got, mine)
			}
			if kind != "cgroup" && isolated == mine {
				t.Errorf("without a word the container is in the device's %s namespace", kind)
			}
			r.serving(cs[0].ID)
		})
	}
}

func TestNamespacesOfAnotherService(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	front, side := server(img), workload.Service{Name: "side", Image: img, Command: []string{"sleep"}}
	side.Namespaces = workload.Namespaces{PID: workload.ServiceNamespace("web"), IPC: workload.ServiceNamespace("web")}
	p := project("share", front, side)
	cs := r.created(p)
	err := r.start(cs[1])
	if err == nil || !strings.Contains(err.Error(), "web") {
		t.Fatalf("Start beside a service that does not run = %v, want its name", err)
	}
	if err := r.start(cs[0]); err != nil {
		t.Fatal(err)
	}
	r.inside(cs[0].ID, "write", "/dev/shm/note", "shared memory")
	for range 2 { // the other one's namespaces are new after it was restarted
		if err := r.start(cs[1]); err != nil {
			t.Fatal(err)
		}
		a, b := itoa(r.seen(cs[0].ID).PID), itoa(r.seen(cs[1].ID).PID)
		for _, kind := range []string{"pid", "ipc"} {
			if namespace(t, a, kind) != namespace(t, b, kind) {
				t.Errorf("%s namespaces %s and %s", kind, namespace(t, a, kind), namespace(t, b, kind))
			}
		}
		if got := r.inside(cs[1].ID, "cat", "/dev/shm/note"); got != "shared memory\n" {
			t.Errorf("/dev/shm/note = %q", got)
		}
		for _, c := range []workload.Container{cs[1], cs[0]} {
			if err := r.Stop(t.Context(), c.ID); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.start(cs[0]); err != nil {
			t.Fatal(err)
		}
		r.inside(cs[0].ID, "write", "/dev/shm/note", "shared memory")
	}
}

func TestSharedMemoryAndNames(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	s := server(img)
	s.Resources.ShmBytes, s.Domainname = 2<<20, "plant.example"
	none := server(img)
	none.Name, none.Namespaces.IPC, none.Sysctls = "none", workload.NoNamespace, map[string]string{"kernel.domainname": "line.example"}
	cs := r.up(project("shm", s, none))
	if got := r.inside(cs[0].ID, "touch-mib", "/dev/shm/big", "3"); !strings.Contains(got, "no space") {
		t.Errorf("3 MiB into 2 MiB of /dev/shm: %q", got)
	}
	for n, want := range []string{"plant.example\n", "line.example\n"} {
		if got := r.inside(cs[n].ID, "cat", "/proc/sys/kernel/domainname"); got != want {
			t.Errorf("domain name %q, want %q", got, want)
		}
	}
	if got := r.inside(cs[1].ID, "open", "/dev/shm"); !strings.Contains(got, "no such file") {
		t.Errorf("/dev/shm of a container without shared memory: %q", got)
	}
}

func TestReplicasHaveNamesOfTheirOwn(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Replicas = 2
	for n, c := range r.up(project("two", s)) {
		if got, want := r.inside(c.ID, "cat", "/proc/sys/kernel/hostname"), fmt.Sprintf("web-%d\n", n+1); got != want {
			t.Errorf("hostname %q, want %q", got, want)
		}
	}
}

func TestNetworkModes(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	mode := func(name string, ns workload.Namespace) workload.Service {
		s := workload.Service{Name: name, Image: img, Command: []string{"sleep"}, Networks: []workload.Attachment{}}
		s.Namespaces.Network = ns
		return s
	}
	web := server(img)
	cs := r.up(project("modes", web, mode("host", workload.HostNamespace), mode("none", workload.NoNamespace), mode("beside", workload.ServiceNamespace("web"))))
	netOf := func(n int) string { return namespace(t, itoa(r.seen(cs[n].ID).PID), "net") }
	device := namespace(t, "self", "net")
	if netOf(1) != device {
		t.Errorf("host: %s, the device's is %s", netOf(1), device)
	}
	if netOf(2) == device || netOf(2) == netOf(0) {
		t.Errorf("none: %s is not its own", netOf(2))
	}
	if got := r.inside(cs[2].ID, "cat", "/proc/net/dev"); strings.Contains(got, "eth0") || !strings.Contains(got, "lo:") {
		t.Errorf("none: interfaces\n%s", got)
	}
	if netOf(3) != netOf(0) {
		t.Errorf("service: %s, the other one's is %s", netOf(3), netOf(0))
	}
	r.serving(cs[0].ID)
	r.inside(cs[3].ID, "get", "http://127.0.0.1:8080/")
	if err := r.Probe(t.Context(), cs[3].ID, workload.Probe{TCP: 8080}); err != nil {
		t.Errorf("probe in the shared network: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if err := r.Probe(t.Context(), cs[1].ID, workload.Probe{TCP: port}); err != nil {
		t.Errorf("probe in the device's network: %v", err)
	}
}
