package agenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/testenv"
	foreign "github.com/longshore-dev/longshore/testenv/manager"
)

// Names of the world.
const (
	Device     = artifacts.DeviceID("press-07")
	Repository = "registry.example/plant/state"
	components = "registry.example/plant/components/"
	platform   = "linux/amd64"
)

// pause is the time between two looks at something that is waited for.
const pause = 20 * time.Millisecond

// Image is a container image that a scenario's service runs.
type Image struct {
	Reference string        // as compose.yaml names it: "host/repo:tag"
	Digest    digest.Digest // what the lock pins it to
	Platform  string        // that the lock lists; "": linux/amd64
}

// Env is what a scenario needs beside the world: a runtime and images for it.
type Env struct {
	// Runtime opens the device's runtime, again for each agent. Containers outlive it.
	Runtime func(t *testing.T) agent.Runtime
	// Image is the image behind a name: "web:1", "web:2", "broker:1", "sensor:1". Its default command runs until stopped.
	// Without a Reference the scenario is skipped, or fails where TESTENV_REQUIRE=1 demands everything.
	Image func(name string) Image
	// WriteVolume puts a file with content into a volume, ReadVolume reads it; nil: volumes are not looked at.
	WriteVolume func(t *testing.T, project, volume, content string)
	ReadVolume  func(t *testing.T, project, volume string) string
	// Exit ends a running container's process with code 1; nil: such scenarios are skipped.
	Exit func(t *testing.T, id string)
	// Reboot ends all processes as a reboot does; nil: such scenarios are skipped.
	Reboot func(t *testing.T)
	// Now is the device's clock; needed.
	Now func() time.Time
	// Platform of the device; "": linux/amd64.
	Platform string
	// Patience is how long a scenario waits for anything; 0: 30 s.
	Patience time.Duration
}

// World is one device and all that it talks to.
type World struct {
	Env
	Registry *Registry
	Verifier *Verifier
	Content  *Content
	Fleet    *Fleet
	Pulse    *Pulse
	Manager  *foreign.Manager // says which state is the current one; nil: the tag does. See [World.Manage]
	SignedIn string           // with Manager: the repository of signed states; "": they are not signed
	Path     string           // of agent.db
	Log      *slog.Logger
	Edit     func(*agent.Options)
	Prepare  func(*store.Store) // is called with each agent's store before the agent runs
	Replace  bool               // a damaged agent.db is replaced, as the program does
	Carries  bool               // states carry their deployments in their manifest, as small ones do; false: as in large ones, they are blobs

	// Commit is called before and after each write of an agent that nothing kills, as that of [store.Options]; nil: never.
	Commit func(after bool) error

	client   *manager.Client // of Manager
	policy   atomic.Value    // string
	observer agent.Runtime
}

// NewWorld makes a world where nothing is published.
func NewWorld(t *testing.T, e Env) *World {
	t.Helper()
	if e.Patience == 0 {
		e.Patience = 30 * time.Second
	}
	if e.Platform == "" {
		e.Platform = platform
	}
	image := e.Image
	e.Image = func(name string) Image {
		t.Helper()
		img := image(name)
		if img.Reference == "" {
			testenv.Unavailable(t, "there is no image %s here", name)
		}
		return img
	}
	return &World{
		Env: e, Registry: NewRegistry(), Verifier: &Verifier{}, Content: NewContent(), Fleet: &Fleet{}, Pulse: &Pulse{},
		Path: filepath.Join(t.TempDir(), "agent.db"), Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// SetPolicy changes the fingerprint of the policy.
func (w *World) SetPolicy(p string) { w.policy.Store(p) }

// Options are an agent's options in this world, without the store.
func (w *World) Options(t *testing.T) agent.Options {
	yes := true
	o := agent.Options{
		Device: Device, Repository: Repository, Platform: w.Platform, Interval: time.Minute,
		Capabilities: margo.DeviceCapabilities{Properties: margo.DeviceProperties{
			ID: string(Device), Vendor: "v", ModelNumber: "m", SerialNumber: "s", CPUs: []margo.CPU{{Cores: 4, Architecture: "amd64"}},
			Memory: "8Gi", Storage: "32Gi", OTELCollector: &yes, SupportedRuntimes: []string{"oci"}, SupportedDeploymentTypes: []string{"compose"},
			Peripherals: []margo.Peripheral{}, Interfaces: []margo.Interface{{Type: "ethernet"}},
		}},
		Source: w.Registry, Verifier: w.Verifier, Fresher: w.Pulse, Content: w.Content.Reopen(), Reporter: w.Fleet, Runtime: w.Runtime(t),
		Fingerprint: func() string { p, _ := w.policy.Load().(string); return p }, Version: "0.0.0-test", Probation: 300 * time.Millisecond, Logger: w.Log, Now: w.Now,
	}
	if w.Edit != nil {
		w.Edit(&o)
	}
	return o
}

type Running struct {
	*agent.Agent
	store  *store.Store
	cancel context.CancelFunc
	done   chan error
	asking sync.WaitGroup // see StartToDie
}

// Start runs an agent until Stop, or the end of the test.
func (w *World) Start(t *testing.T) *Running {
	t.Helper()
	return w.start(t, w.Commit, func(o agent.Options, _ context.CancelFunc) agent.Options { return o })
}

// start runs an agent whose options wrap changes last; commit is that of its store.
func (w *World) start(t *testing.T, commit func(after bool) error, wrap func(agent.Options, context.CancelFunc) agent.Options) *Running {
	t.Helper()
	o := w.Options(t)
	so := store.Options{Path: w.Path, Device: string(o.Device), Commit: commit}
	if w.Replace {
		so.Replace = time.Now
	}
	st, err := store.Open(so)
	if err != nil {
		t.Fatal(err)
	}
	if w.Managed() {
		source := w.source(st)
		o.Repository, o.Manager, o.Source = source.Repository(), ManagerURL, source
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	o = wrap(o, cancel)
	o.Store = st
	if w.Prepare != nil {
		w.Prepare(st)
	}
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &Running{Agent: a, store: st, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- a.Run(ctx) }()
	t.Cleanup(func() { r.Stop(t) })
	return r
}

// Stop ends the agent and closes its store, and waits for both. It may be called again.
func (r *Running) Stop(t *testing.T) {
	t.Helper()
	r.cancel()
	err, ok := <-r.done
	if !ok {
		return
	}
	close(r.done)
	r.asking.Wait()
	if err = errors.Join(err, r.store.Close()); err != nil {
		t.Errorf("agent: %v", err)
	}
}

// App is an application that a scenario publishes.
type App struct {
	ID         int // number; the deployment's id is a UUID made of it
	Name       string
	Components []Comp
	Parameters string // YAML under "parameters:", indented by four; "": none
	Extra      string // YAML lines under "deploymentProfile:", indented by four
	DeviceID   string // "": this device
	Type       string // "": compose
}

type Comp struct {
	Name     string
	Version  string // "": 1.0.0
	Services []Service
	Compose  string                       // compose.yaml as a whole, in place of Services, which then only name the images of the lock
	Files    fstest.MapFS                 // further files of the archive
	Extra    string                       // YAML lines under "properties:", indented by ten
	Unpinned bool                         // named by tag only
	NoLock   bool                         // images named by tag only
	Forge    func(manifest []byte) []byte // what becomes of the manifest before it is pushed; nil: nothing
}

// Large are files with which a component's archive is too large for its manifest, and is fetched by itself.
func Large() fstest.MapFS {
	noise := make([]byte, 32<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // never fails
	return fstest.MapFS{"noise": {Data: noise}}
}

// Service is one service of a component's project.
type Service struct {
	Name  string
	Image string // for Env.Image
	Extra string // YAML lines under the service, indented by four
}

// DeploymentID is the id of an app's deployment.
func (a App) DeploymentID() string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", a.ID) }

// Project is the name of the project of an app's component.
func (a App) Project(component string) string {
	return workload.ProjectName(a.DeploymentID(), component)
}

// compose writes a component's compose.yaml and its lock.
func (w *World) compose(c Comp) (string, *artifacts.Lock) {
	lock := &artifacts.Lock{}
	var b strings.Builder
	b.WriteString("services:\n")
	if len(c.Services) == 0 {
		b.Reset()
		b.WriteString("services: {}\n")
	}
	volumes := map[string]bool{}
	seen := map[string]bool{}
	for _, s := range c.Services {
		img := w.Image(s.Image)
		fmt.Fprintf(&b, "  %s:\n    image: %s\n    stop_grace_period: 200ms\n", s.Name, img.Reference)
		b.WriteString(s.Extra)
		if _, after, ok := strings.Cut(s.Extra, "- data"); ok && strings.HasPrefix(after, ":") {
			volumes["data"] = true
		}
		if p := img.Platform; !seen[img.Reference] {
			if p == "" {
				p = w.Platform
			}
			seen[img.Reference] = true
			lock.Images = append(lock.Images, artifacts.LockedImage{
				Reference: img.Reference, Digest: img.Digest,
				Platforms: []artifacts.LockedPlatform{{Platform: p, Digest: img.Digest, Size: 1000}},
			})
		}
	}
	for v := range volumes {
		fmt.Fprintf(&b, "volumes:\n  %s: {}\n", v)
	}
	if c.Compose != "" {
		return c.Compose, lock
	}
	return b.String(), lock
}

// Component packs and pushes a component and returns its manifest's digest.
func (w *World) Component(t *testing.T, c Comp) digest.Digest {
	t.Helper()
	text, lock := w.compose(c)
	if c.NoLock {
		lock = nil
	}
	files := maps.Clone(c.Files)
	if files == nil {
		files = fstest.MapFS{}
	}
	files["compose.yaml"] = &fstest.MapFile{Data: []byte(text)}
	a, err := artifacts.PackComponent(files, artifacts.ComponentOptions{
		Name: c.Name, Version: c.version(), Lock: lock,
	})
	if err != nil {
		t.Fatalf("pack component %s: %v\n%s", c.Name, err, text)
	}
	if c.Forge != nil {
		a.Manifest = c.Forge(a.Manifest)
		a.Descriptor.Digest, a.Descriptor.Size = digest.FromBytes(a.Manifest), int64(len(a.Manifest))
	}
	w.Registry.Push(components+c.Name, a, c.version())
	return a.Descriptor.Digest
}

func (c Comp) version() string {
	if c.Version == "" {
		return "1.0.0"
	}
	return c.Version
}

// Deployment writes an app's ApplicationDeployment, its components pushed and pinned.
func (w *World) Deployment(t *testing.T, a App) []byte {
	t.Helper()
	device, kind := a.DeviceID, a.Type
	if device == "" {
		device = string(Device)
	}
	if kind == "" {
		kind = "compose"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "id: %s\nmetadata:\n  name: %s\n  namespace: plant\n  deviceId: %s\nspec:\n  applicationId: %s\n", a.DeploymentID(), a.Name, device, a.Name)
	fmt.Fprintf(&b, "  deploymentProfile:\n    type: %s\n%s    components:\n", kind, a.Extra)
	for _, c := range a.Components {
		d := w.Component(t, c)
		fmt.Fprintf(&b, "      - name: %s\n        properties:\n          repository: oci://%s%s\n          revision: %s\n%s", c.Name, components, c.Name, c.version(), c.Extra)
		if !c.Unpinned {
			fmt.Fprintf(&b, "        x-longshore-extensions:\n          digest: %q\n", d)
		}
	}
	if a.Parameters == "" {
		b.WriteString("  parameters: {}\n")
	} else {
		b.WriteString("  parameters:\n" + a.Parameters)
	}
	return []byte(b.String())
}

// State packs a state. edit may be nil.
func (w *World) State(t *testing.T, generation uint64, edit func(*artifacts.StateOptions), apps ...App) *artifacts.Artifact {
	t.Helper()
	o := artifacts.StateOptions{Device: Device, Generation: generation}
	for _, a := range apps {
		o.Deployments = append(o.Deployments, w.Deployment(t, a))
	}
	if edit != nil {
		edit(&o)
	}
	s, err := artifacts.PackState(o)
	if err != nil {
		t.Fatalf("pack state: %v", err)
	}
	if i := bytes.Index(s.Manifest, []byte(artifacts.TypeDeployment)); i >= 0 && !w.Carries {
		s.Manifest = append(s.Manifest[:i:i], carried.ReplaceAll(s.Manifest[i:], nil)...)
		s.Descriptor.Digest, s.Descriptor.Size = digest.FromBytes(s.Manifest), int64(len(s.Manifest))
	}
	return s
}

// carried is content in a descriptor.
var carried = regexp.MustCompile(`,"data":"[^"]*"`)

// Publish packs, signs and offers a state.
func (w *World) Publish(t *testing.T, generation uint64, apps ...App) digest.Digest {
	t.Helper()
	s := w.State(t, generation, nil, apps...)
	d := w.Offer(t, s)
	w.Verifier.Sign(d)
	return d
}

// Offer has the tag, or the manager, name a state, and returns the digest by which the device knows it. A manager names the content
// of a state: its own State Manifest, which the policy of this world lets pass once it is signed, too.
func (w *World) Offer(t *testing.T, s *artifacts.Artifact) digest.Digest {
	t.Helper()
	if w.Managed() && w.SignedIn == "" {
		return w.serve(t, s)
	}
	w.Registry.Push(Repository, s, Device.Tag())
	if w.Managed() {
		w.serve(t, s)
	}
	return s.Descriptor.Digest
}

// Wait polls until ok. In a bubble of testing/synctest the pauses take no time.
func (w *World) Wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for waited := time.Duration(0); waited < w.Patience; waited += pause {
		if ok() {
			return
		}
		time.Sleep(pause)
	}
	t.Fatalf("waited %v for: %s", w.Patience, what)
}

// Committed waits until a generation runs completely.
func (w *World) Committed(t *testing.T, r *Running, generation uint64) {
	t.Helper()
	for waited := time.Duration(0); waited < w.Patience; waited += pause {
		if s := r.Status(); s.Committed != nil && s.Committed.Generation == generation && s.Phase == status.PhaseInSync && !s.Checking {
			return
		}
		time.Sleep(pause)
	}
	b, _ := json.MarshalIndent(r.Status(), "", "  ") // plain values
	t.Fatalf("waited %v for generation %d; status %s", w.Patience, generation, b)
}

// Sync asks for a check and waits for its outcome.
func (w *World) Sync(t *testing.T, r *Running) status.SyncResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), w.Patience)
	defer cancel()
	res, err := r.Sync(ctx)
	if err != nil {
		b, _ := json.MarshalIndent(r.Status(), "", "  ") // plain values
		t.Fatalf("sync: %v; status %s", err, b)
	}
	return res
}

// Observe lists the device's containers by "component/service", and "component/service/2" for further replicas. Where one replaces another, it
// has the one that runs.
func (w *World) Observe(t *testing.T) map[string]workload.Observation {
	t.Helper()
	if w.observer == nil {
		w.observer = w.Runtime(t)
	}
	o, err := w.observer.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]workload.Observation{}
	for _, c := range o.Containers {
		name := c.Component + "/" + c.Service
		if c.Replica > 1 {
			name += fmt.Sprint("/", c.Replica)
		}
		if old, ok := out[name]; ok && c.Status != workload.Running {
			continue
		} else if ok && old.Status == workload.Running {
			t.Errorf("two containers of %s run: %v", name, o.Containers)
		}
		out[name] = c
	}
	return out
}

// States are the states that the fleet endpoint was told of a deployment, "state@generation", in order; the same twice in
// a row counts once.
func (w *World) States(t *testing.T, deployment string) []string {
	t.Helper()
	var out []string
	last := uint64(0)
	for _, r := range w.Fleet.Reports() {
		if r.Sequence < last {
			t.Errorf("report %d came after %d", r.Sequence, last)
		}
		last = r.Sequence
		if r.Kind != store.KindStatus || r.Subject != deployment {
			continue
		}
		s, err := margo.ParseDeploymentStatus("report", r.Body)
		if err != nil {
			t.Fatalf("report %d: %v", r.Sequence, err)
		}
		if s.DeviceID != string(Device) || s.DeploymentID != deployment {
			t.Errorf("report %d is about %s on %s", r.Sequence, s.DeploymentID, s.DeviceID)
		}
		x := fmt.Sprintf("%s@%d", s.Status.State, s.AdoptedManifestVersion)
		if len(out) == 0 || out[len(out)-1] != x {
			out = append(out, x)
		}
	}
	return out
}

// Extra is what the newest capabilities report tells beyond Margo.
func (w *World) Extra(t *testing.T) status.Extra {
	t.Helper()
	var x struct {
		Extra status.Extra `json:"x-longshore-extensions"`
	}
	for _, r := range w.Fleet.Reports() {
		if r.Kind != store.KindCapabilities {
			continue
		}
		if _, err := margo.ParseDeviceCapabilities("report", r.Body); err != nil {
			t.Fatalf("report %d: %v\n%s", r.Sequence, err, r.Body)
		}
		x.Extra = status.Extra{}
		if err := json.Unmarshal(r.Body, &x); err != nil {
			t.Fatal(err)
		}
	}
	return x.Extra
}

// Same wants the containers to be exactly those of before: the same, running, the same processes.
func (w *World) Same(t *testing.T, before map[string]workload.Observation) {
	t.Helper()
	ignore := cmp.FilterPath(func(p cmp.Path) bool { return strings.HasSuffix(p.String(), "At") }, cmp.Ignore())
	if diff := cmp.Diff(before, w.Observe(t), ignore); diff != "" {
		t.Errorf("containers (-before +after):\n%s", diff)
	}
}
