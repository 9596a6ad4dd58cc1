package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
)

// BenchmarkServiceToHTTP200 starts one service whose image is present, network included, until it answers; in turns with
// the least that the Go client needs for the same, on the same networks: the floor. Ours has a system call filter, as any
// engine's containers have; the floor is measured without and with the library's. Figures are medians.
func BenchmarkServiceToHTTP200(b *testing.B) {
	r := newRig(b)
	img := r.pulled(nil)
	c, err := client.New(r.o.Address)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var ours, bare, confined []time.Duration
	for n := 0; b.Loop(); n++ {
		ours = append(ours, r.benchOurs(img, n))
		bare = append(bare, r.benchFloor(c, img, n))
		confined = append(confined, r.benchFloor(c, img, n, seccomp.WithDefaultProfile()))
	}
	b.ReportMetric(0, "ns/op") // the sum of all says nothing
	report(b, "ours", ours, "floor", bare)
	report(b, "ours", ours, "confined-floor", confined)
}

// BenchmarkProjectOfTwo starts a project of two services whose image is present until both answer, in turns with the least
// that the Go client needs for the same two, one after the other.
func BenchmarkProjectOfTwo(b *testing.B) {
	r := newRig(b)
	img := r.pulled(nil)
	c, err := client.New(r.o.Address)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var ours, floor []time.Duration
	for n := 0; b.Loop(); n++ {
		ours = append(ours, r.benchTwo(img, n))
		floor = append(floor, r.benchFloor(c, img, 2*n, seccomp.WithDefaultProfile())+r.benchFloor(c, img, 2*n+1, seccomp.WithDefaultProfile()))
	}
	b.ReportMetric(0, "ns/op") // the sum of all says nothing
	report(b, "ours", ours, "floor", floor)
}

func (r *rig) benchTwo(img workload.Image, n int) time.Duration {
	ctx, p := r.t.Context(), benchService(img, "two", n)
	second := p.Services[0]
	second.Name = "second"
	p.Services = append(p.Services, second)
	began := time.Now()
	if err := r.Prepare(ctx, p); err != nil {
		r.t.Fatal(err)
	}
	var both sync.WaitGroup
	errs := make([]error, 2)
	for i, c := range p.Containers() {
		both.Go(func() { errs[i] = errors.Join(r.Create(ctx, p, c), r.Start(ctx, p, c)) })
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range p.Containers() {
		r.answers(c.ID)
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

// report gives two medians in milliseconds and their ratio.
func report(b *testing.B, aName string, a []time.Duration, otherName string, other []time.Duration) {
	b.Helper()
	slices.Sort(a)
	slices.Sort(other)
	x, y := a[len(a)/2], other[len(other)/2]
	b.ReportMetric(float64(x.Microseconds())/1000, aName+"-ms")
	b.ReportMetric(float64(y.Microseconds())/1000, otherName+"-ms")
	b.ReportMetric(float64(x)/float64(y), "x-"+otherName)
}

// benchService makes containers that differ, as revisions do.
func benchService(img workload.Image, name string, n int) *workload.Project {
	s := server(img)
	s.Environment = []string{fmt.Sprintf("N=%d", n)}
	return project(fmt.Sprintf("%s%d", name, n), s)
}

func (r *rig) benchOurs(img workload.Image, n int) time.Duration {
	ctx, p := r.t.Context(), benchService(img, "ours", n)
	c := p.Containers()[0]
	began := time.Now()
	if err := errors.Join(r.Prepare(ctx, p), r.Create(ctx, p, c), r.Start(ctx, p, c)); err != nil {
		r.t.Fatal(err)
	}
	r.answers(c.ID)
	took := time.Since(began)
	if err := errors.Join(r.Remove(ctx, c.ID), r.Teardown(ctx, p.Name)); err != nil {
		r.t.Fatal(err)
	}
	return took
}

// benchFloor does with the client library what its own examples do.
func (r *rig) benchFloor(c *client.Client, img workload.Image, n int, opts ...oci.SpecOpts) time.Duration {
	ctx, p := namespaces.WithNamespace(r.t.Context(), r.o.Namespace), benchService(img, "floor", n)
	box := p.Containers()[0]
	began := time.Now()
	image, err := c.GetImage(ctx, img.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.nets.Prepare(ctx, p); err != nil {
		r.t.Fatal(err)
	}
	at, err := r.nets.Attach(ctx, p.Name, box)
	if err != nil {
		r.t.Fatal(err)
	}
	opts = append([]oci.SpecOpts{
		oci.WithImageConfigArgs(image, []string{"serve", "8080", "hello"}),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: at.NetNS}),
	}, opts...)
	container, err := c.NewContainer(ctx, box.ID, client.WithNewSnapshot(box.ID, image), client.WithNewSpec(opts...))
	if err != nil {
		r.t.Fatal(err)
	}
	log := url.URL{Scheme: "file", Path: filepath.Join(r.o.DataDir, "floor.log")}
	task, err := container.NewTask(ctx, cio.LogURI(&log))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := task.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
	r.answers(box.ID)
	took := time.Since(began)
	if _, err := task.Delete(ctx, client.WithProcessKill); err != nil {
		r.t.Fatal(err)
	}
	err = errors.Join(container.Delete(ctx, client.WithSnapshotCleanup), r.nets.Detach(ctx, box.ID), r.nets.Teardown(ctx, p.Name))
	if err != nil {
		r.t.Fatal(err)
	}
	return took
}

// answers polls from the host until HTTP 200.
func (r *rig) answers(id string) {
	r.t.Helper()
	addr := netip.AddrPortFrom(r.nets.Addresses(id)["default"], 8080)
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	c := r.client()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr.String()+"/", nil)
		if err != nil {
			r.t.Fatal(err)
		}
		res, err := c.Do(req)
		if err == nil {
			if err := res.Body.Close(); err != nil {
				r.t.Fatal(err)
			}
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			r.t.Fatalf("%s does not answer: %v", id, err)
		}
	}
}

// BenchmarkRestart is a crash's cost: a new task in the same network and layer, until it answers.
func BenchmarkRestart(b *testing.B) {
	r := newRig(b)
	p := project("again", server(r.pulled(nil)))
	c := r.up(p)[0]
	r.answers(c.ID)
	for b.Loop() {
		if err := errors.Join(r.Stop(b.Context(), c.ID), r.Start(b.Context(), p, c)); err != nil {
			b.Fatal(err)
		}
		r.answers(c.ID)
	}
}

// BenchmarkProbe compares the kinds of probes.
func BenchmarkProbe(b *testing.B) {
	r := newRig(b)
	c := r.up(project("ask", server(r.pulled(nil))))[0]
	r.answers(c.ID)
	for name, p := range map[string]workload.Probe{
		"exec": {Exec: []string{"/toolbox", "env"}}, "http": {HTTP: &workload.HTTPProbe{Port: 8080}}, "tcp": {TCP: 8080},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := r.Probe(b.Context(), c.ID, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkObserve reads a device of twenty containers.
func BenchmarkObserve(b *testing.B) {
	r := newRig(b)
	img := r.pulled(nil)
	var services []workload.Service
	for n := range 20 {
		s := server(img)
		s.Name = fmt.Sprintf("s%d", n)
		services = append(services, s)
	}
	r.up(project("many", services...))
	b.ReportAllocs()
	for b.Loop() {
		if o, err := r.Observe(b.Context()); err != nil || len(o.Containers) != 20 {
			b.Fatal(len(o.Containers), err)
		}
	}
}

// BenchmarkPull compares a durable pull with containerd's own two ways to pull, neither of which makes it durable.
func BenchmarkPull(b *testing.B) {
	r := newRig(b)
	img := r.push(r.heavy(8, 12<<20), "plant/bench")
	for _, peer := range [][]string{{"transfer"}, {"local", "--local"}} {
		b.Run("against ctr "+peer[0], func(b *testing.B) {
			var ours, theirs []time.Duration
			for b.Loop() {
				began := time.Now()
				if err := r.Pull(b.Context(), img, nil); err != nil {
					b.Fatal(err)
				}
				ours = append(ours, time.Since(began))
				if err := r.Collect(b.Context(), nil); err != nil {
					b.Fatal(err)
				}
				args := append([]string{"-n", r.o.Namespace, "images", "pull", "--plain-http"}, peer[1:]...)
				began = time.Now()
				if out, err := r.daemon.Ctr(b.Context(), append(args, img.Name())...); err != nil {
					b.Fatal(out, err)
				}
				theirs = append(theirs, time.Since(began))
				if out, err := r.daemon.Ctr(b.Context(), "-n", r.o.Namespace, "images", "rm", "--sync", img.Name()); err != nil {
					b.Fatal(out, err)
				}
			}
			b.ReportMetric(0, "ns/op")
			report(b, "ours", ours, "ctr", theirs)
		})
	}
}
