// Package world sets up what the main job needs, once for demo, attacks, soak and benchmarks: our programs, a registry, a
// containerd, and a device whose agent is a process of its own, all in a box that clean-up empties.
package world

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

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
	// Containerd of the device; its namespace is Namespace, "" the daemon's own.
	Containerd *testenv.Daemon
	Namespace  string
	Registry   *testenv.RegistryServer
	Host       string   // that references name; "": the registry's
	Env        []string // of every program, after the world's own
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
	w := &World{Options: o}
	for _, step := range []func(context.Context) error{w.build, w.startContainerd, w.startRegistry} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	w.Host, w.Namespace = cmp.Or(w.Host, w.Registry.Host), cmp.Or(w.Namespace, w.Containerd.Namespace)
	return w, nil
}

func (w *World) build(ctx context.Context) error {
	if w.Bin != "" {
		return nil
	}
	w.Bin = filepath.Join(w.Box.Dir(), "bin")
	return testenv.BuildOwn(ctx, w.Bin, testenv.OwnPrograms()...)
}

func (w *World) startContainerd(ctx context.Context) (err error) {
	if w.Containerd == nil {
		w.Containerd, err = testenv.StartContainerd(ctx, testenv.DaemonOptions{Box: w.Box, Out: w.Out})
	}
	return err
}

func (w *World) startRegistry(context.Context) error {
	if w.Registry != nil {
		return nil
	}
	dir, err := w.Box.Folder("registry")
	if err != nil {
		return err
	}
	// On disk: what distribution keeps in memory it copies anew with each piece of a blob.
	if w.Registry, err = testenv.StartRegistry(dir, testenv.Distribution, testenv.WithStorage(filepath.Join(dir, "content"))); err != nil {
		return err
	}
	w.Box.Add("registry", w.Registry.Close)
	return nil
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
	return w.Box.Output(ctx, w.Environment(), append([]string{filepath.Join(w.Bin, program)}, args...)...)
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

// Init configures the device as its owner would, trusting release.pub, and gives it a corner of this machine of its own.
func (w *World) Init(ctx context.Context, flags ...string) error {
	args := []string{
		"init", "--config-dir", w.Path("etc"), "--device", w.Device, "--state", "oci://" + w.Reference("plant/state"),
		"--key", w.Path("release.pub"), "--ca-file", w.Registry.CAFile, "--poll", w.Poll.String(), "--data-dir", w.Path("data"), "--run-dir", w.Path("run"),
		"--network-pool", w.Pool, "--network-table", w.Table(),
		"--containerd", w.Containerd.Address, "--containerd-namespace", w.Namespace,
	}
	_, err := w.Run(ctx, "longshore-agent", append(args, flags...)...)
	return err
}

// Boot starts the agent, the first time or again.
func (w *World) Boot(ctx context.Context) (err error) {
	if w.Agent != nil {
		return w.Agent.Start()
	}
	if err := w.Box.OwnTable(ctx, w.Out, w.Table()); err != nil {
		return err
	}
	w.Agent, err = w.Box.Start("agent-"+w.Device, w.Environment(), filepath.Join(w.Bin, "longshore-agent"), "run", "--config", w.Path("etc/agent.yaml"))
	return err
}

// Control runs a command of the device's owner: "sync", "status".
func (w *World) Control(ctx context.Context, command string, flags ...string) (string, error) {
	return w.Run(ctx, "longshore-agent", append([]string{command, "--config", w.Path("etc/agent.yaml")}, flags...)...)
}

// Status is what the running agent reports.
func (w *World) Status(ctx context.Context) (*status.Status, error) {
	text, err := w.Control(ctx, "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var s status.Status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return &s, nil
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
