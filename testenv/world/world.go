// Package world sets up what the main job needs, once for demo, attacks, soak and benchmarks: our programs, a registry, a
// containerd, and a device whose agent is a process of its own, all in a box that clean-up empties.
package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

// Device is the id of a world's device, unless its options name another.
const Device = "press-07"

// Options of a world. Box, Name and Pool are required.
type Options struct {
	Box    *testenv.Box // which the caller empties
	Out    io.Writer    // where builds are announced; nil: os.Stderr
	Name   string       // short, of the caller: names the nftables table together with the process id, and is the keys' password
	Pool   string       // network of the device's containers, "10.215.0.0/16"; no other world of this machine may have it
	Device string       // "": [Device]
	Dir    string       // everything of the device and its publishers is below it; "": the box's folder
	Bin    string       // has our programs already; "": they are built
	Poll   time.Duration
	// Network is the path of the network namespace that every program of this world runs in; "": this machine's.
	Network string
	// Containerd of the device; its namespace is Namespace, "" the daemon's own.
	Containerd *testenv.Daemon
	Namespace  string
	Registry   *testenv.RegistryServer
	Secure     bool     // a registry that is started has TLS, and a password that Login stores
	Host       string   // that references name; "": the registry's
	Env        []string // of every program, after the world's own
	FleetURL   string   // of the endpoint that the device reports to; "": none, or what StartFleet starts
	// Step runs a part of New and reports its result in a few words. nil: no report.
	Step func(ctx context.Context, what string, do func(context.Context) (shown string, err error)) error
}

// World is a device with a registry. Its methods run programs as a person or a boot would.
type World struct {
	Options
	Agent *testenv.Process // nil before the first Boot
}

// New completes the options: what they lack is built and started.
func New(ctx context.Context, o Options) (*World, error) {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	o.Device, o.Dir, o.Poll = cmp.Or(o.Device, Device), cmp.Or(o.Dir, o.Box.Dir()), cmp.Or(o.Poll, time.Second)
	if o.Step == nil {
		o.Step = func(ctx context.Context, _ string, do func(context.Context) (string, error)) error {
			_, err := do(ctx)
			return err
		}
	}
	w := &World{Options: o}
	for _, part := range []struct {
		there bool
		what  string
		start func(context.Context) (string, error)
	}{
		{w.Bin != "", "our programs are built", w.build},
		{w.Containerd != nil, "containerd", w.startContainerd},
		{w.Registry != nil, "registry", w.startRegistry},
	} {
		if part.there {
			continue
		}
		if err := w.Step(ctx, part.what, part.start); err != nil {
			return nil, err
		}
	}
	w.Host, w.Namespace = cmp.Or(w.Host, w.Registry.Host), cmp.Or(w.Namespace, w.Containerd.Namespace)
	return w, nil
}

func (w *World) build(ctx context.Context) (string, error) {
	w.Bin = filepath.Join(w.Box.Dir(), "bin")
	return strings.Join(testenv.OwnPrograms(), ", "), testenv.BuildOwn(ctx, w.Bin, testenv.OwnPrograms()...)
}

func (w *World) startContainerd(ctx context.Context) (shown string, err error) {
	if w.Containerd, err = testenv.StartContainerd(ctx, testenv.DaemonOptions{Box: w.Box, Out: w.Out}); err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d", w.Containerd.PID()), nil
}

func (w *World) startRegistry(context.Context) (shown string, err error) {
	dir, err := w.Box.Folder("registry")
	if err != nil {
		return "", err
	}
	// On disk: what distribution keeps in memory it copies anew with each piece of a blob.
	kind, shown, options := testenv.Distribution, "", []testenv.RegistryOption{testenv.WithStorage(filepath.Join(dir, "content"))}
	if w.Secure {
		kind, shown, options = testenv.DistributionHtpasswd, " with TLS and passwords", append(options, testenv.WithTLS())
	}
	if w.Registry, err = testenv.StartRegistry(dir, kind, options...); err != nil {
		return "", err
	}
	w.Box.Add("registry", w.Registry.Close)
	return "CNCF distribution" + shown + " on " + w.Registry.Host, nil
}

// Path is a file below the world's folder.
func (w *World) Path(name string) string { return filepath.Join(w.Dir, name) }

// Table is the nftables table of the device.
func (w *World) Table() string { return fmt.Sprintf("ls%s%d", w.Name, os.Getpid()) }

// Reference names something in the registry as programs of this world do.
func (w *World) Reference(name string) string { return w.Host + "/" + name }

// Environment leaves the caller's home alone.
func (w *World) Environment() []string {
	return append([]string{
		"HOME=" + w.Path("home"), "DOCKER_CONFIG=" + w.Path("home/.docker"), "NO_COLOR=1", "GOTRACEBACK=all",
		"LONGSHORE_KEY_PASSWORD=" + w.Name, "LONGSHORE_CA_FILE=" + w.Registry.CAFile,
	}, w.Env...)
}

// Run runs one of our programs to its end and returns what it prints on stdout.
func (w *World) Run(ctx context.Context, program string, args ...string) (string, error) {
	return w.Box.Output(ctx, w.Environment(), w.program(program, args...)...)
}

// program is the command line of one of our programs.
func (w *World) program(name string, args ...string) []string {
	argv := append([]string{filepath.Join(w.Bin, name)}, args...)
	if w.Network == "" {
		return argv
	}
	return append([]string{"nsenter", "--net=" + w.Network}, argv...)
}

// Login stores the registry's password for the programs of this world.
func (w *World) Login(ctx context.Context) error {
	_, err := w.Box.Output(ctx, w.Environment(), "/bin/sh", "-c", `printf %s "$1" | "$2" login --username "$3" --password-stdin "$4"`, "sh",
		w.Registry.Password, filepath.Join(w.Bin, "longshore"), w.Registry.Username, w.Host)
	return err
}

// StartFleet starts a status endpoint, which this device reports to after its next Init.
func (w *World) StartFleet(ctx context.Context) error {
	port, err := testenv.FreePort()
	if err != nil {
		return err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	w.FleetURL = "http://" + address
	if err := w.Enroll(ctx, w); err != nil {
		return err
	}
	if _, err := w.Box.Start("longshore-fleet", w.Environment(), filepath.Join(w.Bin, "longshore-fleet"), "serve", "--database", w.Path("fleet.db"), "--listen", address); err != nil {
		return err
	}
	return testenv.Await(ctx, time.Minute, func() error {
		_, err := testenv.Get(ctx, w.FleetURL+"/healthz")
		return err
	})
}

// Enroll gives the device of another world a token for the endpoint that this world started.
func (w *World) Enroll(ctx context.Context, other *World) error {
	token, err := w.Run(ctx, "longshore-fleet", "token", "create", "--database", w.Path("fleet.db"), "--device", other.Device)
	if err != nil {
		return err
	}
	other.FleetURL = w.FleetURL
	return errors.Join(os.MkdirAll(other.Dir, 0o755), os.WriteFile(other.Path("token"), []byte(token), 0o600))
}

// Component writes a Compose file into a folder of the world and pushes it.
func (w *World) Component(ctx context.Context, name, version, compose string) (reference string, err error) {
	if err := errors.Join(os.MkdirAll(w.Path(name), 0o755), os.WriteFile(w.Path(name+"/compose.yaml"), []byte(compose), 0o644)); err != nil {
		return "", err
	}
	reference = w.Reference("plant/components/" + name + ":" + version)
	_, err = w.Run(ctx, "longshore", "component", "push", w.Path(name), reference)
	return reference, err
}

// Release signs the device's next generation with release.key.
func (w *World) Release(ctx context.Context, component string, flags ...string) error {
	args := append([]string{"state", "push", "--device", w.Device, "--key", w.Path("release.key"), "--component", component}, flags...)
	_, err := w.Run(ctx, "longshore", append(args, w.Reference("plant/state"))...)
	return err
}

// Init configures the device as its owner would, trusting release.pub unless flags have a --policy, and gives it a corner of this machine of its own.
func (w *World) Init(ctx context.Context, flags ...string) error {
	args := []string{
		"init", "--config-dir", w.Path("etc"), "--device", w.Device, "--state", "oci://" + w.Reference("plant/state"), "--ca-file", w.Registry.CAFile, "--poll", w.Poll.String(), "--data-dir", w.Path("data"), "--run-dir", w.Path("run"),
		"--network-pool", w.Pool, "--network-table", w.Table(),
		"--containerd", w.Containerd.Address, "--containerd-namespace", w.Namespace,
	}
	if !slices.Contains(flags, "--policy") {
		args = append(args, "--key", w.Path("release.pub"))
	}
	if w.Registry.Username != "" {
		args = append(args, "--registry-config", w.Path("home/.docker/config.json"))
	}
	if w.FleetURL != "" {
		args = append(args, "--fleet-url", w.FleetURL, "--fleet-token-file", w.Path("token"))
	}
	_, err := w.Run(ctx, "longshore-agent", append(args, flags...)...)
	return err
}

// Boot starts the agent, the first time or again.
func (w *World) Boot(ctx context.Context) (err error) {
	if w.Agent != nil {
		return w.Agent.Start()
	}
	if w.Network == "" { // else its networks end with the namespace
		if err := w.Box.OwnTable(ctx, w.Out, w.Table()); err != nil {
			return err
		}
	}
	w.Agent, err = w.Box.Start("agent-"+w.Device, w.Environment(), w.program("longshore-agent", "run", "--config", w.Path("etc/agent.yaml"))...)
	return err
}

// Control runs a command of the device's owner: "sync", "status".
func (w *World) Control(ctx context.Context, command string, flags ...string) (string, error) {
	return w.Run(ctx, "longshore-agent", append([]string{command, "--config", w.Path("etc/agent.yaml")}, flags...)...)
}

// statusLimit bounds one question; the machine is small and busy.
const statusLimit = 30 * time.Second

// Status is what the running agent reports on its socket: [World.Settled] asks ten times a second, and a process costs 50 ms.
func (w *World) Status(ctx context.Context) (*status.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	return control.NewClient(w.Path("run/agent.sock")).Status(ctx)
}

// InSync is nil when the device runs a generation completely, 0 stands for any.
func (w *World) InSync(ctx context.Context, generation uint64) error {
	if err := w.Agent.Running(); err != nil {
		return err
	}
	s, err := w.Status(ctx)
	if err != nil {
		return err
	}
	if s.Committed == nil || generation != 0 && s.Committed.Generation != generation || s.Phase != status.PhaseInSync {
		return fmt.Errorf("device is %q, committed %+v, want generation %d; problems %+v", s.Phase, s.Committed, generation, s.Problems)
	}
	return nil
}

// Settled waits until InSync is nil, at most for a time.
func (w *World) Settled(ctx context.Context, generation uint64, limit time.Duration) error {
	return testenv.Await(ctx, limit, func() error { return w.InSync(ctx, generation) })
}

// Processes are the first processes of the device's containers, by container.
func Processes(s *status.Status) map[string]uint32 {
	out := map[string]uint32{}
	for _, d := range s.Deployments {
		for _, c := range d.Components {
			for _, service := range c.Services {
				if service.PID != 0 {
					out[service.Container] = service.PID
				}
			}
		}
	}
	return out
}

// Logs are the ends of the logs of containerd and the agent.
func (w *World) Logs() string {
	text := "containerd:\n" + w.Containerd.Log(8)
	if w.Agent != nil {
		text += "\nagent:\n" + w.Agent.Log(30)
	}
	return text
}
