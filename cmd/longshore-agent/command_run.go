package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/wipe"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/identity/workloadapi"
	"github.com/longshore-dev/longshore/registry"
)

var runCommand = cmdline.Command{
	Name:  "run",
	Usage: "run the agent",
	About: "Keeps the device at the newest state that it accepts. SIGINT and SIGTERM stop the agent; containers continue to run.\n" +
		"\n" +
		"Examples:\n  longshore-agent run\n  longshore-agent run --config ./agent.yaml --debug",
	Flags: []cmdline.Flag{
		configFlag,
		{Name: "debug", Value: false, Usage: "log every step", Env: env("DEBUG")},
		{Name: "log-format", Usage: "`FORMAT` of the log: text or json", Value: "text", Env: env("LOG_FORMAT"), OneOf: []string{"text", "json"}},
	},
	Run: runAgent,
}

func runAgent(c *cmdline.Context) (err error) {
	if os.Geteuid() != 0 {
		return fault.WithHint(fmt.Errorf("run the agent: it needs root, for containers and networks: %w", fault.ErrDenied),
			"run it as root: sudo longshore-agent run; or as a service: longshore-agent unit")
	}
	setGarbage(garbage)
	log := logger(c)
	cfg, err := readConfig(c.String("config"))
	if err != nil {
		return err
	}
	if _, err := readPolicy(cfg.Trust); err != nil {
		log.Error("nothing new is accepted until the trust policy is repaired; what was accepted runs", "file", cfg.Trust, "err", err)
	}
	for _, dir := range []string{cfg.DataDir, cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	parts, err := assemble(c.Context, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parts.close()) }()
	if wipe.Begun(cfg.DataDir) {
		return wipeDevice(c.Context, cfg, parts, log)
	}

	socket, err := control.Listen(socketPath(cfg))
	if err != nil {
		return err
	}
	log.Info("agent starts", "device", cfg.Device, "state", cfg.State, "manager", cfg.Source.Manager.URL, "version", build.Version())
	// The socket ends with the agent and the agent with the socket; both end with the signal.
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel()
		served <- control.Serve(ctx, socket, parts.agent, log)
	}()
	var following sync.WaitGroup
	following.Go(func() { serveMetrics(ctx, cfg.Metrics.Listen, parts.agent, log) })
	following.Go(func() { servePanel(ctx, cfg.Panel, parts.agent, log) })
	following.Go(func() { serveOperators(ctx, cfg, parts.agent, log) })
	removed := make(chan bool, 1)
	go func() {
		asked := keepEnrolled(ctx, cfg, parts.now, log)
		if asked {
			cancel()
		}
		removed <- asked
	}()
	for _, s := range parts.svids {
		following.Go(func() {
			if err := s.Run(ctx); err != nil {
				log.Error("no certificate comes from the Workload API until the agent is restarted", "err", err)
			}
		})
	}
	for _, f := range followers(cfg, parts.now, log) {
		following.Go(func() { f.Run(ctx) })
	}
	following.Go(func() { rest(ctx, log) })
	if t := tracer(cfg, parts.store, os.Getenv, log); t != nil {
		following.Go(func() { t.Run(ctx, parts.agent) })
	}
	err = parts.agent.Run(ctx)
	cancel()
	following.Wait()
	if <-removed {
		return errors.Join(<-served, wipeDevice(c.Context, cfg, parts, log))
	}
	if err := errors.Join(err, <-served); err != nil && c.Context.Err() == nil {
		return err
	}
	log.Info("agent ends, workloads run on")
	return nil
}

func socketPath(cfg *config.Config) string { return filepath.Join(cfg.RunDir, "agent.sock") }

func logger(c *cmdline.Context) *slog.Logger {
	o := &slog.HandlerOptions{}
	if c.Bool("debug") {
		o.Level = slog.LevelDebug
	}
	if c.String("log-format") == "json" {
		return slog.New(slog.NewJSONHandler(c.Err, o))
	}
	return slog.New(slog.NewTextHandler(c.Err, o))
}

// parts are the rooms of one device, wired.
type parts struct {
	agent    *agent.Agent
	store    *store.Store
	registry *registry.Client
	reports  *registry.Client // for reports alone; nil: registry
	runtime  *containerd.Runtime
	networks *network.Manager
	managers map[config.Endpoint]*manager.Client // of desired state and of reports: mostly one
	svids    map[string]*workloadapi.Source      // by the address of the Workload API
	now      func() time.Time                    // the latest time that is known for sure
}

func (p *parts) close() error {
	var errs []error
	if p.runtime != nil {
		errs = append(errs, p.runtime.Close())
	}
	if p.networks != nil {
		errs = append(errs, p.networks.Close())
	}
	for _, c := range p.managers {
		c.Close()
	}
	for _, c := range []*registry.Client{p.registry, p.reports} {
		if c != nil {
			c.Close()
		}
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	return errors.Join(errs...)
}

// assemble makes the parts of a device. After an error none of them is left open.
func assemble(ctx context.Context, cfg *config.Config, log *slog.Logger) (*parts, error) {
	p := &parts{managers: map[config.Endpoint]*manager.Client{}, svids: map[string]*workloadapi.Source{}}
	if err := p.wire(ctx, cfg, log); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *parts) wire(ctx context.Context, cfg *config.Config, log *slog.Logger) (err error) {
	// The store first: its lock is what keeps a second agent away from everything that follows.
	if p.store, err = store.Open(store.Options{Path: filepath.Join(cfg.DataDir, "agent.db"), Device: string(cfg.Device), Replace: time.Now}); err != nil {
		return err
	}
	start := time.Now()
	clk := clock.New(time.Now, func() time.Duration { return time.Since(start) })
	p.now = clk.Firm
	ro := registryOptions(cfg)
	ro.Logger, ro.Getenv, ro.Now, ro.Date = log, os.Getenv, clk.Firm, func(t time.Time) { clk.Hint("the registry", t) }
	ro.Mismatch = func(repository string, err error) { p.agent.MirrorMismatch(repository + ": " + err.Error()) } // the agent is what asks: it is there
	if p.registry, err = registry.New(ro); err != nil {
		return err
	}
	content, err := registry.OpenLayout(filepath.Join(cfg.DataDir, "content"))
	if err != nil {
		return err
	}
	if p.networks, err = network.Open(networkOptions(cfg, p.store, log)); err != nil {
		return err
	}
	if p.runtime, err = containerd.New(ctx, containerd.Options{
		Address: cfg.Containerd.Address, Namespace: cfg.Containerd.Namespace, Snapshotter: cfg.Containerd.Snapshotter,
		Device: string(cfg.Device), DataDir: cfg.DataDir, RunDir: cfg.RunDir,
		Endpoints: images.EndpointsOf(p.registry.Endpoints), Journal: p.store, Networks: p.networks,
		AllowNoSeccomp: cfg.AllowNoSeccomp, AllowPrivileged: cfg.Runtime.AllowPrivileged, Places: ownPlaces(cfg, os.Getenv),
		Runtimes: cfg.Runtime.Allowed, CDIDirs: cfg.Runtime.CDIDirs, Program: ownPath(log), Dynamic: dynamic(),
		MinFree:   images.Space{Bytes: cfg.Images.MinFree, Percent: cfg.Images.MinFreePercent},
		Telemetry: telemetry(cfg, log),
		Logs:      logs.Limits{MaxSize: cfg.Logs.MaxSize, MaxFiles: cfg.Logs.MaxFiles, Budget: cfg.Logs.Budget},
		Logger:    log, Now: time.Now,
	}); err != nil {
		return err
	}
	// Before anything on the device is touched. Without containerd the runtime claims the device with its first look.
	if err := p.runtime.Claim(ctx); errors.Is(err, fault.ErrConflict) {
		return err
	}
	if err := runspec.LookUpIn(filepath.Join(cfg.RunDir, "layers")); err != nil {
		log.Warn("a layer stays mounted", "err", err)
	}
	policy := followPolicy(cfg.Trust, p.store, p.registry, clk.Firm)
	held := &verifier{policy: policy, registry: p.registry, now: clk.Firm, fresh: clk.Now}
	source := p.source(cfg, clk, log)
	look := machineLook(cfg, offered(ctx, p.runtime.Offered), p.store, func(what string) { log.Warn("part of the machine cannot be looked at", "what", what) })
	o := agent.Options{
		Device: cfg.Device, Repository: source.Repository(), Manager: cfg.Source.Manager.URL, Capabilities: look(), Machine: look,
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Interval: cfg.Poll.Interval, Phase: cfg.Poll.Phase, ReportInterval: cfg.Fleet.Interval, FullInterval: cfg.Fleet.Full,
		Store: p.store, Source: source, Verifier: held, Fresher: held, Clock: clk, Built: build.Time(), Content: content, Runtime: p.runtime, Repairer: p.networks,
		Trust: trustPort{policy, cfg.Trust, clk.Firm}, TrustInterval: cfg.TrustInterval, Fingerprint: policy.Fingerprint, RequirePins: cfg.RequirePins, Weakened: weakened(cfg), Version: build.Version(), Logger: log, Now: time.Now, Random: rand.Float64,
		Approvals: cfg.Approvals.Policy, Jitter: cfg.Poll.Jitter, PollWindows: cfg.Poll.Windows, Downtime: cfg.Downtime,
		Changes: cfg.Changes.Windows, ChangesClockUnknown: cfg.Changes.OpenClockUnknown, MaxBoots: cfg.Changes.MaxBoots,
		Publisher: p.publisher(cfg, ro, log), PublishInterval: cfg.Report.Interval, BootID: bootID(),
	}
	if err := cfg.Over(time.Now()); err != nil {
		log.Warn("windows", "err", err)
	}
	if cfg.Fleet.URL != "" {
		if o.Reporter, err = p.manager(cfg, cfg.Fleet.Endpoint, clk, log); err != nil {
			log.Error("reports wait on the device until this is repaired and the agent started again", "err", err)
			o.Reporter = unreachable{err}
		}
	}
	// What a reboot or a flush took away is made again before any container starts.
	if err := p.networks.Restore(ctx); err != nil {
		log.Error("networks are not all restored; each is tried again with its project", "err", err)
	}
	for _, note := range p.networks.Notes() {
		log.Info("network", "note", note)
	}
	p.agent, err = agent.New(o)
	return err
}

// registryOptions is how the registry of desired state, components and images is reached. Files are read again when they change: a
// renewal of the enrollment may bring others, or the first ones.
func registryOptions(cfg *config.Config) registry.Options {
	stateHost, _, _ := strings.Cut(cfg.State, "/")
	o := registry.Options{
		// What the environment holds is for one host, and not for those that deployments name.
		Host:           cmp.Or(os.Getenv("LONGSHORE_REGISTRY_HOST"), stateHost),
		PlainHTTPHosts: cfg.Registry.PlainHTTP, CAFile: cfg.Registry.CAFile,
		CertFile: cfg.Registry.CertFile, KeyFile: cfg.Registry.KeyFile,
		AuthFile: cfg.Registry.AuthFile, CertsDir: cfg.Registry.CertsDir, StallTimeout: cfg.Registry.Timeout,
		UserAgent: "longshore-agent/" + build.Version(),
	}
	if own := ownDir(cfg); own != "" {
		o.AuthFile = cmp.Or(o.AuthFile, own.Logins())
		if o.CAFile == "" || o.CAFile == own.RegistryCA() {
			o.CAFile, o.LaterCAFile = "", own.RegistryCA()
		}
	}
	return o
}

// weakened is what agent.yaml gives up; trust.yaml's allowUnsigned is told with what passed by it.
func weakened(cfg *config.Config) []string {
	var out []string
	if cfg.AllowNoSeccomp {
		out = append(out, "containers may run without a system call filter (allowNoSeccomp)")
	}
	if cfg.Runtime.AllowPrivileged {
		out = append(out, "containers may be privileged (runtime.allowPrivileged)")
	}
	return out
}

// atBase is AT_BASE of the auxiliary vector (getauxval(3)): where the kernel put a program's dynamic linker; 0: it has none.
const atBase = 7

// dynamic reports whether this program is linked dynamically.
func dynamic() bool {
	vector, _ := unix.Auxv() // Linux always has one
	return slices.ContainsFunc(vector, func(v [2]uintptr) bool { return v[0] == atBase && v[1] != 0 })
}

// ownPath is this program's, for what it does in containers.
func ownPath(log *slog.Logger) string {
	p, err := os.Executable()
	if err != nil {
		log.Warn("services with init or tty are refused: the path of this program is not known", "err", err)
		return ""
	}
	return p
}
