// Package suite is the whole check of this repository, as one call: formatting, vet, staticcheck and every test with the
// race detector, on real programs.
//
// [Run] is what "go run ./cmd/testenv test" and continuous integration do. It prints what it is about to prepare, then one
// line for each package with what failed in it, and in the end once more what failed, and counts.
package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// testTimeout bounds each package's tests; those on real programs share two cores with others.
const testTimeout = 20 * time.Minute

// Options choose a part of the check. The zero value is all of it.
type Options struct {
	Out      io.Writer
	Packages []string // patterns for go test; nil: all
	Run      string   // regular expression of tests; "": all
	NoLint   bool     // leave out formatting, vet and staticcheck
	NoRace   bool     // without the race detector: less than half the time
	Lenient  bool     // what the machine lacks skips tests instead of failing them
}

// Run does the check. The error is nil when everything passed; counts are valid with an error too.
func Run(ctx context.Context, o Options) (Counts, error) {
	root, err := testenv.Root()
	if err != nil {
		return Counts{}, err
	}
	if err := Prepare(ctx, o.Out, o.Lenient); err != nil {
		return Counts{}, err
	}
	var (
		errs   []error
		failed []string
	)
	if !o.NoLint {
		for _, step := range lints(root) {
			start := time.Now()
			if err := step.do(ctx); err != nil {
				errs = append(errs, errors.New(step.name+" failed"))
				failed = append(failed, step.name)
				fmt.Fprintf(o.Out, "FAIL  %-50s %s\n%v\n", step.name, since(start), err)
				continue
			}
			fmt.Fprintf(o.Out, "ok    %-50s %s\n", step.name, since(start))
		}
	}
	report := Report{Out: o.Out, Keep: keepIn(os.TempDir())}
	errs = append(errs, test(ctx, root, o, &report))
	// Tests that were killed cleaned up nothing.
	errs = append(errs, testenv.SweepDead(context.WithoutCancel(ctx)))
	for _, f := range report.Failed {
		failed = append(failed, f.String())
	}
	Summarize(o.Out, failed)
	return report.Counts, errors.Join(errs...)
}

// Prepare makes everything that tests need, saying first what it installs and builds.
func Prepare(ctx context.Context, out io.Writer, lenient bool) error {
	start := time.Now()
	err := testenv.InstallDebian(ctx, out, "gcc", "libc6-dev", "nftables", "iproute2")
	if err == nil {
		err = testenv.Prepare(ctx, out)
	}
	for _, software := range testenv.Software() {
		if err == nil {
			_, err = testenv.SoftwareImage(ctx, out, software, testenv.HostPlatform())
		}
	}
	if err != nil && !lenient {
		return fmt.Errorf("prepare: %w", err)
	}
	if err != nil {
		fmt.Fprintf(out, "testenv: going on without: %v\n", err)
	}
	fmt.Fprintf(out, "ok    %-50s %s\n", "programs and images are ready", since(start))
	return nil
}

func since(start time.Time) string { return fmt.Sprintf("%.1f s", time.Since(start).Seconds()) }

type step struct {
	name string
	do   func(ctx context.Context) error
}

func lints(root string) []step {
	command := func(ctx context.Context, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = root
		text, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(text))
		}
		return nil
	}
	return []step{
		{"gofumpt", func(ctx context.Context) error { return formatted(ctx, root) }},
		{"go vet", func(ctx context.Context) error { return command(ctx, "go", "vet", "./...") }},
		{"staticcheck", func(ctx context.Context) error {
			program, err := testenv.BuildProgram(ctx, io.Discard, "staticcheck")
			if err != nil {
				return err
			}
			return command(ctx, program, "./...")
		}},
	}
}

// formatted fails when gofumpt would change a file, and names those files.
func formatted(ctx context.Context, root string) error {
	program, err := testenv.BuildProgram(ctx, io.Discard, "gofumpt")
	if err != nil {
		return err
	}
	var files []string
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "dist") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	text, err := exec.CommandContext(ctx, program, append([]string{"-l"}, files...)...).CombinedOutput()
	if err != nil || len(text) > 0 {
		return fmt.Errorf("these files are not formatted (gofumpt -w FILE): %w\n%s", err, bytes.TrimSpace(text))
	}
	return nil
}

// test runs go test and counts.
func test(ctx context.Context, root string, o Options, report *Report) error {
	args := []string{"test", "-json", "-shuffle=on", "-timeout", testTimeout.String()}
	if !o.NoRace {
		args = append(args, "-race")
	}
	if o.Run != "" {
		args = append(args, "-run", o.Run)
	}
	if len(o.Packages) == 0 {
		o.Packages = []string{"./..."}
	}
	cmd := exec.CommandContext(ctx, "go", append(args, o.Packages...)...)
	cmd.Dir = root
	cmd.Env = os.Environ()
	if !o.Lenient {
		cmd.Env = append(cmd.Env, "TESTENV_REQUIRE=1")
	}
	if !o.NoRace {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stderr = o.Out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // go test then ends its children
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	errRead := report.Read(out)
	errWait := cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errWait != nil && report.Counts.Failed == 0 {
		return errors.Join(fmt.Errorf("go test: %w", errWait), errRead)
	}
	if report.Counts.Failed > 0 {
		return errors.New("tests failed")
	}
	return errRead
}
