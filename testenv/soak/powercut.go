package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/testenv"
)

// PowerCutOptions of a run.
type PowerCutOptions struct {
	Out     io.Writer
	Rounds  int    // 0: 200
	Seed    uint64 // 0: one of its own, printed; the same seed cuts at the same times
	Release testenv.Release
}

// PowerCutFigures are what a run saw.
type PowerCutFigures struct {
	Rounds, Cuts int            // a round has more than one cut when the repair is cut as well
	At           map[string]int // cuts by what the device was doing
	Emptied      int            // cuts after which unpacked files had lost their content
	EmptiedFiles int            // such files in all, before the repair
	Compared     int            // files compared with the registry's
	Longest      time.Duration  // from the start of the daemons until everything ran and was compared
	Total        time.Duration  // of all those
}

const (
	powerCutRounds = 200
	powerCutDisk   = 3 << 30
	// repairLimit is how long a device may take from power on until everything runs. Machines that test are slow.
	repairLimit = 2 * time.Minute
)

// PowerCut updates a device again and again, and cuts its power at random points of pull, unpack and update: the agent,
// containerd and its shims die at one instant, and what the disk did not have by then is lost. After each cut the device
// starts again; then every image must be the registry's, file by file, and every workload must run the new generation.
func PowerCut(ctx context.Context, o PowerCutOptions) (figures PowerCutFigures, err error) {
	o.Rounds = cmp.Or(o.Rounds, powerCutRounds)
	o.Seed = cmp.Or(o.Seed, rand.Uint64())
	fmt.Fprintf(o.Out, "power cuts: %d rounds, seed %d, containerd %s\n", o.Rounds, o.Seed, o.Release)
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	d, err := newCutDevice(ctx, box, o)
	if err != nil {
		return figures, err
	}
	figures.At = map[string]int{}
	began := time.Now()
	for n := range o.Rounds {
		if err := d.round(ctx, n+1, &figures); err != nil {
			figures.tell(o.Out, time.Since(began))
			if ctx.Err() != nil {
				return figures, fmt.Errorf("ended in round %d of seed %d: %w", n+1, o.Seed, context.Cause(ctx))
			}
			return figures, fmt.Errorf("round %d of seed %d: %w\n%s", n+1, o.Seed, err, d.Logs())
		}
		figures.Rounds++
	}
	figures.tell(o.Out, time.Since(began))
	return figures, nil
}

func (f PowerCutFigures) tell(out io.Writer, took time.Duration) {
	fmt.Fprintf(out, "%d rounds, %d cuts in %.0f s: all came back, the longest in %.1f s, %.1f s on average; cut while %v\n",
		f.Rounds, f.Cuts, took.Seconds(), f.Longest.Seconds(), f.Total.Seconds()/float64(max(f.Rounds, 1)), f.At)
	fmt.Fprintf(out, "%d files compared with the registry's, all equal; %d cuts had emptied %d unpacked files before the repair\n",
		f.Compared, f.Emptied, f.EmptiedFiles)
}

// round updates the device to the next generation, cuts its power on the way and looks at what comes back.
func (d *cutDevice) round(ctx context.Context, n int, figures *PowerCutFigures) error {
	dice := rand.New(rand.NewPCG(d.seed, uint64(n)))
	if err := d.publish(ctx, n); err != nil {
		return err
	}
	where, err := d.cutDuring(ctx, dice)
	if err != nil {
		return err
	}
	figures.Cuts++
	figures.At[where]++
	emptied, err := d.emptied()
	if err != nil {
		return err
	}
	again := dice.IntN(4) == 0
	if again { // the repair is cut as well
		if err := d.powerOn(ctx); err != nil {
			return err
		}
		pause := time.Duration(dice.Int64N(int64(1500 * time.Millisecond)))
		if err := delay.For(ctx, pause); err != nil {
			return err
		}
		if err := d.cut(ctx); err != nil {
			return err
		}
		figures.Cuts++
		figures.At["coming back"]++
		more, err := d.emptied()
		if err != nil {
			return err
		}
		emptied = max(emptied, more)
	}
	if emptied > 0 {
		figures.Emptied++
		figures.EmptiedFiles += emptied
	}
	began := time.Now()
	if err := d.powerOn(ctx); err != nil {
		return err
	}
	if err := testenv.Await(ctx, repairLimit, func() error { return errors.Join(d.Agent.Running(), d.runs(ctx)) }); err != nil {
		return fmt.Errorf("cut while %s: %w", where, err)
	}
	compared, different := 0, error(nil)
	err = testenv.Await(ctx, repairLimit, func() (err error) {
		compared, err = d.compare(ctx)
		if !errdefs.IsNotFound(err) {
			different = err
			return nil
		}
		return err // the agent collects what it no longer needs meanwhile
	})
	if err = errors.Join(err, different); err != nil {
		return fmt.Errorf("cut while %s: %w", where, err)
	}
	took := time.Since(began)
	figures.Compared += compared
	figures.Longest, figures.Total = max(figures.Longest, took), figures.Total+took
	twice := ""
	if again {
		twice = ", and again on the way back"
	}
	fmt.Fprintf(d.Out, "round %3d: cut while %s%s; %d files were empty; all well after %.1f s, %d files equal\n", n, where, twice, emptied, took.Seconds(), compared)
	return nil
}
