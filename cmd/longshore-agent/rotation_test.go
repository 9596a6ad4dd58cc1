package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/trust"
	"github.com/longshore-dev/longshore/testenv"
)

// patience is how long a test waits for an agent.
const patience = 2 * time.Minute

// fleet is a registry with states and policies, and those who sign them.
type fleet struct {
	t      *testing.T
	server *testenv.RegistryServer
	client *registry.Client
	states *registry.Repository
	trust  *registry.Repository
	keys   map[string]*sign.Signer
	image  digest.Digest

	components string // who signs components; "": nobody
}

func newFleet(t *testing.T, kind testenv.Kind) *fleet {
	t.Helper()
	f := &fleet{t: t, server: testenv.Registry(t, kind), keys: map[string]*sign.Signer{}, image: digest.FromString("web")}
	f.client = f.newClient("")
	for name, into := range map[string]**registry.Repository{"/plant/state": &f.states, "/plant/trust": &f.trust} {
		repo, err := f.client.OpenName(t.Context(), f.server.Host+name)
		if err != nil {
			t.Fatal(err)
		}
		*into = repo
	}
	return f
}

func (f *fleet) newClient(certs string) *registry.Client {
	f.t.Helper()
	c, err := registry.New(registry.Options{CertsDir: certs, Getenv: func(string) string { return "" }})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

func (f *fleet) key(name string) *sign.Signer {
	f.t.Helper()
	if f.keys[name] == nil {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			f.t.Fatal(err)
		}
		hand, err := signature.LoadECDSASignerVerifier(private, 5)
		if err != nil {
			f.t.Fatal(err)
		}
		if f.keys[name], err = sign.NewKeySigner(hand, sign.Options{Name: name, Once: true}); err != nil {
			f.t.Fatal(err)
		}
	}
	return f.keys[name]
}

// rules are a policy in the making.
type rules struct {
	version   uint64
	release   string   // who must sign states
	roots     []string // who may sign the next version
	threshold int      // 0: 2
	revoked   []string
	expires   string
	window    map[string]string // by name: ", notAfter: …"
	more      string

	components string // who must sign components
}

func (f *fleet) document(r rules) string {
	f.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "version: %d\n", r.version)
	if r.expires != "" {
		fmt.Fprintf(&b, "expires: %s\n", r.expires)
	}
	b.WriteString("keys:\n")
	names := append([]string{r.release}, r.roots...)
	if r.components != "" {
		names = append(names, r.components)
	}
	for _, n := range names {
		pem, err := json.Marshal(string(f.key(n).PublicPEM()))
		if err != nil {
			f.t.Fatal(err)
		}
		fmt.Fprintf(&b, "  - {name: %s, pem: %s%s}\n", n, pem, r.window[n])
	}
	fmt.Fprintf(&b, "rules:\n  - {scope: %s/plant/**, signers: [%s]}\n", f.server.Host, r.release)
	if r.components != "" {
		fmt.Fprintf(&b, "  - {scope: %s/plant/components/**, artifacts: [component], signers: [%s]}\n", f.server.Host, r.components)
	}
	for i, n := range r.revoked {
		if i == 0 {
			b.WriteString("revoked:\n")
		}
		fmt.Fprintf(&b, "  - {key: %q, reason: stolen}\n", f.key(n).Key().Fingerprint)
	}
	if r.threshold == 0 {
		r.threshold = 2
	}
	fmt.Fprintf(&b, "trust:\n  repository: %s\n  signers: [%s]\n  threshold: %d\n%s", f.trust.Name(), strings.Join(r.roots, ", "), r.threshold, r.more)
	return b.String()
}

func (f *fleet) signatories(by []string) []trust.Signatory {
	var out []trust.Signatory
	for _, n := range by {
		out = append(out, f.key(n))
	}
	return out
}

// rotate publishes a version as people do.
func (f *fleet) rotate(r rules, by ...string) *trust.Proposal {
	f.t.Helper()
	p, err := trust.Propose(f.t.Context(), time.Now(), f.trust, nil, trust.Draft{Document: []byte(f.document(r))}, f.signatories(by)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// force puts a version under a tag as whoever can write to the registry does.
func (f *fleet) force(version uint64, document, tag string, by ...string) digest.Digest {
	f.t.Helper()
	a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: version, Policy: []byte(document)})
	if err != nil {
		f.t.Fatal(err)
	}
	d, err := release.Publish(f.t.Context(), f.trust, a, release.PublishOptions{Tags: []string{tag}})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, n := range by {
		if _, err := f.key(n).Sign(f.t.Context(), f.trust, d); err != nil {
			f.t.Fatal(err)
		}
	}
	return d.Digest
}

// release publishes a generation for a device: one service.
func (f *fleet) release(device string, generation uint64, by string) {
	f.t.Helper()
	image := f.server.Host + "/images/web:1"
	text := "services:\n  web:\n    image: " + image + "\n    labels: {generation: \"" + fmt.Sprint(generation) + "\"}\n"
	lock := &artifacts.Lock{Images: []artifacts.LockedImage{{
		Reference: image, Digest: f.image, Platforms: []artifacts.LockedPlatform{{Platform: "linux/amd64", Digest: f.image, Size: 1}},
	}}}
	version := fmt.Sprintf("1.0.%d", generation)
	c, err := artifacts.PackComponent(fstest.MapFS{"compose.yaml": {Data: []byte(text)}}, artifacts.ComponentOptions{Name: "web", Version: version, Lock: lock})
	if err != nil {
		f.t.Fatal(err)
	}
	components, err := f.client.OpenName(f.t.Context(), f.server.Host+"/plant/components/web")
	if err != nil {
		f.t.Fatal(err)
	}
	o := release.PublishOptions{Tags: []string{version}}
	if f.components != "" {
		o.Signer = releaser{f.key(f.components)}
	}
	d, err := release.Publish(f.t.Context(), components, c, o)
	if err != nil {
		f.t.Fatal(err)
	}
	deployment := fmt.Sprintf("id: 00000000-0000-4000-8000-000000000001\nmetadata: {name: web, namespace: plant, deviceId: %s}\nspec:\n  applicationId: web\n"+
		"  deploymentProfile:\n    type: compose\n    components:\n      - name: web\n        properties: {repository: \"oci://%s\", revision: %s}\n"+
		"        x-longshore-extensions: {digest: %q}\n  parameters: {}\n", device, components.Name(), version, d.Digest)
	s, err := artifacts.PackState(artifacts.StateOptions{Device: artifacts.DeviceID(device), Generation: generation, Deployments: [][]byte{[]byte(deployment)}})
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := release.Publish(f.t.Context(), f.states, s, release.PublishOptions{Signer: releaser{f.key(by)}, Tags: []string{device}}); err != nil {
		f.t.Fatal(err)
	}
}

type releaser struct{ *sign.Signer }

func (r releaser) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	_, err := r.Signer.Sign(ctx, repo, subject)
	return err
}

// box is a device: its folder, its containers, and an agent at times.
type box struct {
	f      *fleet
	name   string
	dir    string
	memory *runtimetest.Memory
	client *registry.Client
	commit func(after bool) error // of the store; nil: nothing
	skew   time.Duration          // of the device's clock; is set while the agent sleeps
	told   atomic.Int64           // reports that were delivered
	edit   func(*agent.Options)   // nil: nothing

	agent  *agent.Agent
	store  *store.Store
	cancel context.CancelFunc
	done   chan error
}

func (f *fleet) device(name, policy string) *box {
	f.t.Helper()
	b := &box{f: f, name: name, dir: f.t.TempDir(), memory: runtimetest.NewMemory(), client: f.client}
	b.memory.Now = time.Now
	b.write(policy)
	f.t.Cleanup(b.sleep)
	return b
}

// write gives the device its policy file by hand.
func (b *box) write(policy string) {
	b.f.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "trust.yaml"), []byte(policy), 0o600); err != nil {
		b.f.t.Fatal(err)
	}
}

// Deliver implements [outbox.Reporter]: a fleet endpoint that takes everything.
func (b *box) Deliver(context.Context, store.Report) (bool, error) {
	b.told.Add(1)
	return false, nil
}

// wake starts the agent, with the parts that the program puts together but for containerd.
func (b *box) wake() *box {
	b.f.t.Helper()
	var err error
	if b.store, err = store.Open(store.Options{Path: filepath.Join(b.dir, "agent.db"), Device: b.name, Commit: b.commit}); err != nil {
		b.f.t.Fatal(err)
	}
	content, err := registry.OpenLayout(filepath.Join(b.dir, "content"))
	if err != nil {
		b.f.t.Fatal(err)
	}
	file := filepath.Join(b.dir, "trust.yaml")
	start, skew := time.Now(), b.skew
	clk := clock.New(func() time.Time { return time.Now().Add(skew).Round(0) }, func() time.Duration { return time.Since(start) })
	policy := followPolicy(file, b.store, b.client, clk.Firm)
	held := &verifier{policy, b.client, clk.Firm, clk.Now}
	yes := true
	o := agent.Options{
		Device: artifacts.DeviceID(b.name), Repository: b.f.states.Name(), Platform: "linux/amd64", Interval: time.Hour,
		Capabilities: margo.DeviceCapabilities{Properties: margo.DeviceProperties{
			ID: b.name, Vendor: "v", ModelNumber: "m", SerialNumber: "s", CPUs: []margo.CPU{{Cores: 4, Architecture: "amd64"}},
			Memory: "8Gi", Storage: "32Gi", OTELCollector: &yes, SupportedRuntimes: []string{"oci"}, SupportedDeploymentTypes: []string{"compose"},
			Peripherals: []margo.Peripheral{}, Interfaces: []margo.Interface{{Type: "ethernet"}},
		}},
		Store: b.store, Source: b.client, Verifier: held, Fresher: held, Clock: clk, Content: content, Runtime: b.memory, Reporter: b,
		Trust: trustPort{policy, file, clk.Firm}, Fingerprint: policy.Fingerprint, Version: "0.0.0-test", Probation: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(b.f.t.Output(), nil)), Now: time.Now,
	}
	if b.edit != nil {
		b.edit(&o)
	}
	if b.agent, err = agent.New(o); err != nil {
		b.f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.f.t.Context()))
	b.cancel, b.done = cancel, make(chan error, 1)
	go func() { b.done <- b.agent.Run(ctx) }()
	return b
}

// sleep ends the agent; containers run on.
func (b *box) sleep() {
	if b.cancel == nil {
		return
	}
	b.cancel()
	if err := errors.Join(<-b.done, b.store.Close()); err != nil {
		b.f.t.Error(err)
	}
	b.cancel = nil
}

func (b *box) sync() status.SyncResult {
	b.f.t.Helper()
	ctx, cancel := context.WithTimeout(b.f.t.Context(), patience)
	defer cancel()
	r, err := b.agent.Sync(ctx)
	if err != nil {
		b.f.t.Fatalf("%s: sync: %v; status %+v", b.name, err, b.agent.Status())
	}
	return r
}

// at demands a version of the policy and a generation.
func (b *box) at(version, generation uint64) {
	b.f.t.Helper()
	s := b.agent.Status()
	if s.Trust == nil || s.Trust.Version != version || s.Committed == nil || s.Committed.Generation != generation {
		b.f.t.Errorf("%s: trust %+v, committed %+v, want version %d and generation %d; problems %+v", b.name, s.Trust, s.Committed, version, generation, s.Problems)
	}
}

// containers are what runs: nothing of it may change by a policy.
func (b *box) containers() map[string]workload.Observation {
	b.f.t.Helper()
	o, err := b.memory.Observe(b.f.t.Context())
	if err != nil {
		b.f.t.Fatal(err)
	}
	out := map[string]workload.Observation{}
	for _, c := range o.Containers {
		out[c.ID] = c
	}
	return out
}

func (b *box) untouched(before map[string]workload.Observation) {
	b.f.t.Helper()
	now := b.containers()
	if len(now) != len(before) || len(now) == 0 {
		b.f.t.Errorf("%s: %d containers, were %d", b.name, len(now), len(before))
	}
	for id, was := range before {
		if is := now[id]; is.PID != was.PID || is.Status != workload.Running || is.Run != was.Run {
			b.f.t.Errorf("%s: container %s was touched: %+v, was %+v", b.name, id, is, was)
		}
	}
}

func (b *box) problem(code codes.Code) *status.Problem {
	for _, p := range b.agent.Status().Problems {
		if p.Code == code {
			return &p
		}
	}
	return nil
}

// rotated is version n of a policy of which one signer leaves with each version, one comes, and the release key changes.
func rotated(n uint64) rules {
	r := rules{version: n, release: fmt.Sprint("release-", n), roots: []string{fmt.Sprint("root-", n), fmt.Sprint("root-", n+1), fmt.Sprint("root-", n+2)}}
	for old := uint64(1); old < n; old++ {
		r.revoked = append(r.revoked, fmt.Sprint("release-", old))
	}
	return r
}

// TestTwentyRotations: each version has another release key, revokes those before, and changes a signer. Devices sleep
// through some of them; what runs is left alone by each, and all end at the last version and the last generation.
func TestTwentyRotations(t *testing.T) {
	const last = 21
	f := newFleet(t, testenv.Referrers)
	first := f.document(rotated(1))
	devices := []*box{f.device("press-01", first), f.device("press-02", first), f.device("press-03", first)}
	for _, d := range devices {
		f.release(d.name, 1, "release-1")
		d.wake().sync()
		d.at(1, 1)
		d.sleep()
	}
	random := mathrand.New(mathrand.NewPCG(20, 4))
	slept := map[string]int{}
	for n := uint64(2); n <= last; n++ {
		if p := f.rotate(rotated(n), fmt.Sprint("root-", n), fmt.Sprint("root-", n+1)); n > 2 && (!p.Published || p.Old == nil) {
			t.Fatalf("version %d: %+v, waits for %s", n, p, p.Missing())
		}
		for i, d := range devices {
			if i == 2 || i == 1 && random.IntN(3) > 0 { // the third sleeps through all, the first through none
				slept[d.name]++
				continue
			}
			before := d.containers()
			d.wake().sync()
			d.untouched(before)
			d.at(n, d.agent.Status().Committed.Generation)
			if p := d.problem(codes.KeyRevoked); p == nil || !strings.Contains(p.Message, "release-") {
				t.Errorf("%s at version %d: what runs by a revoked key is not told: %+v", d.name, n, d.agent.Status().Problems)
			}
			f.release(d.name, n, fmt.Sprint("release-", n))
			if r := d.sync(); r.Outcome != status.SyncInstalled {
				t.Fatalf("%s: a generation by the new key: %+v", d.name, r)
			}
			d.at(n, n)
			if p := d.problem(codes.KeyRevoked); p != nil {
				t.Errorf("%s at version %d: told after it was replaced: %+v", d.name, n, p)
			}
			d.sleep()
		}
	}
	for _, d := range devices {
		if d.told.Load() == 0 { // what is reported is written while versions come in
			t.Errorf("%s reports nothing", d.name)
		}
	}
	t.Logf("versions slept through: %v of %d", slept, last-1)
	for _, d := range devices {
		f.release(d.name, last+1, fmt.Sprint("release-", last))
		d.wake().sync()
		d.at(last, last+1)
		d.sleep()
		d.wake().sync() // and again after a restart
		d.at(last, last+1)
		d.sleep()
	}
}

// TestLostKey: one of three signers is lost; the two others put another in its place, and what the lost one signs later
// counts for nothing.
func TestLostKey(t *testing.T) {
	f := newFleet(t, testenv.Distribution)
	one := rules{version: 1, release: "release", roots: []string{"root-1", "root-2", "lost"}}
	d := f.device("press-01", f.document(one))
	f.release(d.name, 1, "release")
	d.wake().sync()
	before := d.containers()
	f.rotate(one, "root-1", "root-2")
	two := rules{version: 2, release: "release", roots: []string{"root-1", "root-2", "root-4"}, revoked: []string{}}
	if p := f.rotate(two, "root-1"); p.Published || !strings.Contains(p.Missing(), "root-2") {
		t.Errorf("with one signature: %+v", p)
	}
	d.sync()
	d.at(1, 1)
	if p, err := trust.Endorse(t.Context(), time.Now(), f.trust, nil, "", f.key("root-2")); err != nil || !p.Published {
		t.Fatalf("with both: %+v, %v", p, err)
	}
	d.sync()
	d.at(2, 1)
	three := two
	three.version = 3
	f.force(3, f.document(three), "v3", "root-1", "lost")
	d.sync()
	d.at(2, 1)
	if p := d.problem(codes.TrustInvalid); p == nil || !strings.Contains(p.Message, "1 of 2") {
		t.Errorf("problems %+v", d.agent.Status().Problems)
	}
	d.untouched(before)
}

// TestRevokedKey: a state that the revoked key signed is refused by the right code, what runs is left alone; the next one by
// another key is taken.
func TestRevokedKey(t *testing.T) {
	f := newFleet(t, testenv.Distribution)
	one := rules{version: 1, release: "release", roots: []string{"root-1", "root-2"}}
	d := f.device("press-01", f.document(one))
	f.release(d.name, 1, "release")
	d.wake().sync()
	before := d.containers()
	two := rules{version: 2, release: "release-b", roots: one.roots, revoked: []string{"release"}, more: ""}
	document := strings.Replace(f.document(two), "signers: [release-b]}", "signers: [release, release-b]}", 1)
	pem, _ := json.Marshal(string(f.key("release").PublicPEM()))
	document = strings.Replace(document, "keys:\n", "keys:\n  - {name: release, pem: "+string(pem)+"}\n", 1)
	f.force(2, document, "v2", "root-1", "root-2")
	f.release(d.name, 2, "release") // the thief publishes
	r := d.sync()
	if r.Outcome != status.SyncRefused || r.Code != codes.KeyRevoked {
		t.Errorf("a state by the revoked key: %+v", r)
	}
	d.untouched(before)
	d.at(2, 1)
	told := 0
	for _, p := range d.agent.Status().Problems {
		if p.Code == codes.KeyRevoked && strings.Contains(p.Message, "stolen") {
			told++
		}
	}
	if told != 2 { // the refusal, and what runs
		t.Errorf("problems %+v", d.agent.Status().Problems)
	}
	d.sleep()
	if r := d.wake().sync(); r.Code != codes.KeyRevoked {
		t.Errorf("after a restart: %+v", r)
	}
	d.untouched(before)
	f.release(d.name, 3, "release-b")
	if r := d.sync(); r.Outcome != status.SyncInstalled || r.Generation != 3 {
		t.Errorf("a state by the other key: %+v", r)
	}
	if s := d.agent.Status(); len(s.Problems) != 0 {
		t.Errorf("problems left: %+v", s.Problems)
	}
}

// TestRollbackVerifiesAgain: a rollback by hand holds the signatures of the earlier generation against the policy of now, without the registry. A
// generation whose signer has left the policy is refused, although nothing was revoked.
func TestRollbackVerifiesAgain(t *testing.T) {
	f := newFleet(t, testenv.Distribution)
	one := rules{version: 1, release: "release-1", roots: []string{"root-1", "root-2"}}
	d := f.device("press-01", f.document(one))
	back := func() error {
		t.Helper()
		f.server.Down()
		defer func() {
			if err := f.server.Up(); err != nil {
				t.Fatal(err)
			}
		}()
		h, err := d.agent.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"})
		if err == nil && h.Generation != 1 {
			t.Errorf("the hold is %+v", h)
		}
		return err
	}
	d.wake()
	for g := uint64(1); g <= 2; g++ {
		f.release(d.name, g, "release-1")
		f.litter(f.current(d.name))
		d.sync()
		d.at(1, g)
	}
	d.sleep()
	d.wake()
	if err := back(); err != nil {
		t.Fatalf("back to what the policy accepts: %v", err)
	}
	testenv.Eventually(t, patience, "generation 1 is back", func() error {
		if s := d.agent.Status(); s.Phase != status.PhaseHeld || s.Committed.Generation != 1 {
			return fmt.Errorf("phase %s, committed %+v", s.Phase, s.Committed)
		}
		return nil
	})
	if _, err := d.agent.Release(t.Context(), "ana", "command"); err != nil {
		t.Fatal(err)
	}
	d.sync()
	d.at(1, 2)
	f.rotate(rules{version: 2, release: "release-2", roots: one.roots}, "root-1", "root-2")
	d.sync()
	before := d.containers()
	for range 2 {
		err := back()
		if !errors.Is(err, fault.ErrRejected) || !strings.Contains(fmt.Sprint(err), "generation 1") || !strings.Contains(fmt.Sprint(err), "sha256:") {
			t.Errorf("back to a generation whose signer has left: %v", err)
		}
		if s := d.agent.Status(); s.Hold != nil || s.Running.Generation != 2 {
			t.Errorf("held %+v, running %+v", s.Hold, s.Running)
		}
		d.untouched(before)
		d.sleep()
		d.wake().sync()
	}
	three := rules{version: 3, release: "release-1", roots: one.roots}
	f.rotate(three, "root-1", "root-2")
	d.sync()
	if err := back(); err != nil {
		t.Errorf("back to a signer who has come again: %v", err)
	}
}

// TestRollbackAfterAStateWasSignedAgain: a state that was signed again by a signer who counts now, when the device had accepted it already, can be
// gone back to.
func TestRollbackAfterAStateWasSignedAgain(t *testing.T) {
	f := newFleet(t, testenv.Distribution)
	one := rules{version: 1, release: "release-1", roots: []string{"root-1", "root-2"}}
	d := f.device("press-01", f.document(one)).wake()
	f.release(d.name, 1, "release-1")
	d.sync()
	d.at(1, 1)
	f.rotate(rules{version: 2, release: "release-2", roots: one.roots}, "root-1", "root-2")
	d.sync() // nobody has signed it again yet
	d.at(2, 1)
	if _, err := f.key("release-2").Sign(t.Context(), f.states, f.current(d.name)); err != nil {
		t.Fatal(err)
	}
	d.sync()
	f.release(d.name, 2, "release-2")
	d.sync()
	d.at(2, 2)
	f.server.Down()
	if _, err := d.agent.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); err != nil {
		t.Errorf("back to what was signed again: %v", err)
	}
}

// TestRollbackVerifiesComponents: also the signers of what a generation consists of are held against the policy of now.
func TestRollbackVerifiesComponents(t *testing.T) {
	f := newFleet(t, testenv.Distribution)
	f.components = "builder-1"
	one := rules{version: 1, release: "release", roots: []string{"root-1", "root-2"}, components: "builder-1"}
	d := f.device("press-01", f.document(one)).wake()
	for g := uint64(1); g <= 2; g++ {
		f.release(d.name, g, "release")
		d.sync()
		d.at(1, g)
	}
	two := one
	two.version, two.components = 2, "builder-2"
	f.rotate(two, "root-1", "root-2")
	d.sync()
	d.at(2, 2)
	if _, err := d.agent.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); !errors.Is(err, fault.ErrRejected) || !strings.Contains(fmt.Sprint(err), "/plant/components/web@") {
		t.Errorf("back to a component whose signer has left: %v", err)
	}
	three := one
	three.version = 3
	f.rotate(three, "root-1", "root-2")
	d.sync()
	d.at(3, 2)
	f.server.Down()
	if _, err := d.agent.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"}); err != nil {
		t.Errorf("back to a signer who has come again: %v", err)
	}
}

// litter puts bundles beside an artifact, as whoever can write to the registry does.
func (f *fleet) litter(subject ocispec.Descriptor) {
	f.t.Helper()
	for i := range 12 {
		data := append(bytes.Repeat([]byte("x"), 60<<10), fmt.Sprint(i)...)
		layer := ocispec.Descriptor{MediaType: signing.MediaTypeBundle, Digest: digest.FromBytes(data), Size: int64(len(data))}
		manifest, err := json.Marshal(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: signing.MediaTypeBundle,
			Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{layer}, Subject: &ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
			Annotations: map[string]string{signing.AnnotationPredicateType: signing.PredicateSign, ocispec.AnnotationCreated: "2099-01-01T00:00:00Z"},
		})
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest)), ArtifactType: signing.MediaTypeBundle}
		if err := errors.Join(err, f.states.PushBlob(f.t.Context(), ocispec.DescriptorEmptyJSON, []byte("{}")), f.states.PushBlob(f.t.Context(), layer, data), f.states.PushReferrer(f.t.Context(), d, manifest)); err != nil {
			f.t.Fatal(err)
		}
	}
}

// TestBadPolicies: what may be found under the tag of the next version. None is taken, none touches what runs, none keeps the
// device from its next state, and a good one after it is taken.
func TestBadPolicies(t *testing.T) {
	roots := []string{"root-1", "root-2"}
	past := ", notAfter: 2020-01-01T00:00:00Z"
	for _, tc := range []struct {
		name string
		code codes.Code // "": it is taken
		do   func(f *fleet, next rules)
	}{
		{"rollback of the tag", codes.TrustRollback, func(f *fleet, next rules) {
			next.version = 2
			f.force(2, f.document(next), "v3", roots...)
		}},
		{"skipped version", codes.TrustInvalid, func(f *fleet, next rules) {
			next.version = 4
			f.force(4, f.document(next), "v3", roots...)
		}},
		{"signed by the old only", codes.TrustInvalid, func(f *fleet, next rules) {
			next.roots = []string{"root-8", "root-9"}
			f.force(3, f.document(next), "v3", roots...)
		}},
		{"signed by the new only", codes.TrustInvalid, func(f *fleet, next rules) {
			next.roots = []string{"root-8", "root-9"}
			f.force(3, f.document(next), "v3", next.roots...)
		}},
		{"unsigned", codes.TrustInvalid, func(f *fleet, next rules) { f.force(3, f.document(next), "v3") }},
		{"locks itself out", codes.TrustUnusable, func(f *fleet, next rules) {
			next.window = map[string]string{"root-1": past, "root-2": past}
			next.roots = []string{"root-1", "root-2", "root-3"}
			f.force(3, f.document(next), "v3", "root-1", "root-2", "root-3")
		}},
		{"rejects itself", codes.TrustInvalid, func(f *fleet, next rules) {
			document := strings.Replace(f.document(next), "rules:\n", "rules:\n  - {scope: \"**\", artifacts: [trust], reject: true}\n", 1)
			f.force(3, document, "v3", roots...)
		}},
		{"expired", "", func(f *fleet, next rules) {
			next.expires = "2020-01-01T00:00:00Z"
			f.force(3, f.document(next), "v3", roots...)
		}},
		{"truncated", codes.TrustInvalid, func(f *fleet, next rules) {
			text := f.document(next)
			f.force(3, text[:len(text)/2], "v3", roots...)
		}},
		{"10 MB", codes.TrustInvalid, func(f *fleet, _ rules) {
			a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: 3, Policy: []byte("x")})
			if err != nil {
				f.t.Fatal(err)
			}
			big := artifacts.Blob{Data: make([]byte, 10<<20)}
			big.Descriptor = ocispec.Descriptor{MediaType: artifacts.TypeTrust, Digest: digest.FromBytes(big.Data), Size: int64(len(big.Data))}
			small := a.Blobs[1].Descriptor
			a.Manifest = []byte(strings.Replace(string(a.Manifest), fmt.Sprintf(`"digest":%q,"size":1,`, small.Digest), fmt.Sprintf(`"digest":%q,"size":%d,`, big.Descriptor.Digest, big.Descriptor.Size), 1))
			a.Blobs[1] = big
			a.Descriptor.Digest, a.Descriptor.Size = digest.FromBytes(a.Manifest), int64(len(a.Manifest))
			d, err := release.Publish(f.t.Context(), f.trust, a, release.PublishOptions{Tags: []string{"v3"}})
			if err != nil {
				f.t.Fatal(err)
			}
			for _, n := range roots {
				if _, err := f.key(n).Sign(f.t.Context(), f.trust, d); err != nil {
					f.t.Fatal(err)
				}
			}
		}},
		{"the registry does not answer", codes.TrustUnreachable, func(f *fleet, _ rules) {
			f.server.Faults.Add(testenv.Rule{Path: "/plant/trust/", Effect: testenv.Status(503, 0)})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFleet(t, testenv.Referrers)
			one := rules{version: 1, release: "release", roots: roots}
			two := one
			two.version = 2
			d := f.device("press-01", f.document(one))
			f.force(2, f.document(two), "v2", roots...)
			f.release(d.name, 1, "release")
			d.wake().sync()
			d.at(2, 1)
			before := d.containers()
			next := one
			next.version = 3
			tc.do(f, next)
			want := uint64(2)
			if tc.code == "" {
				want = 3
			}
			for range 2 {
				d.sync()
				d.at(want, 1)
				d.untouched(before)
				if p := d.problem(tc.code); tc.code != "" && (p == nil || p.Hint == "") {
					t.Fatalf("problems %+v, want %s", d.agent.Status().Problems, tc.code)
				}
				if p := d.problem(codes.TrustExpired); (p != nil) != (tc.code == "") {
					t.Errorf("expired: %+v", p)
				}
				d.sleep()
				d.wake()
			}
			f.release(d.name, 2, "release")
			if r := d.sync(); r.Outcome != status.SyncInstalled {
				t.Errorf("the next state: %+v", r)
			}
			f.server.Faults.Clear()
			if tc.code == "" {
				return
			}
			next.more = "# repaired\n"
			f.force(3, f.document(next), "v3", roots...)
			d.sync()
			d.at(3, 2)
			if s := d.agent.Status(); len(s.Problems) != 0 {
				t.Errorf("problems left: %+v", s.Problems)
			}
		})
	}
}

// TestPolicySurvivesPowerCuts: whenever the agent dies around the writing of a version, the next one has that version or
// the one before, and goes on.
func TestPolicySurvivesPowerCuts(t *testing.T) {
	f := newFleet(t, testenv.Referrers)
	one := rules{version: 1, release: "release", roots: []string{"root-1", "root-2"}}
	d := f.device("press-01", f.document(one))
	f.release(d.name, 1, "release")
	d.wake().sync()
	d.sleep()
	before := d.containers()
	dead := errors.New("power cut")
	for n := uint64(2); n <= 9; n++ {
		next := one
		next.version = n
		f.force(n, f.document(next), fmt.Sprint("v", n), "root-1", "root-2")
		var mu sync.Mutex
		commits, cut := 0, int(n)%4 // before and after the first and the second commit
		d.commit = func(after bool) error {
			mu.Lock()
			defer mu.Unlock()
			if commits++; commits > cut {
				return dead
			}
			return nil
		}
		d.wake()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, _ = d.agent.Sync(ctx) // it cannot end well: nothing can be written
		cancel()
		d.sleep()
		d.commit = nil
		st, err := store.Open(store.Options{Path: filepath.Join(d.dir, "agent.db"), Device: d.name})
		if err != nil {
			t.Fatal(err)
		}
		p, err := followPolicy(filepath.Join(d.dir, "trust.yaml"), st, f.client, time.Now).Policy()
		if err != nil || p.Version != n && p.Version != n-1 {
			t.Errorf("after the cut: %+v, %v, want version %d or %d", p, err, n-1, n)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		d.wake().sync()
		d.at(n, 1)
		d.sleep()
	}
	d.untouched(before)
}

// TestPolicyComesThroughMirrors: policies are fetched as everything else is, mirrors first.
func TestPolicyComesThroughMirrors(t *testing.T) {
	f := newFleet(t, testenv.Referrers)
	const name = "harbor.acme.example"
	origin, certs := testenv.Registry(t, testenv.Referrers), t.TempDir()
	hosts := fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", origin.URL, f.server.URL)
	if err := errors.Join(os.MkdirAll(filepath.Join(certs, name), 0o755), os.WriteFile(filepath.Join(certs, name, "hosts.toml"), []byte(hosts), 0o600)); err != nil {
		t.Fatal(err)
	}
	roots := []string{"root-1", "root-2"}
	document := func(version uint64) string {
		text := f.document(rules{version: version, release: "release", roots: roots})
		return strings.ReplaceAll(text, f.trust.Name(), name+"/plant/trust")
	}
	d := f.device("press-01", document(1))
	d.client = f.newClient(certs)
	f.force(2, document(2), "v2", roots...)
	f.force(3, document(3), "v3", roots...)
	f.release(d.name, 1, "release")
	d.wake().sync()
	d.at(3, 1)
	if len(f.server.Faults.Requests("", "/plant/trust/manifests/v2")) == 0 {
		t.Error("the mirror was not asked")
	}
	if sent := origin.Faults.Requests("GET", "/plant/trust/blobs"); len(sent) != 0 {
		t.Errorf("the registry itself was asked for %v", sent)
	}
}
