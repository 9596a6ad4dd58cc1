package agenttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// real is the containerd, the registry and the images that the tests of this file share; each device has networks, a
// namespace and directories of its own.
type real struct {
	daemon *testenv.Daemon
	reg    *testenv.RegistryServer
	store  string // the registry's folder
	mu     sync.Mutex
	base   v1.Image // what all images are, but for their command
	images map[string]agenttest.Image
}

// atOnce is how many devices live at a time. They mostly wait for containers and disks, so more than there are processors.
const atOnce = 4

var devices atomic.Int32 // numbers the tables, pools and namespaces of this process

func newReal(t *testing.T) *real {
	t.Helper()
	return newRealOn(t, testenv.Containerd(t))
}

func newRealOn(t *testing.T, d *testenv.Daemon) *real {
	t.Helper()
	store := t.TempDir()
	return &real{daemon: d, store: store, reg: testenv.Registry(t, testenv.Distribution, testenv.WithStorage(store)), images: map[string]agenttest.Image{}}
}

// image pushes an image that runs until it is stopped; each name has a digest of its own.
func (r *real) image(t *testing.T, name string) agenttest.Image {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if img, ok := r.images[name]; ok {
		return img
	}
	if name == "missing:1" {
		return agenttest.Image{Reference: r.reg.Host + "/plant/missing:1", Digest: digest.FromString(name), Platform: testenv.HostPlatform()}
	}
	if r.base == nil {
		var err error
		if r.base, err = testenv.SoftwareImage(t.Context(), os.Stderr, "toolbox", testenv.HostPlatform()); err != nil {
			testenv.Unavailable(t, "%v", err)
		}
	}
	f, err := r.base.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	f = f.DeepCopy()
	f.Config.Cmd = []string{"serve", "8080", name}
	img, err := mutate.ConfigFile(r.base, f)
	if err != nil {
		t.Fatal(err)
	}
	img, after := r.spoil(t, name, img)
	out := r.push(t, name, img)
	after()
	if name == "foreign:1" {
		out.Platform = "linux/riscv64"
	}
	r.images[name] = out
	return out
}

// spoil gives an image the layer that its name promises; after is to be called when it is pushed.
func (r *real) spoil(t *testing.T, name string, img v1.Image) (_ v1.Image, after func()) {
	t.Helper()
	var data []byte
	after = func() {}
	switch name {
	default:
		return img, after
	case "grown:2": // needs room
		data = make([]byte, 2<<20)
		_, _ = rand.NewChaCha8([32]byte{}).Read(data) // does not fail
		img, err := testenv.AppendLayers(img, []testenv.File{{Path: "grown", Data: data}})
		if err != nil {
			t.Fatal(err)
		}
		return img, after
	case "tampered:1", "broken:1":
		data = []byte("a layer that is no archive: " + name)
	case "huge:1":
		data = make([]byte, 2*smallDisk)
		data[0] = 1
	}
	layer := static.NewLayer(data, types.OCIUncompressedLayer)
	d, err := layer.Digest()
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	if name == "tampered:1" {
		after = func() { // the registry does not look at what it keeps
			file := filepath.Join(r.store, "docker", "registry", "v2", "blobs", "sha256", d.Hex[:2], d.Hex, "data")
			if err := os.WriteFile(file, bytes.ToUpper(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return img, after
}

func (r *real) push(t *testing.T, name string, img v1.Image) agenttest.Image {
	t.Helper()
	p, err := r.reg.Push(t.Context(), "plant/"+name, img)
	if err != nil {
		t.Fatal(err)
	}
	return agenttest.Image{Reference: p.Repository + ":" + p.Tag, Digest: digest.Digest(p.Digest), Platform: testenv.HostPlatform()}
}

// device is one device on a containerd that others may share.
type device struct {
	o    containerd.Options
	n    network.Options
	nets *network.Manager
}

// device makes an empty device; netns is the namespace that plays the host, "" for this machine's.
func (r *real) device(t *testing.T, netns string) *device {
	t.Helper()
	n := devices.Add(1)
	data := t.TempDir()
	d := &device{
		n: network.Options{
			Store: testenv.NetworkState(filepath.Join(data, "networks")), DataDir: data, RunDir: t.TempDir(), NetNS: netns,
			Pool:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + n%60), 0, 0}), 16),
			Table: fmt.Sprintf("lsag%d_%d", os.Getpid(), n),
		},
		o: containerd.Options{
			Address: r.daemon.Address, Namespace: fmt.Sprintf("%s-%d", r.daemon.Namespace, n), Device: string(agenttest.Device),
			DataDir: t.TempDir(), RunDir: t.TempDir(), Journal: new(testenv.Journal), Now: time.Now,
			AllowNoSeccomp: true,
			Endpoints:      plainEndpoints(t),
		},
	}
	d.boot(t)
	t.Cleanup(func() {
		rt, err := containerd.New(context.Background(), d.o)
		if err != nil {
			t.Error(err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(empty(ctx, rt), rt.Close(), d.nets.Close()); err != nil {
			t.Errorf("empty the device: %v", err)
		}
	})
	return d
}

// boot brings the networks up, as the agent's program does first.
func (d *device) boot(t *testing.T) {
	t.Helper()
	var err error
	if d.nets, err = network.Open(d.n); err != nil {
		t.Fatal(err)
	}
	if err := d.nets.Restore(t.Context()); err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	d.o.Networks = d.nets
}

// open opens the device's runtime, anew for every agent.
func (d *device) open(t *testing.T) agent.Runtime {
	t.Helper()
	rt, err := containerd.New(t.Context(), d.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Close() }) // the device is emptied by another one
	return rt
}

// plainEndpoints finds registries without credentials.
func plainEndpoints(t *testing.T) func(repository string) ([]images.Endpoint, error) {
	t.Helper()
	client, err := registry.New(registry.Options{RetryBudget: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return images.EndpointsOf(client.Endpoints)
}

// empty removes everything.
func empty(ctx context.Context, rt agent.Runtime) error {
	o, err := rt.Observe(ctx)
	for _, c := range o.Containers {
		err = errors.Join(err, rt.Remove(ctx, c.ID))
	}
	for _, p := range o.Projects {
		err = errors.Join(err, rt.Teardown(ctx, p))
	}
	return errors.Join(err, rt.Collect(ctx, nil))
}

func (r *real) env(t *testing.T) agenttest.Env {
	t.Helper()
	return r.envOf(t, r.device(t, ""))
}

func (r *real) envOf(t *testing.T, d *device) agenttest.Env {
	t.Helper()
	volume := func(project, name string) string {
		return filepath.Join(d.o.DataDir, "volumes", project, name, "_data", "marker")
	}
	return agenttest.Env{
		Runtime: d.open, Now: time.Now, Platform: testenv.HostPlatform(), Patience: 2 * time.Minute,
		Image: func(name string) agenttest.Image { return r.image(t, name) },
		WriteVolume: func(t *testing.T, project, name, content string) {
			t.Helper()
			if err := os.WriteFile(volume(project, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		ReadVolume: func(t *testing.T, project, name string) string {
			t.Helper()
			b, err := os.ReadFile(volume(project, name))
			if err != nil {
				t.Error(err)
			}
			return string(b)
		},
		Exit: func(t *testing.T, id string) {
			t.Helper()
			seen, err := d.open(t).Observe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range seen.Containers {
				if c.ID == id {
					if err := syscall.Kill(int(c.PID), syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
	}
}

func TestContainerdScenarios(t *testing.T) {
	r := newReal(t)
	agenttest.Run(t, agenttest.Setup{Parallel: atOnce, Open: func(t *testing.T) agenttest.Env {
		if strings.HasSuffix(t.Name(), "/reboot") {
			return rebooting(t)
		}
		return r.env(t)
	}})
}

func TestContainerdRefusals(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes")
	}
	r := newReal(t)
	agenttest.Refusals(t, agenttest.Setup{Parallel: atOnce, Stride: oneOf(5), Open: func(t *testing.T) agenttest.Env {
		if strings.HasSuffix(t.Name(), "/disk_full") {
			return cramped(t)
		}
		return r.env(t)
	}})
}

func TestContainerdKills(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes")
	}
	r := newReal(t)
	agenttest.Kills(t, agenttest.Setup{Open: r.env, Parallel: atOnce}, oneOf(20))
}

// oneOf is how far apart the boundaries, or refusals, are that are tried on real containers: all of them nightly. TestKills and
// TestRefusals try all on runtimes in memory.
func oneOf(n int) int {
	if testenv.Nightly() {
		return 1
	}
	return n
}

func TestContainerdRuntime(t *testing.T) {
	r := newReal(t)
	runtimetest.Run(t, func(t *testing.T) runtimetest.Env {
		d := r.device(t, "")
		return runtimetest.Env{Runtime: d.open(t), Again: d.open, Image: func(name string) workload.Image {
			img := r.image(t, name+":1")
			return workload.Image{Repository: img.Reference[:len(img.Reference)-2], Digest: img.Digest, Tag: "1"}
		}}
	})
}
