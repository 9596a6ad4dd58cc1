package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/budget"
)

// budgetFlags say how much of a link a command may use.
func budgetFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "max-rate", Category: budgetCategory, Usage: "at most `SIZE` a second in each direction, for all requests together, such as 2MB"},
		&cli.StringFlag{Name: "max-bytes", Category: budgetCategory, Usage: "at most `SIZE` in each direction in this run, such as 5GB; then the command ends with exit code 75, and the next run continues"},
		&cli.StringSliceFlag{Name: "window", Category: budgetCategory, Usage: "transfer only in these `HOURS`, in local time, such as 22:00-06:00 or \"Mon-Fri 22:00-06:00\"; outside of them the command waits; may be repeated"},
		&cli.BoolFlag{Name: "no-wait", Category: budgetCategory, Usage: "outside of the hours of --window, end with exit code 75 instead of waiting"},
	}
}

const budgetCategory = "Limits"

// sizeFlag reads a flag such as 5GB or 512MiB; 0: it is not given.
func sizeFlag(c *cli.Context, name string) (int64, error) {
	s := c.String(name)
	if s == "" {
		return 0, nil
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return 0, misused(c, "--%s %q is no size, such as 500kB, 5GB or 512MiB", name, s)
	}
	return int64(n), nil
}

// requestsAtOnce are the requests to one registry that may be under way; 0: any number.
func requestsAtOnce(c *cli.Context) int {
	if budgetOf(c) != nil && c.IsSet("concurrency") {
		return c.Int("concurrency")
	}
	return c.Int("parallel")
}

type budgetKey struct{}

// budgetOf is the budget of a command that [program.budgeted] runs; nil for others.
func budgetOf(c *cli.Context) *budget.Budget {
	b, _ := c.Context.Value(budgetKey{}).(*budget.Budget)
	return b
}

// budgeted runs a command within the limits that its flags say.
func (p *program) budgeted(run func(*cli.Context, []string) error) func(*cli.Context, []string) error {
	return func(c *cli.Context, args []string) error {
		o := budget.Options{NoWait: c.Bool("no-wait"), Now: func() time.Time { return p.now().Local() }}
		var err error
		if o.Rate, err = sizeFlag(c, "max-rate"); err != nil {
			return err
		}
		if o.Total, err = sizeFlag(c, "max-bytes"); err != nil {
			return err
		}
		for _, s := range c.StringSlice("window") {
			w, err := budget.ParseWindow(s)
			if err != nil {
				return fmt.Errorf("--window: %w", err)
			}
			o.Windows = append(o.Windows, w)
		}
		if o.NoWait && len(o.Windows) == 0 {
			return misused(c, "--no-wait needs --window")
		}
		if !c.Bool("quiet") {
			o.Tell = func(s string) { fmt.Fprintln(p.stderr, s) }
		}
		b, ctx, cancel := budget.New(c.Context, o)
		defer cancel()
		c.Context = context.WithValue(ctx, budgetKey{}, b)
		err = run(c, args)
		if cause := context.Cause(ctx); err != nil && cause != nil && errors.Is(err, context.Canceled) && fault.Retryable(cause) {
			err = cause // what the context of a part of the run says of its end is less
		}
		if errors.Is(err, budget.ErrUsed) && fault.Hint(err) == "" {
			err = fault.WithHint(err, "they were used before anything was copied, to find and verify what is needed: repeat with a larger --max-bytes")
		}
		return err
	}
}
