package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// Ports that the peers publish, each in a network namespace of its own.
const (
	firstPort  = 18080
	secondPort = 18081
)

// contender is one way to do what a benchmark measures. It returns how long that took, and tidies up after it.
type contender struct {
	name string
	run  func(n int) time.Duration
}

// contest lets all of them do it in turns, once without counting, and reports their medians.
func contest(b *testing.B, rounds int, all []contender) {
	b.Helper()
	took := map[string][]time.Duration{}
	n := 0
	for b.Loop() {
		for round := range rounds + 1 {
			for _, c := range all {
				if d := c.run(n); round > 0 {
					took[c.name] = append(took[c.name], d)
				}
				n++
			}
		}
	}
	b.ReportMetric(0, "ns/op") // the sum of all says nothing
	for _, c := range all {
		slices.Sort(took[c.name])
		b.ReportMetric(float64(took[c.name][len(took[c.name])/2].Microseconds())/1000, c.name+"-ms")
	}
}

// peers are the other engines of this machine; what cannot be had is told and left out.
func (r *rig) peers(b *testing.B, podman bool) (*testenv.Nerdctl, *testenv.Podman) {
	b.Helper()
	ctx := b.Context()
	img := r.toolbox(nil)
	ctr := testenv.NewBox(b)
	o := testenv.DaemonOptions{Box: ctr, Out: os.Stderr}
	n, err := testenv.StartNerdctl(ctx, o, img)
	if err != nil {
		fmt.Fprintln(os.Stderr, "without nerdctl:", err)
		n = nil
	}
	if !podman {
		return n, nil
	}
	p, err := testenv.StartPodman(ctx, o, img)
	if err != nil {
		fmt.Fprintln(os.Stderr, "without podman:", err)
		p = nil
	}
	return n, p
}

// command is a contender that is one command of a peer.
func command(b *testing.B, name string, p *testenv.Peer, ports []int, up, down []string) contender {
	return contender{name, func(int) time.Duration {
		began := time.Now()
		if out, err := p.Run(b.Context(), up...); err != nil {
			b.Fatal(out, err)
		}
		for _, port := range ports {
			ask(b, testenv.DialIn(p.Network), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)))
		}
		took := time.Since(began)
		if out, err := p.Run(b.Context(), down...); err != nil {
			b.Fatal(out, err)
		}
		return took
	}}
}

// BenchmarkServiceToHTTP200 starts one service whose image is present, network included, until it answers; in turns with
// the least that the Go client needs for the same, on the same networks: the floor. Ours has a system call filter, as any
// engine's containers have; the floor is measured without and with the library's. nerdctl runs it beside them.
func BenchmarkServiceToHTTP200(b *testing.B) {
	r := newRig(b)
	img := r.pulled(nil)
	c, err := client.New(r.o.Address)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	all := []contender{
		{"ours", func(n int) time.Duration { return r.benchOurs(img, n) }},
		{"floor", func(n int) time.Duration { return r.benchFloor(c, img, n) }},
		{"confined", func(n int) time.Duration { return r.benchFloor(c, img, n, seccomp.WithDefaultProfile()) }},
	}
	if n, _ := r.peers(b, false); n != nil {
		up := []string{"run", "-d", "--name", "one", "-p", fmt.Sprintf("127.0.0.1:%d:8080", firstPort), n.Image, "serve", "8080", "hello"}
		all = append(all, command(b, "nerdctl", &n.Peer, []int{firstPort}, up, []string{"rm", "-f", "one"}))
	}
	contest(b, 4, all)
}

// BenchmarkProjectOfTwo starts a project of two services with published ports, whose image is present, until both answer; in
// turns with podman kube play, nerdctl compose, and the least that the Go client needs for the same two, one after the other.
func BenchmarkProjectOfTwo(b *testing.B) {
	r := newRig(b)
	img := r.pulled(nil)
	c, err := client.New(r.o.Address)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	all := []contender{
		{"ours", func(n int) time.Duration { return r.benchTwo(img, n) }},
		{"floor", func(n int) time.Duration {
			return r.benchFloor(c, img, 2*n, seccomp.WithDefaultProfile()) + r.benchFloor(c, img, 2*n+1, seccomp.WithDefaultProfile())
		}},
	}
	n, p := r.peers(b, true)
	ports := []int{firstPort, secondPort}
	write := func(name, form string, args ...any) string {
		file := filepath.Join(b.TempDir(), name)
		if err := os.WriteFile(file, fmt.Appendf(nil, form, args...), 0o644); err != nil {
			b.Fatal(err)
		}
		return file
	}
	if p != nil {
		file := write("pod.yaml", `apiVersion: v1
kind: Pod
metadata: {name: bench}
spec:
  containers:
  - {name: first, image: %[1]q, imagePullPolicy: Never, args: [serve, "8080", hello], ports: [{containerPort: 8080, hostPort: %[2]d}]}
  - {name: second, image: %[1]q, imagePullPolicy: Never, args: [serve, "8081", hello], ports: [{containerPort: 8081, hostPort: %[3]d}]}
`, p.Image, firstPort, secondPort)
		all = append(all, command(b, "podman", &p.Peer, ports, []string{"play", "kube", file}, []string{"pod", "rm", "--force", "--time", "0", "bench"}))
	}
	if n != nil {
		file := write("compose.yaml", `services:
  first: {image: %[1]q, command: [serve, "8080", hello], ports: ["127.0.0.1:%[2]d:8080"]}
  second: {image: %[1]q, command: [serve, "8080", hello], ports: ["127.0.0.1:%[3]d:8080"]}
`, n.Image, firstPort, secondPort)
		compose := []string{"compose", "-p", "bench", "-f", file}
		all = append(all, command(b, "nerdctl", &n.Peer, ports, append(compose, "up", "-d"), append(slices.Clone(compose), "down")))
	}
	contest(b, 4, all)
}

func (r *rig) benchTwo(img workload.Image, n int) time.Duration {
	ctx, p := r.t.Context(), benchService(img, "two", n)
	second := p.Services[0]
	second.Name = "second"
	p.Services = append(p.Services, second)
	for i := range p.Services {
		p.Services[i].Ports = []workload.Port{{HostPort: freePort(r.t), ContainerPort: 8080, Protocol: "tcp"}}
	}
	began := time.Now()
	if err := r.Prepare(ctx, p); err != nil {
		r.t.Fatal(err)
	}
	var both sync.WaitGroup
	errs := make([]error, 2)
	for i, c := range p.Containers() {
		both.Go(func() {
			errs[i] = errors.Join(r.Create(ctx, p, c), r.Start(ctx, p, c), r.Activate(ctx, p.Name, c.Service.Name, c.ID))
		})
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range p.Containers() {
		r.answers(c.ID)
		ask(r.t, (&net.Dialer{}).DialContext, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), c.Service.Ports[0].HostPort))
	}
	took := time.Since(began)
	for _, c := range p.Containers() {
		if err := r.Remove(ctx, c.ID); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.Teardown(ctx, p.Name); err != nil {
		r.t.Fatal(err)
	}
	return took
}

// freePort is a port of this machine that nobody listens on now.
func freePort(t testing.TB) uint16 {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// answers polls from the host until HTTP 200.
func (r *rig) answers(id string) {
	r.t.Helper()
	ask(r.t, (&net.Dialer{}).DialContext, netip.AddrPortFrom(r.nets.Addresses(id)["default"], 8080))
}

// ask polls until HTTP 200.
func ask(t testing.TB, dial func(ctx context.Context, network, address string) (net.Conn, error), addr netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr.String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err == nil {
			if err := res.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s does not answer: %v", addr, err)
		}
	}
}
