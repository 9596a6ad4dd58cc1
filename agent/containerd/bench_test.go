package containerd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

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
	ctr := p.Containers()[0]
	began := time.Now()
	image, err := c.GetImage(ctx, img.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.nets.Prepare(ctx, p); err != nil {
		r.t.Fatal(err)
	}
	at, err := r.nets.Attach(ctx, p.Name, ctr)
	if err != nil {
		r.t.Fatal(err)
	}
	opts = append([]oci.SpecOpts{
		oci.WithImageConfigArgs(image, []string{"serve", "8080", "hello"}),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: at.NetNS}),
	}, opts...)
	container, err := c.NewContainer(ctx, ctr.ID, client.WithNewSnapshot(ctr.ID, image), client.WithNewSpec(opts...))
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
	r.answers(ctr.ID)
	took := time.Since(began)
	if _, err := task.Delete(ctx, client.WithProcessKill); err != nil {
		r.t.Fatal(err)
	}
	err = errors.Join(container.Delete(ctx, client.WithSnapshotCleanup), r.nets.Detach(ctx, ctr.ID), r.nets.Teardown(ctx, p.Name))
	if err != nil {
		r.t.Fatal(err)
	}
	return took
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

// BenchmarkPull compares a durable pull, its journal on the disk, with containerd's own two ways to pull, each followed by a sync of the
// file system.
func BenchmarkPull(b *testing.B) {
	st, err := store.Open(store.Options{Path: filepath.Join(b.TempDir(), "agent.db"), Device: "press-07"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	r := newRig(b, func(o *containerd.Options) { o.Journal = st })
	img := r.push(r.heavy(8, 12<<20), "plant/bench")
	sync := func() {
		if out, err := exec.CommandContext(b.Context(), "sync", "-f", r.daemon.Root).CombinedOutput(); err != nil {
			b.Fatalf("sync: %v\n%s", err, out)
		}
	}
	for _, peer := range [][]string{{"transfer"}, {"local", "--local"}} {
		b.Run("against ctr "+peer[0], func(b *testing.B) {
			contest(b, 5, []contender{
				{"ours", func(int) time.Duration {
					sync() // what the removal before has left to be written is not a part of the pull
					began := time.Now()
					if _, err := r.Pull(b.Context(), img, nil); err != nil {
						b.Fatal(err)
					}
					took := time.Since(began)
					if err := r.Collect(b.Context(), nil); err != nil {
						b.Fatal(err)
					}
					return took
				}},
				{"ctr", func(int) time.Duration {
					args := append([]string{"-n", r.o.Namespace, "images", "pull", "--plain-http"}, peer[1:]...)
					sync()
					began := time.Now()
					if out, err := r.daemon.Ctr(b.Context(), append(args, img.Name())...); err != nil {
						b.Fatal(out, err)
					}
					sync()
					took := time.Since(began)
					r.forget(b, img)
					return took
				}},
			})
		})
	}
}

// forget removes an image that ctr has pulled.
func (r *rig) forget(b *testing.B, img workload.Image) {
	b.Helper()
	ns := []string{"-n", r.o.Namespace}
	left, err := r.daemon.Ctr(b.Context(), append(ns, "leases", "ls", "-q")...) // of one that was killed
	if err != nil {
		b.Fatal(err)
	}
	for _, lease := range strings.Fields(left) {
		if out, err := r.daemon.Ctr(b.Context(), append(ns, "leases", "rm", lease)...); err != nil {
			b.Fatal(out, err)
		}
	}
	if out, err := r.daemon.Ctr(b.Context(), append(ns, "images", "rm", "--sync", img.Name())...); err != nil {
		b.Fatal(out, err)
	}
}

// BenchmarkPullKilled counts what leaves the registry when the puller is killed at half of an image and started again: ours,
// and ctr. The registry stops there, so that nothing is counted that never arrived.
func BenchmarkPullKilled(b *testing.B) {
	r := newRig(b)
	built := r.heavy(2, 24<<20)
	img := r.push(built, "plant/half")
	size := weight(b, built)
	o := orders{
		Address: r.o.Address, Namespace: r.o.Namespace, DataDir: r.o.DataDir, RunDir: r.o.RunDir, Pull: &img, Registry: r.reg.Host,
		NetData: b.TempDir(), NetRun: b.TempDir(), NetTable: fmt.Sprintf("lsctb%d", os.Getpid()), NetPool: "10.223.0.0/16",
	}
	arg, err := json.Marshal(o)
	if err != nil {
		b.Fatal(err)
	}
	pull := exec.Command(os.Args[0])
	pull.Env = append(os.Environ(), victimVariable+"="+string(arg))
	ctr := exec.Command(filepath.Join(r.daemon.Bin, "ctr"), "--address", r.daemon.Address, "-n", r.o.Namespace, "images", "pull", "--plain-http", img.Name())
	var ours, theirs float64
	for b.Loop() {
		ours = r.halfAndAgain(b, pull, built, func() error { _, err := r.Pull(b.Context(), img, nil); return err })
		if err := r.Collect(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
		theirs = r.halfAndAgain(b, ctr, built, func() error {
			out, err := r.daemon.Ctr(b.Context(), ctr.Args[3:]...)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
		r.forget(b, img)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ours, "ours-MiB")
	b.ReportMetric(theirs, "ctr-MiB")
	b.ReportMetric(float64(size)/(1<<20), "image-MiB")
}

// halfAndAgain runs a command until half of an image has come, kills it, and lets again finish what it began. It returns how
// many MiB left the registry in all.
func (r *rig) halfAndAgain(b *testing.B, form *exec.Cmd, img v1.Image, again func() error) float64 {
	b.Helper()
	faults := r.reg.Faults
	faults.Forget()
	m, err := img.Manifest()
	if err != nil {
		b.Fatal(err)
	}
	half := int64(0)
	for _, l := range m.Layers {
		if l.Size > 1<<22 { // the heavy ones; each stops at its own half
			half += l.Size / 2
			faults.Add(testenv.Rule{Method: "GET", Path: "/blobs/" + l.Digest.String(), Effect: faults.Stall(l.Size / 2)})
		}
	}
	cmd := exec.Command(form.Path, form.Args[1:]...)
	cmd.Env = form.Env
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	last, still := int64(0), 0
	err = testenv.Await(b.Context(), time.Minute, func() error {
		files, err := filepath.Glob(filepath.Join(r.daemon.Root, "io.containerd.content.v1.content", "ingest", "*", "data"))
		got := int64(0)
		for _, file := range files {
			if info, err := os.Stat(file); err == nil {
				got += info.Size()
			}
		}
		if still++; got != last {
			last, still = got, 0
		}
		if err == nil && (got < half*9/10 || still < 5) { // the rest is in buffers
			err = fmt.Errorf("%d of %d bytes came", got, half)
		}
		return err
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	if err != nil {
		b.Fatalf("%v\n%s", err, said.String())
	}
	faults.Clear()
	if err := again(); err != nil {
		b.Fatal(err)
	}
	sent, _ := faults.Bytes("GET", "")
	return float64(sent) / (1 << 20)
}
