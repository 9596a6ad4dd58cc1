package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// The idle device: a few applications of a few services each.
const (
	idleApps       = 4
	idleServices   = 5
	idleContainers = idleApps * idleServices
	idlePoll       = 10 * time.Second // six times the default's, so that a short span holds some
	idleQuiet      = 5 * time.Second  // so long nothing was written: reports are delivered, leftovers looked for
	idleSettle     = time.Minute      // wait no longer: constant writes must be visible
	idleRest       = 25 * time.Second // so long after its last work an agent has given its memory back
	installLimit   = 3 * time.Minute
)

// device is a world with a fleet endpoint.
type device struct {
	*world.World
	want int // containers that it shall run
}

// idle measures what a device costs while nothing changes: of 5 containers all of it, of 20 the agent.
func idle(ctx context.Context, box *testenv.Box, bin string, out io.Writer, span time.Duration) (map[string]sample, error) {
	d, err := newDevice(ctx, box, bin, out)
	if err != nil {
		return nil, err
	}
	samples := map[string]sample{}
	for _, step := range []func(context.Context) error{
		d.image,
		func(ctx context.Context) error { return d.publish(ctx, 0, 1) },
		d.boot,
		func(ctx context.Context) error {
			var err error
			samples["few containers"], err = d.everything()
			return err
		},
		func(ctx context.Context) error { return d.publish(ctx, 1, idleApps) },
		d.settle,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("idle agent: %w\n%s", err, d.Logs())
		}
	}
	if samples["idle agent"], err = d.watch(ctx, span); err == nil {
		samples["idle agent, restarted"], err = d.again(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("idle agent: %w\n%s", err, d.Logs())
	}
	return samples, d.Agent.Stop()
}

func newDevice(ctx context.Context, box *testenv.Box, bin string, out io.Writer) (*device, error) {
	w, err := world.New(ctx, world.Options{Box: box, Bin: bin, Out: out, Name: "bench", Pool: "10.218.0.0/16", Poll: idlePoll})
	if err != nil {
		return nil, err
	}
	return &device{World: w}, nil
}

func (d *device) image(ctx context.Context) error {
	image, err := testenv.SoftwareImage(ctx, d.Out, "toolbox", testenv.HostPlatform())
	if err != nil {
		return err
	}
	_, err = d.Registry.Push(ctx, "plant/toolbox:1", image)
	return err
}

// everything is what the whole of longshore holds on the device, containerd and shims with it.
func (d *device) everything() (sample, error) {
	beside, err := weigh(d.Containerd, d.Containerd.Bin)
	if err != nil {
		return nil, err
	}
	fields, err := testenv.Account(fmt.Sprintf("/proc/%d/smaps_rollup", d.Agent.PID()))
	return sample{"pss-MiB": (fields["Pss"]*1024 + beside) / (1 << 20), "agent-MiB": fields["Pss"] / 1024}, err
}

// publish releases applications and assigns them to the device, one after the other.
func (d *device) publish(ctx context.Context, from, to int) error {
	if from == 0 {
		if _, err := d.Run(ctx, "longshore", "key", "generate", "release"); err != nil {
			return err
		}
	}
	d.want = to * idleServices
	for app := from; app < to; app++ {
		name := fmt.Sprintf("app-%d", app)
		var b strings.Builder
		b.WriteString("services:\n")
		for service := range idleServices {
			fmt.Fprintf(&b, "  s%d:\n    image: %s\n    command: [sleep]\n    restart: always\n", service, d.Registry.Reference("plant/toolbox:1"))
		}
		component, err := d.Component(ctx, name, "1.0.0", b.String())
		if err != nil {
			return err
		}
		if err := d.Release(ctx, component); err != nil {
			return err
		}
	}
	return nil
}

// boot starts the agent and waits until all containers run and all reports are out.
func (d *device) boot(ctx context.Context) error {
	if err := d.StartFleet(ctx); err != nil {
		return err
	}
	if err := d.Init(ctx); err != nil {
		return err
	}
	if err := d.Boot(ctx); err != nil {
		return err
	}
	return d.settle(ctx)
}

// settle waits until everything runs, nothing is written any more, and the agent rests.
func (d *device) settle(ctx context.Context) error {
	if err := d.quiet(ctx); err != nil {
		return err
	}
	return delay.For(ctx, idleRest)
}

func (d *device) quiet(ctx context.Context) error {
	if err := testenv.Await(ctx, installLimit, func() error { return errors.Join(d.Agent.Running(), d.settled(ctx)) }); err != nil {
		return err
	}
	last := -1.0
	for began := time.Now(); time.Since(began) < idleSettle; {
		u, err := look(d.Agent.PID())
		if err != nil || u.written == last {
			return err
		}
		last = u.written
		if err := delay.For(ctx, idleQuiet); err != nil {
			return err
		}
	}
	return nil
}

// settled is nil when everything runs and nothing waits to be reported.
func (d *device) settled(ctx context.Context) error {
	if err := d.InSync(ctx, 0); err != nil {
		return err
	}
	s, err := d.Status(ctx)
	if err != nil {
		return err
	}
	if running := len(world.Processes(s)); running != d.want {
		return fmt.Errorf("%d of %d containers run", running, d.want)
	}
	return nil
}

// watch looks at the agent's process at both ends of the span.
func (d *device) watch(ctx context.Context, span time.Duration) (sample, error) {
	before, err := look(d.Agent.PID())
	if err != nil {
		return nil, err
	}
	d.Registry.Faults.Forget()
	began := time.Now()
	if err := delay.For(ctx, span); err != nil {
		return nil, err
	}
	if err := d.Agent.Running(); err != nil {
		return nil, err
	}
	after, err := look(d.Agent.PID())
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	beside, err := weigh(d.Containerd, d.Containerd.Bin)
	const mib = 1 << 20
	return sample{
		"pss-MiB":       after.pss / mib,
		"anon-MiB":      after.anonymous / mib,
		"cpu-%":         100 * (after.cpu - before.cpu).Seconds() / took.Seconds(),
		"written-KiB/h": (after.written - before.written) / 1024 * time.Hour.Seconds() / took.Seconds(),
		"beside-MiB":    beside / mib,
		"polls":         float64(len(d.Registry.Faults.Requests("", ""))),
	}, err
}

// again looks at the agent after a restart, when it found everything running.
func (d *device) again(ctx context.Context) (sample, error) {
	if err := errors.Join(d.Agent.Stop(), d.Agent.Start()); err != nil {
		return nil, err
	}
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	u, err := look(d.Agent.PID())
	return sample{"pss-MiB": u.pss / (1 << 20), "anon-MiB": u.anonymous / (1 << 20)}, err
}

// usage is what a process has taken. Memory is in bytes; of a page that n processes share, an nth counts.
type usage struct {
	pss, anonymous, written float64
	cpu                     time.Duration
}

// look reads the kernel's accounts of a process.
func look(pid int) (u usage, err error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	fields, err := testenv.Account(dir + "smaps_rollup")
	if err != nil {
		return u, err
	}
	u.pss, u.anonymous = fields["Pss"]*1024, fields["Anonymous"]*1024
	if fields, err = testenv.Account(dir + "io"); err != nil {
		return u, err
	}
	u.written = fields["write_bytes"] // towards a block device; not what goes to a tmpfs or a socket
	// stat counts whole ticks, too coarse for what is idle.
	tasks, err := filepath.Glob(dir + "task/*/schedstat")
	if err != nil || len(tasks) == 0 {
		return u, errors.Join(fmt.Errorf("no schedstat of process %d", pid), err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return u, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return u, fmt.Errorf("%s: %w", task, err)
		}
		u.cpu += time.Duration(ns)
	}
	return u, nil
}
