package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// Stage is where the demo plays: it narrates, counts time, and ends everything that scenes start.
type Stage struct {
	Box *testenv.Box
	Bin string // folder with our programs, once Build was called

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
	return &Stage{Box: box, Bin: filepath.Join(box.Dir(), "bin"), out: out, start: time.Now()}, nil
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

// Build compiles our programs into Bin, as a release does.
func (s *Stage) Build(ctx context.Context, programs ...string) error {
	return testenv.BuildOwn(ctx, s.Bin, programs...)
}

// Result is what a command printed and how it ended.
type Result struct {
	Stdout string
	Stderr string
	Code   int
}

// Exec runs a program of Bin, or by its full path, to its end. A code other than 0 is no error here: scenes compare it.
func (s *Stage) Exec(ctx context.Context, env []string, program string, args ...string) (Result, error) {
	if !filepath.IsAbs(program) {
		program = filepath.Join(s.Bin, program)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = s.Box.Dir()
	cmd.Env = append(os.Environ(), env...)
	s.Box.Mark(cmd)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil {
		err = nil
	}
	return r, err
}

// Must is Exec that takes only code 0.
func (s *Stage) Must(ctx context.Context, env []string, program string, args ...string) (Result, error) {
	r, err := s.Exec(ctx, env, program, args...)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("%s %s: exit %d\n%s", program, strings.Join(args, " "), r.Code, strings.TrimSpace(r.Stderr))
	}
	return r, err
}

// table prints all that was shown.
func (s *Stage) table() {
	fmt.Fprintf(s.out, "\nShown in %.1f s:\n\n", time.Since(s.start).Seconds())
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, r := range s.rows {
		fmt.Fprintf(w, "  %s\t%s\t%.2f s\n", r.what, r.shown, r.took.Seconds())
	}
	_ = w.Flush()
}
