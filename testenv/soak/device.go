package soak

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

const (
	soakImage    = "plant/toolbox:1"
	installLimit = 5 * time.Minute // also for what chaos left to be put right: pauses between restarts grow to a minute
)

// device is a world whose applications all run one image.
type device struct {
	*world.World
	pushed int // components, and so versions of them
}

// newDevice starts the servers and makes the key. The pool keeps devices of one machine apart.
func newDevice(ctx context.Context, box *testenv.Box, out io.Writer, pool string) (*device, error) {
	w, err := world.New(ctx, world.Options{Box: box, Out: out, Name: "soak", Pool: pool, Poll: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	img, err := testenv.SoftwareImage(ctx, out, "toolbox", testenv.HostPlatform())
	if err != nil {
		return nil, err
	}
	if _, err := w.Registry.Push(ctx, soakImage, img); err != nil {
		return nil, err
	}
	_, err = w.Run(ctx, "longshore", "key", "generate", "release")
	return &device{World: w}, err
}

// boot configures the agent and starts it.
func (d *device) boot(ctx context.Context) error {
	if err := d.Init(ctx); err != nil {
		return err
	}
	return d.Boot(ctx)
}

// publish assigns an application to the device, beside those it has.
func (d *device) publish(ctx context.Context, app, compose string) error {
	d.pushed++
	component, err := d.Component(ctx, app, fmt.Sprintf("1.0.%d", d.pushed), compose)
	if err != nil {
		return err
	}
	return d.Release(ctx, component)
}

// settled waits until the device runs a generation completely, with so many containers.
func (d *device) settled(ctx context.Context, generation uint64, containers int) error {
	return testenv.Await(ctx, installLimit, func() error {
		if err := d.InSync(ctx, generation); err != nil {
			return err
		}
		s, err := d.Status(ctx)
		if err != nil {
			return err
		}
		running := 0
		for _, p := range world.Processes(s) {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", p)); err == nil {
				running++
			}
		}
		if running != containers {
			return fmt.Errorf("%d of %d containers run", running, containers)
		}
		return nil
	})
}
