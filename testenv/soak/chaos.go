package soak

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// ChaosOptions of kills at random.
type ChaosOptions struct {
	Out        io.Writer
	Containers int           // in applications of five; 0: 50
	Duration   time.Duration // 0: an hour
	Seed       uint64        // 0: a new one, which is printed
	Rate       float64       // times the usual rate of kills; 0: 1
}

// ChaosFigures are what was killed and how the device came back.
type ChaosFigures struct {
	Kills  map[string]int
	Back   time.Duration // from the last kill until everything ran again
	Before testenv.Holdings
	After  testenv.Holdings

	Goroutines, Fresh int // of the agent after it all, and of one that was just started
}

const (
	chaosApp   = 5 // services of an application
	chaosPause = 1500 * time.Millisecond
	fileSlack  = 12 // connections that come and go

	minRate = 0.01
	maxRate = 100.0

	goroutineSlack = 25
)

// Chaos kills at random what makes a device: containers, shims, the agent, containerd. Afterwards everything must run again,
// and the device hold what it held before: nothing may leak.
func Chaos(ctx context.Context, o ChaosOptions) (figures ChaosFigures, err error) {
	o.Containers, o.Duration, o.Rate = cmp.Or(o.Containers, 50), cmp.Or(o.Duration, time.Hour), cmp.Or(o.Rate, 1)
	if o.Rate < minRate || o.Rate > maxRate || o.Containers < 1 {
		return figures, fmt.Errorf("chaos of %d containers at %g times the usual rate: at least one container, %g to %g times", o.Containers, o.Rate, minRate, maxRate)
	}
	o.Seed = cmp.Or(o.Seed, rand.Uint64())
	fmt.Fprintf(o.Out, "chaos: %d containers, %v, %g times the usual rate, seed %d\n", o.Containers, o.Duration, o.Rate, o.Seed)
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	d, err := newDevice(ctx, box, o.Out, "10.216.0.0/16")
	if err != nil {
		return figures, err
	}
	apps := (o.Containers + chaosApp - 1) / chaosApp
	for app := range apps {
		if err := d.publish(ctx, fmt.Sprintf("app-%d", app), d.crowd(app, min(chaosApp, o.Containers-app*chaosApp))); err != nil {
			return figures, err
		}
	}
	if err := d.boot(ctx); err != nil {
		return figures, err
	}
	began := time.Now()
	if err := d.settled(ctx, uint64(apps), o.Containers); err != nil {
		return figures, fmt.Errorf("installation: %w\n%s", err, d.Logs())
	}
	fmt.Fprintf(o.Out, "%d containers run after %.1f s\n", o.Containers, time.Since(began).Seconds())
	if figures.Before, err = d.holdings(ctx); err != nil {
		return figures, err
	}
	if figures.Kills, err = d.havoc(ctx, o); err != nil {
		return figures, fmt.Errorf("seed %d: %w\n%s", o.Seed, err, d.Logs())
	}
	began = time.Now()
	if err := d.settled(ctx, uint64(apps), o.Containers); err != nil {
		logs := d.Logs()
		return figures, fmt.Errorf("seed %d: after %v: %w\nmore in %s\n%s", o.Seed, figures.Kills, err, d.stuck(), logs)
	}
	figures.Back = time.Since(began)
	// What was in flight ends by itself: holdings are looked at until they agree.
	err = testenv.Await(ctx, installLimit, func() error {
		var err error
		if figures.After, err = d.holdings(ctx); err != nil {
			return err
		}
		return leaked(figures.Before, figures.After)
	})
	fmt.Fprintf(o.Out, "killed %v; all ran again %.1f s after the last kill\nheld before %v\nheld after  %v\n", figures.Kills, figures.Back.Seconds(), figures.Before, figures.After)
	if err != nil {
		return figures, fmt.Errorf("seed %d: %w\nmore in %s\n%s", o.Seed, err, d.stuck(), d.shims())
	}
	return figures, d.compareGoroutines(ctx, &figures, uint64(apps), o)
}

// compareGoroutines holds the agent that lived through the chaos against one that was just started.
func (d *device) compareGoroutines(ctx context.Context, figures *ChaosFigures, generation uint64, o ChaosOptions) error {
	for _, n := range []*int{&figures.Goroutines, &figures.Fresh} {
		var err error
		if *n, err = d.goroutines(); err != nil {
			return err
		}
		if err := errors.Join(d.Agent.Start(), d.settled(ctx, generation, o.Containers)); err != nil {
			return fmt.Errorf("seed %d: %w\n%s", o.Seed, err, d.Logs())
		}
	}
	fmt.Fprintf(o.Out, "goroutines of the agent: %d after it all, %d after a start\n", figures.Goroutines, figures.Fresh)
	if figures.Goroutines > figures.Fresh+goroutineSlack {
		return fmt.Errorf("seed %d: the agent has %d goroutines, a fresh one %d", o.Seed, figures.Goroutines, figures.Fresh)
	}
	return nil
}

// goroutines ends the agent with SIGQUIT, which prints all goroutines, and counts them.
func (d *device) goroutines() (int, error) {
	before, err := os.ReadFile(d.Agent.LogFile)
	if err != nil {
		return 0, err
	}
	done := d.Agent.Done()
	if err := syscall.Kill(d.Agent.PID(), syscall.SIGQUIT); err != nil {
		return 0, err
	}
	<-done
	after, err := os.ReadFile(d.Agent.LogFile)
	if err != nil {
		return 0, err
	}
	n := bytes.Count(after[len(before):], []byte("\ngoroutine "))
	if n < 2 {
		return 0, fmt.Errorf("%d goroutines in the agent's last words", n)
	}
	return n, nil
}

// crowd is an application of services that know each other, one of them with a health check and a port.
func (d *device) crowd(app, services int) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for s := range services {
		fmt.Fprintf(&b, "  s%d:\n    image: %s\n    restart: always\n    command: [serve, \"8080\", app %d]\n", s, d.Registry.Reference(soakImage), app)
		switch s {
		case 0:
			b.WriteString("    healthcheck: {x-longshore-probe: {tcp: 8080}, interval: 2s}\n    volumes: [\"data:/data\"]\n")
		case 1:
			b.WriteString("    depends_on: {s0: {condition: service_healthy}}\n")
		}
	}
	b.WriteString("volumes: {data: {}}\n")
	return b.String()
}

func (d *device) holdings(ctx context.Context) (testenv.Holdings, error) {
	return d.Box.Holdings(ctx, d.Containerd, d.Table(), d.Path("run"), map[string]int{"the agent": d.Agent.PID(), "containerd": d.Containerd.PID()})
}

// leaked is an error that names what increased or decreased. Open files of processes may differ a little.
func leaked(before, after testenv.Holdings) error {
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(before)) {
		slack := 0
		if strings.HasPrefix(what, "files of ") {
			slack = fileSlack
		}
		if a, b := after[what], before[what]; a > b+slack || a < b && slack == 0 {
			errs = append(errs, fmt.Errorf("%s: %d before, %d after", what, b, a))
		}
	}
	return errors.Join(errs...)
}

// havoc kills until the time is over, and starts again what systemd would.
func (d *device) havoc(ctx context.Context, o ChaosOptions) (map[string]int, error) {
	dice := rand.New(rand.NewPCG(o.Seed, 1))
	pause := time.Duration(float64(chaosPause) / o.Rate)
	kills := map[string]int{}
	for end := time.Now().Add(o.Duration); time.Now().Before(end); {
		if err := delay.For(ctx, time.Duration(dice.Int64N(int64(pause)))); err != nil {
			return kills, err
		}
		roll, pick := dice.IntN(100), dice.IntN(1<<16)
		what, err := d.strike(ctx, roll, pick, time.Duration(dice.IntN(300))*time.Millisecond)
		if err != nil {
			return kills, fmt.Errorf("after %v: %w", kills, err)
		}
		kills[what]++
	}
	return kills, nil
}

// strike kills one thing, and starts it again after a pause when nothing else would.
func (d *device) strike(ctx context.Context, roll, pick int, pause time.Duration) (string, error) {
	switch {
	case roll < 8:
		d.Agent.Kill()
		if err := delay.For(ctx, pause); err != nil {
			return "", err
		}
		return "agent", d.Agent.Start()
	case roll < 14:
		d.Containerd.Kill()
		if err := delay.For(ctx, pause); err != nil {
			return "", err
		}
		return "containerd", d.Containerd.Start(ctx)
	case roll < 24:
		if shims := d.Containerd.Shims(); len(shims) > 0 {
			_ = syscall.Kill(shims[pick%len(shims)], syscall.SIGKILL) // gone is as good
			return "shim", nil
		}
		return "nothing", nil
	}
	s, err := d.Status(ctx)
	if err != nil {
		return "nothing", nil // the agent may be starting
	}
	running := world.Processes(s)
	if len(running) == 0 {
		return "nothing", nil
	}
	id := slices.Sorted(maps.Keys(running))[pick%len(running)]
	_ = syscall.Kill(int(running[id]), syscall.SIGKILL) // gone is as good
	return "container", nil
}
