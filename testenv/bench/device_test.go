package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/trust"
	"github.com/longshore-dev/longshore/testenv"
)

const (
	benchDevice = artifacts.DeviceID("press-07")
	benchImage  = "registry.example/plant/app:1"
	day         = 24 * 60 // polls, at the default interval
	benchLimit  = 2 * time.Minute
)

// BenchmarkDay is as many unchanged polls as a day has minutes, through the whole agent on a real registry, on a device of
// 20 containers; growth is what the process holds more after the day than after its first hour.
func BenchmarkDay(b *testing.B) {
	p := newPlant(b, testenv.Distribution, 20)
	p.sync()
	for b.Loop() {
		for range 60 {
			p.sync()
		}
		p.server.Faults.Forget()
		before, bytes := held(), p.wire.bytes()
		for range day {
			p.sync()
		}
		bytes = p.wire.bytes() - bytes
		requests := p.heads()
		growth := held() - before
		b.Logf("growth %d bytes", growth)
		b.ReportMetric(float64(requests)/day, "requests/poll")
		b.ReportMetric(float64(bytes)/day, "wire-B/poll")
		b.ReportMetric(float64(growth)/1024, "growth-KiB/day")
	}
}

// heads counts what was asked since the last time, and forgets it. Anything but a HEAD is an error.
func (p *plant) heads() int {
	p.b.Helper()
	requests, heads := p.server.Faults.Requests("", ""), p.server.Faults.Requests("HEAD", "")
	p.server.Faults.Forget()
	if len(heads) != len(requests) {
		p.b.Errorf("%d of %d requests are not HEAD", len(requests)-len(heads), len(requests))
	}
	return len(requests)
}

// held is what the heap holds when nothing is left over.
func held() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second empties what pools kept through the first
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkChange publishes a state in which one of a hundred deployments differs, and counts what the agent moves until
// it runs: images are no part of it.
func BenchmarkChange(b *testing.B) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		for name, change := range map[string]func(p *plant, n int){
			"parameter": func(p *plant, n int) { p.apps[42].Parameters = map[string]string{"SPEED": fmt.Sprint(n)} },
			"component": func(p *plant, n int) { p.component(42, fmt.Sprintf("1.0.%d", n)) },
		} {
			b.Run(string(kind)+"/"+name, func(b *testing.B) {
				p := newPlant(b, kind, 100)
				p.sync()
				for n := 1; b.Loop(); n++ {
					change(p, n)
					p.publish()
					p.server.Faults.Forget()
					p.sync()
					p.countChange(n == 1)
				}
			})
		}
	}
}

// countChange reports what was asked since the last time, and logs it on demand.
func (p *plant) countChange(log bool) {
	p.b.Helper()
	all := p.server.Faults.Requests("", "")
	blobs := p.server.Faults.Requests("GET", "/blobs/")
	sent, _ := p.server.Faults.Bytes("GET", "")
	for _, r := range all {
		if log {
			p.b.Logf("%s %s %d: %d bytes", r.Method, r.Path, r.Status, r.Sent)
		}
	}
	p.b.ReportMetric(float64(len(all)), "requests/change")
	p.b.ReportMetric(float64(len(blobs)), "blobs/change")
	p.b.ReportMetric(float64(sent)/1024, "body-KiB/change")
}

// BenchmarkChain is all checks between a tag and the acceptance of a state of fifty applications, of which each has a signed
// component: everything but the state itself and one deployment is on the device, and was verified before.
func BenchmarkChain(b *testing.B) {
	p := newPlant(b, testenv.Distribution, 50, "component")
	p.sync()
	var all time.Duration
	for n := 1; b.Loop(); n++ {
		p.apps[42].Parameters = map[string]string{"SPEED": fmt.Sprint(n)}
		p.publish()
		begin := time.Now()
		p.sync()
		all += p.accepted().Sub(begin)
	}
	b.ReportMetric(float64(all)/float64(time.Millisecond)/float64(b.N), "chain-ms")
}

// accepted is when the newest generation was.
func (p *plant) accepted() (at time.Time) {
	p.b.Helper()
	p.must(p.agent.Events(p.b.Context(), status.EventRequest{}, func(e status.Event) error {
		if e.Kind == status.EventAccepted && e.Generation == p.generation {
			at = e.Time
		}
		return nil
	}))
	if at.IsZero() {
		p.b.Fatalf("no event tells that generation %d was accepted", p.generation)
	}
	return at
}

// plant is a registry with a device's state, and the device: the real agent, registry client, trust policy and content
// store, on a runtime in memory.
type plant struct {
	b      *testing.B
	server *testenv.RegistryServer
	wire   *wire
	client *registry.Client
	signer *sign.Signer
	agent  *agent.Agent

	apps       []release.Single
	generation uint64
	kinds      string // that the policy wants signed
}

// newPlant makes a device that runs so many applications of one container each, under a policy that wants states signed, and
// more kinds of artifacts.
func newPlant(b *testing.B, kind testenv.Kind, apps int, more ...string) *plant {
	b.Helper()
	p := &plant{b: b, server: testenv.Registry(b, kind), apps: make([]release.Single, apps)}
	p.kinds = strings.Join(append([]string{"state"}, more...), ", ")
	p.wire = newWire(b, p.server.Host)
	private, public, err := sign.GenerateKey([]byte("bench"))
	p.must(err)
	p.signer, err = sign.NewSigner(private, []byte("bench"), sign.Options{})
	p.must(err)
	p.client, err = registry.New(registry.Options{})
	p.must(err)
	b.Cleanup(p.client.Close)
	for n := range p.apps {
		p.component(n, "1.0.0")
	}
	p.publish()
	p.start(public)
	return p
}

func (p *plant) must(err error) {
	p.b.Helper()
	if err != nil {
		p.b.Fatal(err)
	}
}

func (p *plant) repository() string { return p.wire.address + "/plant/state" }

// open opens a repository past the wire that counts.
func (p *plant) open(name string) *registry.Repository {
	p.b.Helper()
	repo, err := p.client.OpenName(p.b.Context(), strings.Replace(name, p.wire.address, p.server.Host, 1))
	p.must(err)
	return repo
}

// component publishes an application's component in a version.
func (p *plant) component(n int, version string) {
	p.b.Helper()
	name := fmt.Sprintf("app-%02d", n)
	image := artifacts.LockedImage{Reference: benchImage, Digest: digest.FromString("index")}
	image.Platforms = []artifacts.LockedPlatform{{Platform: "linux/amd64", Digest: digest.FromString("amd64"), Size: 1 << 20}}
	files := fstest.MapFS{"compose.yaml": {Data: []byte(fmt.Sprintf(
		"services:\n  app:\n    image: %s\n    environment:\n      VERSION: %q\n      SPEED: ${SPEED:-1}\n", benchImage, version))}}
	a, err := artifacts.PackComponent(files, artifacts.ComponentOptions{Name: name, Version: version, Lock: &artifacts.Lock{Images: []artifacts.LockedImage{image}}})
	p.must(err)
	repository := p.wire.address + "/plant/components/" + name
	o := release.PublishOptions{Tags: []string{version}}
	if strings.Contains(p.kinds, "component") {
		o.Signer = signer{p.signer}
	}
	_, err = release.Publish(p.b.Context(), p.open(repository), a, o)
	p.must(err)
	p.apps[n] = release.Single{Device: benchDevice, Repository: repository, Tag: version, Digest: a.Descriptor.Digest, Name: name, Parameters: p.apps[n].Parameters}
}

// publish makes and signs the next generation.
func (p *plant) publish() {
	p.b.Helper()
	p.generation++
	o := artifacts.StateOptions{Device: benchDevice, Generation: p.generation}
	for _, app := range p.apps {
		d, err := app.Deployment()
		p.must(err)
		o.Deployments = append(o.Deployments, d)
	}
	a, err := artifacts.PackState(o)
	p.must(err)
	_, err = release.Publish(p.b.Context(), p.open(p.repository()), a, release.PublishOptions{Signer: signer{p.signer}, Tags: []string{benchDevice.Tag()}})
	p.must(err)
}

type signer struct{ *sign.Signer }

// Sign implements [release.Signer].
func (s signer) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	_, err := s.Signer.Sign(ctx, repo, subject)
	return err
}

// start runs the agent until the benchmark ends.
func (p *plant) start(public []byte) {
	p.b.Helper()
	dir := p.b.TempDir()
	policy, err := trust.Parse("trust.yaml", []byte("rules:\n  - scope: '**'\n    artifacts: ["+p.kinds+"]\n    keys:\n      - name: release\n        file: release.pub\n"),
		func(string) ([]byte, error) { return public, nil })
	p.must(err)
	st, err := store.Open(store.Options{Path: filepath.Join(dir, "agent.db"), Device: string(benchDevice)})
	p.must(err)
	content, err := registry.OpenLayout(filepath.Join(dir, "content"))
	p.must(err)
	memory := runtimetest.NewMemory()
	memory.Now = time.Now
	p.agent, err = agent.New(agent.Options{
		Device: benchDevice, Repository: p.repository(), Platform: "linux/amd64", Capabilities: capabilities(),
		Interval: 24 * time.Hour, // all polls are asked for
		Store:    st, Source: p.client, Verifier: &verifier{p.client, policy}, Content: content, Runtime: memory,
		Version: "0.0.0-bench", Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	p.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.b.Context()))
	done := make(chan error, 1)
	go func() { done <- p.agent.Run(ctx) }()
	p.b.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, st.Close()); err != nil {
			p.b.Error(err)
		}
	})
}

func capabilities() margo.DeviceCapabilities {
	yes := true
	return margo.DeviceCapabilities{Properties: margo.DeviceProperties{
		ID: string(benchDevice), Vendor: "v", ModelNumber: "m", SerialNumber: "s", CPUs: []margo.CPU{{Cores: 2, Architecture: "amd64"}},
		Memory: "8Gi", Storage: "32Gi", OTELCollector: &yes, SupportedRuntimes: []string{"oci"}, SupportedDeploymentTypes: []string{"compose"},
		Peripherals: []margo.Peripheral{}, Interfaces: []margo.Interface{{Type: "ethernet"}},
	}}
}

// sync has the agent poll, and waits until the newest generation runs.
func (p *plant) sync() {
	p.b.Helper()
	ctx, cancel := context.WithTimeout(p.b.Context(), benchLimit)
	defer cancel()
	r, err := p.agent.Sync(ctx)
	if err != nil || r.Code != "" || r.Generation != p.generation {
		p.b.Fatalf("sync = %+v, %v, want generation %d", r, err, p.generation)
	}
}

type verifier struct {
	client *registry.Client
	policy *trust.Policy
}

// Verify implements [intake.Verifier], as the agent's program does.
func (v *verifier) Verify(ctx context.Context, kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
	repo, err := v.client.OpenName(ctx, repository)
	if err != nil {
		return intake.Verdict{}, err
	}
	answer := v.policy.Decide(ctx, trust.VerifyRequest{Source: repo, Kind: string(kind), Subject: d, Now: time.Now()})
	return intake.Verdict{SignedBy: answer.SignedBy, Insecure: answer.Insecure}, answer.Err
}

// wire stands before a server and counts the bytes of its connections, both ways.
type wire struct {
	address string
	n       atomic.Int64
}

func newWire(b *testing.B, server string) *wire {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	w := &wire{address: l.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return // closed below
			}
			all.Go(func() { w.carry(near, server) })
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return w
}

func (w *wire) bytes() int64 { return w.n.Load() }

// carry ends when either side closes.
func (w *wire) carry(near net.Conn, server string) {
	defer near.Close()
	far, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer far.Close()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(counting{way[0], &w.n}, way[1])
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	both.Wait()
}

type counting struct {
	io.Writer
	n *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}
