package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// Stage is where the demo plays: it narrates, counts time, and ends everything that scenes start.
type Stage struct {
	Box *testenv.Box

	out   io.Writer
	start time.Time
	rows  []row
}

// row is one line of the final table.
type row struct {
	what, shown string
	took        time.Duration
}

// newStage opens a stage; close it.
func newStage(ctx context.Context, out io.Writer) (*Stage, error) {
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return nil, err
	}
	if err := box.Adopt(); err != nil {
		return nil, errors.Join(err, box.Empty())
	}
	return &Stage{Box: box, out: out, start: time.Now()}, nil
}

// Say narrates: one short line.
func (s *Stage) Say(format string, args ...any) {
	fmt.Fprintf(s.out, "           %s\n", fmt.Sprintf(format, args...))
}

// Chapter says what the next steps are about.
func (s *Stage) Chapter(title string) { fmt.Fprintf(s.out, "\n%s\n", title) }

// Step does something and says how long it took and what came of it; do returns that in a few words. What failed is
// told with the name of the step.
func (s *Stage) Step(ctx context.Context, what string, do func(ctx context.Context) (shown string, err error)) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	start := time.Now()
	shown, err := do(ctx)
	took := time.Since(start)
	if err != nil {
		fmt.Fprintf(s.out, "  %6.2f s  %s: FAILED\n", took.Seconds(), what)
		return fmt.Errorf("%s: %w", what, err)
	}
	line := what
	if shown != "" {
		line += ": " + shown
	}
	fmt.Fprintf(s.out, "  %6.2f s  %s\n", took.Seconds(), line)
	s.rows = append(s.rows, row{what, shown, took})
	return nil
}

// summary prints all that was shown, once more and together.
func summary(_ context.Context, s *show) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, r := range s.rows {
		fmt.Fprintf(w, "  %s\t%s\t%.2f s\n", r.what, r.shown, r.took.Seconds())
	}
	fmt.Fprintf(w, "  everything\t\t%.2f s\n", time.Since(s.start).Seconds())
	return w.Flush()
}
