package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/testenv"
)

const (
	soakDevice   = "press-07"
	soakImage    = "plant/toolbox:1"
	installLimit = 5 * time.Minute // also for what chaos left to be put right: pauses between restarts grow to a minute
)

// device is a real agent on a real containerd, with a registry, all in a box.
type device struct {
	box        *testenv.Box
	out        io.Writer
	bin        string
	table      string
	registry   *testenv.RegistryServer
	containerd *testenv.Daemon
	agent      *testenv.Process
	pushed     int // components, and so versions of them
}

// newDevice starts the servers and makes the key. The pool keeps devices of one machine apart.
func newDevice(ctx context.Context, box *testenv.Box, out io.Writer) (*device, error) {
	d := &device{box: box, out: out, table: fmt.Sprintf("lssoak%d", os.Getpid())}
	var err error
	if d.bin, err = box.Folder("bin"); err != nil {
		return nil, err
	}
	if err := testenv.BuildOwn(ctx, d.bin, "longshore", "longshore-agent"); err != nil {
		return nil, err
	}
	if d.containerd, err = testenv.StartContainerd(ctx, testenv.DaemonOptions{Box: box, Out: out}); err != nil {
		return nil, err
	}
	dir, err := box.Folder("registry")
	if err != nil {
		return nil, err
	}
	if d.registry, err = testenv.StartRegistry(dir, testenv.Distribution, testenv.WithStorage(filepath.Join(dir, "content"))); err != nil {
		return nil, err
	}
	box.Add("registry", d.registry.Close)
	img, err := testenv.SoftwareImage(ctx, out, "toolbox", testenv.HostPlatform())
	if err != nil {
		return nil, err
	}
	if _, err := d.registry.Push(ctx, soakImage, img); err != nil {
		return nil, err
	}
	_, err = d.run(ctx, "longshore", "key", "generate", "release")
	return d, err
}

// boot configures the agent and starts it.
func (d *device) boot(ctx context.Context, pool string) error {
	if err := d.box.OwnTable(ctx, d.out, d.table); err != nil {
		return err
	}
	_, err := d.run(ctx, "longshore-agent", "init", "--config-dir", d.path("etc"), "--device", soakDevice,
		"--state", "oci://"+d.registry.Reference("plant/state"), "--key", d.path("release.pub"), "--poll", "5s",
		"--data-dir", d.path("data"), "--run-dir", d.path("run"), "--network-pool", pool, "--network-table", d.table,
		"--containerd", d.containerd.Address, "--containerd-namespace", d.containerd.Namespace)
	if err != nil {
		return err
	}
	d.agent, err = d.box.Start("longshore-agent", d.environment(), filepath.Join(d.bin, "longshore-agent"), "run", "--config", d.path("etc/agent.yaml"))
	return err
}

func (d *device) path(name string) string { return filepath.Join(d.box.Dir(), name) }

// environment leaves the caller's home alone.
func (d *device) environment() []string {
	return []string{"HOME=" + d.path("home"), "DOCKER_CONFIG=" + d.path("home/.docker"), "LONGSHORE_KEY_PASSWORD=soak", "NO_COLOR=1", "GOTRACEBACK=all"}
}

// run runs one of our programs to its end and returns what it prints.
func (d *device) run(ctx context.Context, program string, args ...string) (string, error) {
	return d.box.Output(ctx, d.environment(), append([]string{filepath.Join(d.bin, program)}, args...)...)
}

// publish assigns an application to the device, beside those it has.
func (d *device) publish(ctx context.Context, app, compose string) error {
	if err := os.MkdirAll(d.path(app), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(d.path(app+"/compose.yaml"), []byte(compose), 0o644); err != nil {
		return err
	}
	d.pushed++
	component := d.registry.Reference(fmt.Sprintf("plant/components/%s:1.0.%d", app, d.pushed))
	if _, err := d.run(ctx, "longshore", "component", "push", app, component); err != nil {
		return err
	}
	_, err := d.run(ctx, "longshore", "state", "push", "--device", soakDevice, "--key", "release.key", "--keep-others",
		"--component", component, d.registry.Reference("plant/state"))
	return err
}

func (d *device) status(ctx context.Context) (*agent.Status, error) {
	text, err := d.run(ctx, "longshore-agent", "status", "-o", "json", "--config", d.path("etc/agent.yaml"))
	if err != nil {
		return nil, err
	}
	var s agent.Status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return &s, nil
}

// settled waits until the device runs a generation completely, with so many containers.
func (d *device) settled(ctx context.Context, generation uint64, containers int) error {
	return testenv.Await(ctx, installLimit, func() error {
		if err := d.agent.Running(); err != nil {
			return err
		}
		s, err := d.status(ctx)
		if err != nil {
			return err
		}
		running := 0
		for _, p := range processes(s) {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", p)); err == nil {
				running++
			}
		}
		if s.Committed == nil || s.Committed.Generation != generation || s.Phase != agent.PhaseInSync || running != containers {
			return fmt.Errorf("device is %q with %d of %d containers; problems %+v", s.Phase, running, containers, s.Problems)
		}
		return nil
	})
}

// processes are the first processes of the containers, by container.
func processes(s *agent.Status) map[string]uint32 {
	out := map[string]uint32{}
	for _, x := range s.Deployments {
		for _, c := range x.Components {
			for _, service := range c.Services {
				if service.PID != 0 {
					out[service.Container] = service.PID
				}
			}
		}
	}
	return out
}

func (d *device) logs() string {
	text := "containerd:\n" + d.containerd.Log(8)
	if d.agent != nil {
		text += "\nagent:\n" + d.agent.Log(30)
	}
	return text
}
