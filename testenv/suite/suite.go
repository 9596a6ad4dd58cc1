// Package suite is the whole check of this repository, as one call: formatting, vet, staticcheck and every test, on real
// programs.
//
// [Run] is what "go run ./cmd/testenv test" and continuous integration do. It prints what it is about to prepare, then one
// line for each package with what failed in it, and in the end once more what failed, and counts. Two lanes go side by side:
// the tests with the race detector, and the linters followed by the packages that only start our programs as processes of
// their own, which the detector would not see into. More at a time takes no less time, and fails tests with time limits.
package suite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gotest.tools/gotestsum/testjson"

	"github.com/longshore-dev/longshore/testenv"
)

// testTimeout bounds each package's tests; those on real programs share two cores with others.
const (
	testTimeout    = 30 * time.Minute
	nightlyTimeout = 3 * time.Hour
)

// Options choose a part of the check. The zero value is all of it.
type Options struct {
	Out      io.Writer
	Packages []string // patterns for go test; nil: all
	Run      string   // regular expression of tests; "": all
	NoLint   bool     // leave out formatting, vet and staticcheck
	NoRace   bool     // without the race detector
	Nightly  bool     // at full length and in another order each time, see [testenv.Nightly]
	Lenient  bool     // what the machine lacks skips tests instead of failing them
}

// Run does the check. The error is nil when everything passed.
func Run(ctx context.Context, o Options) error {
	root, err := testenv.Root()
	if err != nil {
		return err
	}
	if err := Prepare(ctx, o.Out, o.Lenient); err != nil {
		return err
	}
	// Tests that are killed clean up nothing.
	return errors.Join(check(ctx, root, o), testenv.SweepDead(context.WithoutCancel(ctx)))
}

func check(ctx context.Context, root string, o Options) error {
	out := &lines{w: o.Out}
	o.Out = out
	inside, outside, err := split(ctx, root, o.Packages)
	if err != nil {
		return err
	}
	if len(inside)+len(outside) == 0 {
		return fmt.Errorf("no package matches %s", strings.Join(o.Packages, " "))
	}
	events, merged := io.Pipe()
	both := &lines{w: merged}
	var (
		failed []string // linters
		errs   [3]error
		all    sync.WaitGroup
	)
	all.Go(func() {
		var args []string
		if !o.NoRace {
			args = raceArgs()
		}
		errs[0] = test(ctx, root, inside, args, o, both)
	})
	all.Go(func() {
		if !o.NoLint {
			failed, errs[1] = lint(ctx, root, out)
		}
		// What go test would take from its cache depends on programs that it does not know of.
		errs[2] = test(ctx, root, outside, []string{"-count=1", "-p", "1"}, o, both)
	})
	ended := make(chan struct{})
	go func() { // ends with what it waits for, and this function ends after it
		all.Wait()
		_ = merged.Close()
		close(ended)
	}()
	execution, errScan := testjson.ScanTestOutput(testjson.ScanConfig{
		Stdout: events, Handler: handler{testjson.NewEventFormatter(out, "pkgname-and-test-fails", testjson.FormatOptions{}), out}, IgnoreNonJSONOutputLines: true,
	})
	_ = events.Close() // after an error nothing else reads what the tests print
	<-ended
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	testjson.PrintSummary(out, execution, testjson.SummarizeAll)
	// Once more, short: where only an end of the output is kept, it has the names.
	for _, t := range testjson.FilterFailedUnique(execution.Failed()) {
		failed = append(failed, testjson.RelativePackagePath(t.Package)+" "+t.Test.Name())
	}
	for _, f := range failed {
		fmt.Fprintf(out, "failed: %s\n", f)
	}
	return errors.Join(errors.Join(errs[:]...), errScan)
}

// handler prints a line for each package, and what go itself says.
type handler struct {
	testjson.EventFormatter
	out io.Writer
}

func (h handler) Event(e testjson.TestEvent, execution *testjson.Execution) error {
	return h.Format(e, execution)
}

func (h handler) Err(text string) error {
	_, err := fmt.Fprintln(h.out, text)
	return err
}

// computing are packages that only compute on memory of their callers, or keep copies under a lock: the race detector finds nothing
// in them and makes them five to ten times slower. scrypt (keys from passwords) was half of the time of cmd/longshore's tests, the
// storage of a test registry four fifths of those that move large blobs.
var computing = []string{
	"compress/flate", "github.com/distribution/distribution/v3/registry/storage/driver/inmemory", "github.com/klauspost/compress/...",
	"go.yaml.in/yaml/v3", "go.yaml.in/yaml/v4/internal/...", "golang.org/x/crypto/scrypt", "modernc.org/libc/...", "modernc.org/sqlite/lib",
	"regexp", "regexp/syntax",
}

// raceArgs are the flags of go test that put the race detector into everything but what is [computing].
func raceArgs() []string {
	args := []string{"-race"}
	for _, p := range computing {
		args = append(args, "-gcflags="+p+"=-race=false")
	}
	return args
}

// processes are packages whose tests start our programs as processes of their own.
var processes = []string{"testenv/attack", "testenv/conformance", "testenv/demo", "testenv/docs", "testenv/packaging", "testenv/scale", "testenv/site", "testenv/soak"}

// split lists the packages that the patterns name: those with the code under test in the tests' process, and those whose tests
// start [processes].
func split(ctx context.Context, root string, patterns []string) (inside, outside []string, err error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, patterns...)...)
	cmd.Dir = root
	text, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, nil, fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), err)
	}
	for _, p := range strings.Fields(string(text)) {
		if slices.ContainsFunc(processes, func(x string) bool { return strings.HasSuffix(p, "/"+x) }) {
			outside = append(outside, p)
		} else {
			inside = append(inside, p)
		}
	}
	return inside, outside, nil
}

// lines writes whole lines of several writers.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// maxLine bounds one line of a test's output.
const maxLine = 16 << 20

// copyLines writes each line of r with one call.
func copyLines(w io.Writer, r io.Reader) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		if _, err := w.Write(append(in.Bytes(), '\n')); err != nil {
			return err
		}
	}
	return in.Err()
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

// lint runs the linters and names those that found something.
func lint(ctx context.Context, root string, out io.Writer) (failed []string, err error) {
	for _, step := range lints(root) {
		start := time.Now()
		if err := step.do(ctx); err != nil {
			failed = append(failed, step.name)
			fmt.Fprintf(out, "FAIL  %-50s %s\n%v\n", step.name, since(start), err)
			continue
		}
		fmt.Fprintf(out, "ok    %-50s %s\n", step.name, since(start))
	}
	if len(failed) > 0 {
		err = fmt.Errorf("%s failed", strings.Join(failed, ", "))
	}
	return failed, err
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
		{"go mod tidy", func(ctx context.Context) error { return command(ctx, "go", "mod", "tidy", "-diff") }},
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

// test runs go test on packages and writes its events. Vet has its own step, and DWARF costs more time to link than tests have use for.
func test(ctx context.Context, root string, packages, flags []string, o Options, events io.Writer) error {
	if len(packages) == 0 {
		return nil
	}
	timeout := testTimeout
	if o.Nightly {
		timeout = nightlyTimeout
	}
	args := append([]string{"test", "-json", "-vet=off", "-ldflags=-w", "-timeout", timeout.String()}, flags...)
	if o.Nightly {
		args = append(args, "-shuffle=on") // results of a given order are kept by go test
	}
	if o.Run != "" {
		args = append(args, "-run", o.Run)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir = root
	cmd.Env = os.Environ()
	if !o.Lenient {
		cmd.Env = append(cmd.Env, "TESTENV_REQUIRE=1")
	}
	if o.Nightly {
		cmd.Env = append(cmd.Env, "LONGSHORE_NIGHTLY=1")
	}
	if slices.Contains(flags, "-race") {
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
	errRead := copyLines(events, out)
	if err := cmd.Wait(); err != nil {
		return errors.Join(fmt.Errorf("go test: %w", err), errRead)
	}
	return errRead
}
