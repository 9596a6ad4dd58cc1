package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// plant is what the machines of one test share: a registry with images, and a containerd.
type plant struct {
	registry *testenv.RegistryServer
	daemon   *testenv.Daemon
	images   map[string]agenttest.Image
	program  string // the agent's, which is the first process of containers with init or a terminal
}

// newPlant starts the servers and pushes the images. It needs root.
func newPlant(t *testing.T) *plant {
	t.Helper()
	p := &plant{daemon: testenv.Containerd(t), registry: testenv.Registry(t, testenv.Distribution), images: map[string]agenttest.Image{}}
	p.program = buildAgent(t)
	made, err := scenarioImages(t.Context())
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	for name, img := range made {
		pushed, err := p.registry.Push(t.Context(), name, img)
		if err != nil {
			t.Fatal(err)
		}
		p.images[name] = agenttest.Image{Reference: imageHost + "/" + name, Digest: digest.Digest(pushed.Digest), Platform: testenv.HostPlatform()}
	}
	p.images["missing:1"] = agenttest.Image{Reference: imageHost + "/missing:1", Digest: digest.FromString("missing"), Platform: testenv.HostPlatform()}
	foreign := p.images["toolbox:1"]
	foreign.Reference, foreign.Platform = imageHost+"/foreign:1", "linux/riscv64"
	p.images["foreign:1"] = foreign
	return p
}

// buildAgent compiles the agent, static as a release is.
func buildAgent(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := testenv.BuildOwn(t.Context(), dir, "longshore-agent"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "longshore-agent")
}

// endpoints lets a device find the images of every host at the plant's registry.
func (p *plant) endpoints(t *testing.T) func(repository string) ([]images.Endpoint, error) {
	t.Helper()
	client, err := registry.New(registry.Options{RetryBudget: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return images.EndpointsOf(func(repository string) ([]registry.Endpoint, error) {
		_, path, _ := strings.Cut(repository, "/")
		return client.Endpoints(p.registry.Host + "/" + path)
	})
}

// machine is a device on real containerd: a network namespace plays its host, so that nothing that it does to ports,
// addresses and the firewall meets another machine.
type machine struct {
	plant  *plant
	daemon *testenv.Daemon
	own    bool // the daemon is this machine's alone
	dir    string
	host   string // path of the network namespace
	o      containerd.Options
	mu     sync.Mutex
	nets   *network.Manager
	open   []*containerd.Runtime
	busy   []net.Listener
	logger *slog.Logger
}

// newMachine makes an empty device. The folder is short: unix sockets and mounts need it.
func newMachine(t *testing.T, p *plant, own, privileged bool) *machine {
	t.Helper()
	m := &machine{plant: p, daemon: p.daemon, own: own, dir: t.TempDir()}
	if own {
		m.daemon = testenv.Containerd(t)
	}
	m.logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	m.host = filepath.Join(m.dir, "ns", "host")
	if err := makeHost(m.host); err != nil {
		t.Fatal(err)
	}
	id := strings.NewReplacer("/", "", "_", "").Replace(filepath.Base(filepath.Dir(m.dir)) + filepath.Base(m.dir))
	m.o = containerd.Options{
		Address: m.daemon.Address, Namespace: fmt.Sprintf("%s-%s", m.daemon.Namespace, short(id+t.Name())), Device: string(agenttest.Device),
		DataDir: filepath.Join(m.dir, "data"), RunDir: filepath.Join(m.dir, "run"), Journal: new(testenv.Journal), Now: time.Now,
		AllowNoSeccomp: true, AllowPrivileged: privileged, Program: p.program, Endpoints: p.endpoints(t), Logger: m.logger,
	}
	if err := m.boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := m.empty(ctx); err != nil {
			t.Errorf("empty the machine: %v", err)
		}
	})
	return m
}

func short(s string) string { return digest.FromString(s).Encoded()[:8] }

// boot opens the networks, as the agent's start does after a power cycle.
func (m *machine) boot(ctx context.Context) (err error) {
	m.nets, err = network.Open(network.Options{
		Store: testenv.NetworkState(m.savedNetworks()), DataDir: m.o.DataDir, RunDir: m.o.RunDir, Pool: netip.MustParsePrefix("10.213.0.0/16"), NetNS: m.host, Logger: m.logger,
	})
	if err != nil {
		return err
	}
	m.o.Networks = m.nets
	return m.nets.Restore(ctx)
}

func (m *machine) savedNetworks() string { return filepath.Join(m.o.DataDir, "networks") }

// shut closes what boot and runtime opened.
func (m *machine) shut() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, r := range m.open {
		errs = append(errs, r.Close())
	}
	m.open = nil
	return errors.Join(append(errs, m.nets.Close())...)
}

// empty removes everything.
func (m *machine) empty(ctx context.Context) error {
	r, err := containerd.New(ctx, m.o)
	if err != nil {
		return err
	}
	seen, err := r.Observe(ctx)
	errs := []error{err}
	for _, c := range seen.Containers {
		errs = append(errs, r.Remove(ctx, c.ID))
	}
	for _, p := range seen.Projects {
		errs = append(errs, r.Teardown(ctx, p))
	}
	errs = append(errs, r.Collect(ctx, nil), r.Close(), m.shut())
	for _, l := range m.busy {
		errs = append(errs, l.Close())
	}
	left, _ := filepath.Glob(filepath.Join(m.o.RunDir, "netns", "*"))
	for _, f := range append(left, m.host) {
		errs = append(errs, unix.Unmount(f, unix.MNT_DETACH))
	}
	return errors.Join(append(errs, testenv.UnmountBelow(m.o.RunDir))...)
}

func (m *machine) env(t *testing.T) agenttest.Env {
	return agenttest.Env{
		Now: time.Now, Platform: testenv.HostPlatform(), Patience: 90 * time.Second,
		Runtime: func(*testing.T) agent.Runtime {
			t.Helper()
			r, err := containerd.New(t.Context(), m.o)
			if err != nil {
				t.Fatal(err)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.open = append(m.open, r)
			return r
		},
		Image: func(name string) agenttest.Image { return m.plant.images[name] },
	}
}

func (m *machine) kill(_ *run, o workload.Observation) error {
	if o.PID == 0 {
		return fmt.Errorf("container %s is %s", o.ID, o.Status)
	}
	return unix.Kill(int(o.PID), unix.SIGKILL)
}

func (m *machine) exit(r *run, o workload.Observation, code uint32) error {
	return r.poll(soonLimit, func() error { // the server may not listen yet
		_, err := m.http(r, &o, fmt.Sprintf("http://127.0.0.1:8080/exit?code=%d", code))
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			err = nil // it ended before it answered
		}
		return err
	})
}

// delete is what a curious hand does with ctr.
func (m *machine) lose(r *run, o workload.Observation) error {
	_, err := m.ctr(r.t.Context(), "images", "rm", "--sync", o.Image)
	return errors.Join(err, m.delete(r, o))
}

func (m *machine) delete(r *run, o workload.Observation) error {
	ctx := r.t.Context()
	if o.Status == workload.Running {
		_, _ = m.ctr(ctx, "tasks", "kill", "--signal", "SIGKILL", o.ID) // it may be gone
	}
	return testenv.Await(ctx, soonLimit, func() error {
		_, _ = m.ctr(ctx, "tasks", "rm", "--force", o.ID)
		_, err := m.ctr(ctx, "containers", "rm", o.ID)
		if err != nil && strings.Contains(err.Error(), "not found") {
			return nil
		}
		return err
	})
}

func (m *machine) pause(r *run, o workload.Observation) error {
	_, err := m.ctr(r.t.Context(), "tasks", "pause", o.ID)
	return err
}

func (m *machine) sicken(r *run, o workload.Observation, sick bool) error {
	return r.poll(soonLimit, func() error { // the server may not listen yet
		_, err := m.http(r, &o, "http://127.0.0.1:8080/"+map[bool]string{true: "sicken", false: "heal"}[sick])
		return err
	})
}

func (m *machine) ctr(ctx context.Context, args ...string) (string, error) {
	return m.daemon.Ctr(ctx, append([]string{"--namespace", m.o.Namespace}, args...)...)
}

func (m *machine) restartContainerd(r *run) error { return m.daemon.Restart(r.t.Context()) }

// reboot: the agent ends with everything else.
func (m *machine) reboot(r *run) error {
	r.agent.Stop(r.t)
	if err := m.shut(); err != nil {
		return err
	}
	ctx := r.t.Context()
	if err := m.daemon.PowerOff(ctx); err != nil {
		return err
	}
	mounted, _ := filepath.Glob(filepath.Join(m.o.RunDir, "netns", "*"))
	for _, f := range append(mounted, m.host) {
		_ = unix.Unmount(f, unix.MNT_DETACH)
	}
	if err := testenv.UnmountBelow(m.o.RunDir); err != nil {
		return err
	}
	if err := os.RemoveAll(m.o.RunDir); err != nil {
		return err
	}
	if err := makeHost(m.host); err != nil {
		return err
	}
	if err := m.daemon.Start(ctx); err != nil {
		return err
	}
	if err := m.boot(ctx); err != nil {
		return err
	}
	r.runtime = r.w.Runtime(r.t)
	r.agent = r.w.Start(r.t)
	return nil
}

// breakDatabase loses the state of the networks and the journal of the images: on a device they are in agent.db.
func (m *machine) breakDatabase(r *run) error {
	if err := m.shut(); err != nil {
		return err
	}
	m.o.Journal = new(testenv.Journal)
	if err := os.Remove(m.savedNetworks()); err != nil {
		return err
	}
	if err := m.boot(r.t.Context()); err != nil {
		return err
	}
	r.runtime = r.w.Runtime(r.t)
	return nil
}

func (m *machine) lock(project, text string) error {
	file := filepath.Join(m.o.DataDir, "volumes", project, approval.LockVolume, "_data", approval.LockFile)
	if text == "" {
		return os.Remove(file)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// lacks returns why the machine lacks a feature; "": it has it.
func (m *machine) lacks(what string) string {
	switch what {
	case needContainers, needOwnDaemon, needPermission:
		return ""
	case needMemory:
		return "this is a device with real containers"
	}
	return hostLacks(what)
}

func (m *machine) look(r *run, o workload.Observation, p property) error {
	if p.real == nil {
		return errors.New("this property cannot be seen in a container")
	}
	return p.real(m, o)
}

// options gives the agent what the program gives it beside the runtime.
func (m *machine) options(o *agent.Options) {
	// A process needs longer to begin and to fail than one in memory, most of all beside other tests.
	o.Repairer, o.LookEvery, o.Probation = m.nets, 3*time.Second, 1500*time.Millisecond
}
