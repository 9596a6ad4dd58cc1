package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry/budget"
)

// budgetFlags limit how much of a link a command uses.
var budgetFlags = []cmdline.Flag{
	{Name: "max-rate", Category: budgetCategory, Usage: "at most `SIZE` a second in each direction, for all requests together, such as 2MB"},
	{Name: "max-bytes", Category: budgetCategory, Usage: "at most `SIZE` in each direction in this run, such as 5GB; then the command ends with exit code 75, and the next run continues"},
	{Name: "window", Value: []string(nil), Category: budgetCategory, Usage: "transfer only in these `HOURS`, in local time, such as 22:00-06:00 or \"Mon-Fri 22:00-06:00\"; outside of them the command waits; may be repeated"},
	{Name: "no-wait", Value: false, Category: budgetCategory, Usage: "outside of the hours of --window, end with exit code 75 instead of waiting"},
}

const budgetCategory = "Limits"

// sizeFlag reads a flag such as 5GB or 512MiB; 0 means that it is not set.
func (c *call) sizeFlag(name string) (int64, error) {
	s := c.String(name)
	if s == "" {
		return 0, nil
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return 0, c.misused("--%s %q is not a size such as 500kB, 5GB or 512MiB", name, s)
	}
	return int64(n), nil
}

// requestsAtOnce is the number of concurrent requests to one registry; 0 means any number.
func (c *call) requestsAtOnce() int {
	if c.budget != nil && c.IsSet("concurrency") {
		return c.Int("concurrency")
	}
	return c.Int("parallel")
}

// limited does something within the limits that budgetFlags set.
func (c *call) limited(do func() error) error {
	o := budget.Options{NoWait: c.Bool("no-wait"), Now: func() time.Time { return c.now().Local() }}
	var err error
	if o.Rate, err = c.sizeFlag("max-rate"); err != nil {
		return err
	}
	if o.Total, err = c.sizeFlag("max-bytes"); err != nil {
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
		return c.misused("--no-wait needs --window")
	}
	if !c.Bool("quiet") {
		o.Tell = func(s string) { fmt.Fprintln(c.stderr, s) }
	}
	limits, ctx, cancel := budget.New(c.Context, o)
	defer cancel()
	c.budget, c.Context = limits, ctx
	err = do()
	if cause := context.Cause(ctx); err != nil && cause != nil && errors.Is(err, context.Canceled) && fault.Retryable(cause) {
		err = cause // the error of a cancelled part says less
	}
	if errors.Is(err, budget.ErrUsed) && fault.Hint(err) == "" {
		err = fault.WithHint(err, "all bytes were used to find and verify what is needed, before the first copy: repeat with a larger --max-bytes")
	}
	return err
}
