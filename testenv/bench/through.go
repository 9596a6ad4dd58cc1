package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/testenv"
)

// throughRounds is how many projects are started one after the other; throughPoll how often each is asked.
const (
	throughRounds = 5
	throughPoll   = 2 * time.Millisecond
	throughLimit  = time.Minute
)

// through measures a project of two services through the whole agent: from the sync command until both
// answer, with the state's check, its signature, the component's archive, admission and the plan on the way.
func through(ctx context.Context, bin string, out io.Writer) (samples map[string]sample, err error) {
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	d, err := newDevice(ctx, box, bin, out)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		d.image,
		func(ctx context.Context) error { return d.publish(ctx, 0, 1) }, // its image is the one that all have
		d.boot,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("a project through the agent: %w\n%s", err, d.Logs())
		}
	}
	var took []float64
	for n := range throughRounds {
		one, err := d.startTwo(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("a project through the agent: %w\n%s", err, d.Logs())
		}
		took = append(took, float64(one.Microseconds())/1000)
	}
	samples = map[string]sample{"project through the agent": middle("ours-ms", took)}
	if samples["project updated through the agent"], err = d.update(ctx); err != nil {
		return nil, fmt.Errorf("an update through the agent: %w\n%s", err, d.Logs())
	}
	return samples, d.Agent.Stop()
}

// startTwo assigns a new project to the device and waits until its services answer.
func (d *device) startTwo(ctx context.Context, n int) (time.Duration, error) {
	name := fmt.Sprintf("two-%d", n)
	first, err := testenv.FreePort()
	if err != nil {
		return 0, err
	}
	second, err := testenv.FreePort()
	if err != nil {
		return 0, err
	}
	compose := fmt.Sprintf(`services:
  first: {image: %[1]q, command: [serve, "8080", hello], ports: ["127.0.0.1:%[2]d:8080"]}
  second: {image: %[1]q, command: [serve, "8080", hello], ports: ["127.0.0.1:%[3]d:8080"]}
`, d.Registry.Reference("plant/toolbox:1"), first, second)
	component, err := d.Component(ctx, name, "1.0.0", compose)
	if err != nil {
		return 0, err
	}
	if err := d.Release(ctx, component); err != nil {
		return 0, err
	}
	began := time.Now()
	synced := make(chan error, 1)
	go func() { // ends with the command, which is waited for
		_, err := d.Control(ctx, "sync", "--timeout", throughLimit.String())
		synced <- err
	}()
	errs := []error{answers(ctx, first), answers(ctx, second)}
	took := time.Since(began)
	return took, errors.Join(append(errs, <-synced)...)
}

// answers waits for HTTP 200.
func answers(ctx context.Context, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, throughLimit)
	defer cancel()
	for {
		if _, err := testenv.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/", port)); err == nil {
			return nil
		}
		if err := delay.For(ctx, throughPoll); err != nil {
			return fmt.Errorf("port %d does not answer: %w", port, err)
		}
	}
}
