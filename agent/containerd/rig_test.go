package containerd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apitasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) {
	if arg := os.Getenv(victimVariable); arg != "" {
		var o orders
		err := json.Unmarshal([]byte(arg), &o)
		if err == nil {
			err = victim(o)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testenv.SideBySide(3) // they mostly wait
	goleak.VerifyTestMain(testsOnShared{m}, testenv.LeakOptions()...)
}

// testsOnShared stops the daemons that tests shared when all tests have ended.
type testsOnShared struct{ m *testing.M }

func (s testsOnShared) Run() int {
	code := s.m.Run()
	shared.Range(func(_, d any) bool {
		daemon, err := d.(func() (*testenv.Daemon, error))()
		if err == nil {
			err = daemon.Stop()
		}
		if err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "stop the shared containerd:", err)
			code = 1
		}
		return true
	})
	return code
}

// shared are the daemons that tests share: by release, what starts it once.
var shared sync.Map

// sharedDaemon starts the daemon of a release for all tests that need none of their own. Its namespaces share no content: a test that
// pulls an image fetches it.
func sharedDaemon(t testing.TB, release testenv.Release) *testenv.Daemon {
	t.Helper()
	start, _ := shared.LoadOrStore(release, sync.OnceValues(func() (*testenv.Daemon, error) {
		return testenv.StartContainerd(context.Background(), testenv.DaemonOptions{Release: release, Isolated: true})
	}))
	d, err := start.(func() (*testenv.Daemon, error))()
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	return d
}

// rig is a device in a test: its own containerd, networks, directories and registry.
type rig struct {
	t       testing.TB
	release testenv.Release
	daemon  *testenv.Daemon
	reg     *testenv.RegistryServer
	nets    *network.Manager
	netRun  string
	journal *testenv.Journal
	o       containerd.Options
	made    map[string]*workload.Project // by container id
	*containerd.Runtime
}

var rigs atomic.Int32 // numbers the tables and address pools of this process's rigs

// newRig makes a device with a namespace of its own on the containerd that tests share. The test runs beside others, unless it is a
// subtest.
func newRig(t testing.TB, change ...func(*containerd.Options)) *rig {
	t.Helper()
	besideOthers(t)
	release := releaseOf(t)
	return newRigOn(t, release, sharedDaemon(t, release), change...)
}

// ownRig makes a device with a containerd of its own, for tests that stop it, look into its folders, or fill its disk.
func ownRig(t testing.TB, change ...func(*containerd.Options)) *rig {
	t.Helper()
	besideOthers(t)
	release := releaseOf(t)
	return newRigOn(t, release, testenv.ContainerdRelease(t, release), change...)
}

func besideOthers(t testing.TB) {
	if test, ok := t.(*testing.T); ok && !strings.Contains(t.Name(), "/") {
		test.Parallel()
	}
}

// releaseOf is the release that a test runs on.
func releaseOf(t testing.TB) testenv.Release {
	release := testenv.Release(os.Getenv(releaseVariable))
	for _, r := range testenv.Releases() {
		if strings.HasPrefix(t.Name(), olderTest+"/"+r.String()+"/") {
			release = r
		}
	}
	return release
}

// releaseVariable runs all tests on another release of containerd: "1.7" or "1.6".
const releaseVariable = "LONGSHORE_TEST_CONTAINERD"

func newRigOn(t testing.TB, release testenv.Release, d *testenv.Daemon, change ...func(*containerd.Options)) *rig {
	t.Helper()
	n := rigs.Add(1)
	r := &rig{t: t, release: release, daemon: d, journal: new(testenv.Journal), netRun: t.TempDir()}
	data := t.TempDir()
	nets, err := network.Open(network.Options{
		Store: testenv.NetworkState(filepath.Join(data, "networks")), DataDir: data, RunDir: r.netRun,
		Pool:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(130 + n%60), 0, 0}), 16),
		Table: fmt.Sprintf("lsct%d_%d", os.Getpid(), n),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nets.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.nets = nets
	r.o = containerd.Options{
		Address: d.Address, Namespace: fmt.Sprintf("%s-%d", d.Namespace, n), Device: "press-07", DataDir: t.TempDir(), RunDir: t.TempDir(),
		Journal: r.journal, Networks: nets, Now: time.Now, Endpoints: throughClient(t, registry.Options{}),
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	for _, c := range change {
		c(&r.o)
	}
	r.Runtime = r.open()
	t.Cleanup(r.close)
	return r
}

// open makes a runtime like a new process of the agent would.
func (r *rig) open() *containerd.Runtime {
	r.t.Helper()
	rt, err := containerd.New(r.t.Context(), r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	return rt
}

// close removes everything as a plan would and proves that nothing is left.
func (r *rig) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	seen, err := r.Observe(ctx)
	if err != nil {
		r.t.Errorf("Observe at the end: %v", err)
	}
	for _, c := range seen.Containers {
		if err := r.Remove(ctx, c.ID); err != nil {
			r.t.Error(err)
		}
	}
	for _, p := range seen.Projects {
		if err := r.Teardown(ctx, p); err != nil {
			r.t.Error(err)
		}
	}
	if err := r.Collect(ctx, nil); err != nil {
		r.t.Error(err)
	}
	r.nothingLeft(ctx)
	if err := errors.Join(r.Runtime.Close(), r.nets.Close()); err != nil {
		r.t.Error(err)
	}
}

// nothingLeft looks for what a driver that forgets would leave behind.
func (r *rig) nothingLeft(ctx context.Context) {
	r.t.Helper()
	left, err := r.left(ctx)
	if err != nil || len(left) > 0 {
		r.t.Errorf("containerd still has %q, %v", left, err)
	}
	if err := testenv.Await(ctx, time.Minute, func() error {
		if n := r.shims(); n != 0 {
			return fmt.Errorf("%d shims left", n)
		}
		return nil
	}); err != nil {
		r.t.Error(err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		r.t.Error(err)
	}
	for _, dir := range []string{r.o.DataDir, r.o.RunDir} {
		if strings.Contains(string(mounts), dir) {
			r.t.Errorf("a mount below %s is left", dir)
		}
	}
	for _, dir := range []string{filepath.Join(r.o.RunDir, "rootfs"), filepath.Join(r.o.DataDir, "logs"), filepath.Join(r.o.DataDir, "anonymous")} {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			r.t.Errorf("%s is not empty: %v", dir, entries)
		}
	}
	if p := r.nets.Projects(); len(p) > 0 {
		r.t.Errorf("networks left: %v", p)
	}
}

// left lists what containerd has in the rig's namespace, but for the claim, which ends with the runtime.
func (r *rig) left(ctx context.Context) (left []string, err error) {
	c, err := client.New(r.daemon.Address, client.WithDefaultNamespace(r.o.Namespace))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx = namespaces.WithNamespace(ctx, r.o.Namespace)
	note := func(what, name string) {
		if !strings.HasPrefix(name, "longshore-agent-") {
			left = append(left, what+" "+name)
		}
	}
	containers, errContainers := c.ContainerService().List(ctx)
	for _, x := range containers {
		note("container", x.ID)
	}
	tasks, errTasks := c.TaskService().List(ctx, &apitasks.ListTasksRequest{})
	for _, x := range tasks.GetTasks() {
		note("task", x.ID)
	}
	all, errImages := c.ImageService().List(ctx)
	for _, x := range all {
		note("image", x.Name)
	}
	held, errLeases := c.LeasesService().List(ctx)
	for _, x := range held {
		note("lease", x.ID)
	}
	return left, errors.Join(errContainers, errTasks, errImages, errLeases,
		c.ContentStore().Walk(ctx, func(x content.Info) error { note("content", x.Digest.String()); return nil }),
		c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, x snapshots.Info) error { note("snapshot", x.Name); return nil }))
}

// shims counts the shim processes of this rig's namespace.
func (r *rig) shims() int { return len(r.shimPIDs()) }

func (r *rig) shimPIDs() []int {
	var pids []int
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		r.t.Error(err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if !strings.Contains(string(b), "containerd-shim-runc-v2\x00") || !strings.Contains(string(b), "\x00"+r.o.Namespace+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			r.t.Error(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func (r *rig) registry() *testenv.RegistryServer {
	if r.reg == nil {
		r.reg = testenv.Registry(r.t, testenv.Distribution, testenv.WithStorage(r.t.TempDir()))
	}
	return r.reg
}

func (r *rig) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// toolbox is the image that tests run; extra layers go on top.
func (r *rig) toolbox(change func(*v1.Config), extra ...[]testenv.File) v1.Image {
	r.t.Helper()
	img, err := testenv.SoftwareImage(r.t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		testenv.Unavailable(r.t, "%v", err)
	}
	if len(extra) > 0 {
		more, err := testenv.BuildImage(testenv.HostPlatform(), v1.Config{}, extra...)
		if err != nil {
			r.t.Fatal(err)
		}
		layers, err := more.Layers()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, l := range layers {
			mt, err := l.MediaType()
			if err != nil {
				r.t.Fatal(err)
			}
			if img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: mt}); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	if change != nil {
		f, err := img.ConfigFile()
		if err != nil {
			r.t.Fatal(err)
		}
		f = f.DeepCopy()
		change(&f.Config)
		if img, err = mutate.ConfigFile(img, f); err != nil {
			r.t.Fatal(err)
		}
	}
	return img
}

func (r *rig) push(img v1.Image, name string) workload.Image {
	r.t.Helper()
	p, err := r.registry().Push(r.t.Context(), name+":1", img)
	if err != nil {
		r.t.Fatal(err)
	}
	return workload.Image{Repository: p.Repository, Tag: p.Tag, Digest: digest.Digest(p.Digest)}
}

// pulled is an image that is on the device.
func (r *rig) pulled(change func(*v1.Config), extra ...[]testenv.File) workload.Image {
	r.t.Helper()
	img := r.push(r.toolbox(change, extra...), "plant/toolbox")
	if _, err := r.Pull(r.t.Context(), img, nil); err != nil {
		r.t.Fatal(err)
	}
	return img
}

// project makes a project of services that all share one network.
func project(name string, services ...workload.Service) *workload.Project {
	p := &workload.Project{
		Name: name, Deployment: "dep-" + name, Component: "comp-" + name, Generation: 3,
		Networks: []workload.Network{{Name: "default"}},
	}
	for _, s := range services {
		if s.Networks == nil {
			s.Networks = []workload.Attachment{{Network: "default"}}
		}
		p.Services = append(p.Services, s)
	}
	return p
}

// up prepares a project and creates and starts its containers.
func (r *rig) up(p *workload.Project) []workload.Container {
	r.t.Helper()
	r.created(p)
	for _, c := range p.Containers() {
		if err := r.Start(r.t.Context(), p, c); err != nil {
			r.t.Fatal(err)
		}
	}
	return p.Containers()
}

func (r *rig) created(p *workload.Project) []workload.Container {
	r.t.Helper()
	if err := r.Prepare(r.t.Context(), p); err != nil {
		r.t.Fatal(err)
	}
	if r.made == nil {
		r.made = map[string]*workload.Project{}
	}
	for _, c := range p.Containers() {
		r.made[c.ID] = p
		if err := r.Create(r.t.Context(), p, c); err != nil {
			r.t.Fatal(err)
		}
	}
	return p.Containers()
}

// start starts a container that created made, again.
func (r *rig) start(c workload.Container) error { return r.Start(r.t.Context(), r.made[c.ID], c) }

// seen is one container as observed now.
func (r *rig) seen(id string) workload.Observation {
	r.t.Helper()
	all, err := r.Observe(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range all.Containers {
		if c.ID == id {
			return c
		}
	}
	r.t.Fatalf("container %s is not observed", id)
	return workload.Observation{}
}

// exited waits for a container's end.
func (r *rig) exited(id string) workload.Observation {
	r.t.Helper()
	var o workload.Observation
	testenv.Eventually(r.t, time.Minute, "the container ends", func() error {
		if o = r.seen(id); o.Status != workload.Exited {
			return fmt.Errorf("it is %s", o.Status)
		}
		return nil
	})
	return o
}

// serving waits until a container answers HTTP on 8080.
func (r *rig) serving(id string) {
	r.t.Helper()
	testenv.Eventually(r.t, time.Minute, "the container answers", func() error {
		return r.Probe(r.t.Context(), id, workload.Probe{HTTP: &workload.HTTPProbe{Port: 8080}})
	})
}

// get asks a container's server from the host.
func (r *rig) get(id, path string) string {
	r.t.Helper()
	addr := r.nets.Addresses(id)["default"]
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+netip.AddrPortFrom(addr, 8080).String()+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := r.client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Sprintf("%s: %s", res.Status, b)
	}
	return string(b)
}

func server(img workload.Image) workload.Service {
	return workload.Service{Name: "web", Image: img, Command: []string{"serve", "8080", "hello"}}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// output is all that a container has written.
func (r *rig) output(id string) string {
	r.t.Helper()
	l, err := r.Logs(r.t.Context(), id, workload.LogOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.Close()
	b, err := io.ReadAll(l)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// reopened makes a runtime with other options, closed with the test.
func (r *rig) reopened(o containerd.Options) *containerd.Runtime {
	r.t.Helper()
	rt, err := containerd.New(r.t.Context(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return rt
}

func itoa(pid uint32) string { return strconv.FormatUint(uint64(pid), 10) }
