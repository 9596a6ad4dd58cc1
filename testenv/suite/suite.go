// Package suite is the whole check of this repository, as one call: formatting, vet, staticcheck and every test, on real
// programs.
//
// [Run] is what "go run ./cmd/testenv test" and continuous integration do. It prints what it is about to prepare, then one
// line for each package with what failed in it, and in the end once more what failed, counts, and what each command took.
package suite

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// lanes is how many packages are tested at the same time; they take the next from one queue. A package waits about half of its time for
// the programs that it starts, so that two packages do not use two processors.
const lanes = 4

// Options choose a part of the check. The zero value is all of it.
type Options struct {
	Out      io.Writer
	Packages []string // patterns for go test; nil: all
	Run      string   // regular expression of tests; "": all
	NoLint   bool     // leave out formatting, vet and staticcheck
	NoRace   bool     // without the race detector
	Nightly  bool     // at full length and in another order each time, see [testenv.Nightly]
	Lenient  bool     // what the machine lacks skips tests instead of failing them

	built     string // digest of the programs that tests start
	temporary string // folder for the temporary files of tests
}

// Run does the check. The error is nil when everything passed.
func Run(ctx context.Context, o Options) (err error) {
	root, err := testenv.Root()
	if err != nil {
		return err
	}
	if err := Prepare(ctx, o.Out, o.Lenient); err != nil {
		return err
	}
	// Tests sync small databases many thousand times: 2 to 5 ms each on a disk, nothing in memory. What a disk keeps when the power is cut is
	// tested on file systems of their own. The nightly run stays on the disk.
	dir, closeDir, err := testenv.OpenTempDir(!o.Nightly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDir()) }()
	o.temporary = dir
	if o.built, err = testenv.BuildAllOwn(ctx); err != nil && !o.Lenient {
		return err
	}
	return check(ctx, root, o)
}

func check(ctx context.Context, root string, o Options) error {
	out := &lines{w: o.Out}
	o.Out = out
	all, err := listPackages(ctx, root, o.Packages)
	if err != nil {
		return err
	}
	commands := split(all, o)
	events, merged := io.Pipe()
	both := &lines{w: merged}
	var (
		failed  []string // linters
		errLint error
		errs    = make([]error, len(commands))
		costs   = make([]cost, len(commands))
		next    = make(chan int, len(commands))
		working sync.WaitGroup
	)
	for i := range commands {
		next <- i
	}
	close(next)
	for lane := range lanes {
		working.Go(func() {
			if lane == 0 && !o.NoLint {
				failed, errLint = lint(ctx, root, out)
			}
			for i := range next {
				costs[i], errs[i] = commands[i].run(ctx, root, o, both)
			}
		})
	}
	ended := make(chan struct{})
	go func() { // ends with what it waits for, and this function ends after it
		working.Wait()
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
	printCosts(out, costs)
	// Once more, short: where only an end of the output is kept, it has the names.
	for _, t := range testjson.FilterFailedUnique(execution.Failed()) {
		failed = append(failed, fmt.Sprintf("%s %s: %s", testjson.RelativePackagePath(t.Package), t.Test.Name(), reason(execution.OutputLines(t))))
	}
	for _, f := range failed {
		fmt.Fprintf(out, "failed: %s\n", f)
	}
	return errors.Join(errLint, errors.Join(errs...), errScan)
}

// reason is the first thing that a failed test said of a place in its code, on one line.
func reason(output []string) string {
	i := slices.IndexFunc(output, func(line string) bool {
		return strings.Contains(line, "_test.go:") || strings.Contains(line, "DATA RACE")
	})
	if i < 0 {
		return "see above"
	}
	text, _, _ := strings.Cut(strings.Join(output[i:min(i+3, len(output))], ""), "--- FAIL")
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 400)]
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
// in them and makes them five to ten times slower. scrypt (keys from passwords) was half of the time of cmd/longshore's tests, blowfish
// (bcrypt: a registry's passwords) an eighth of registry's, the storage of a test registry four fifths of those that move large blobs.
// A package that uses sync.Map, as encoding/json does, must not be among them: the linker keeps one copy of its generic methods, and
// one without the detector orders nothing, so that there are races reported everywhere.
var computing = []string{
	"compress/flate", "github.com/distribution/distribution/v3/registry/storage/driver/inmemory",
	"github.com/klauspost/compress/...", "github.com/longshore-dev/longshore/artifacts/strict", "github.com/longshore-dev/longshore/testenv/memory",
	"go.yaml.in/yaml/v3", "go.yaml.in/yaml/v4/internal/...",
	"golang.org/x/crypto/blowfish", "golang.org/x/crypto/scrypt", "modernc.org/libc/...", "modernc.org/sqlite/lib", "regexp", "regexp/syntax",
}

// raceArgs are the flags of go test that put the race detector into everything but what is [computing].
func raceArgs() []string {
	args := []string{"-race", "-p", "1"}
	for _, p := range computing {
		args = append(args, "-gcflags="+p+"=-race=false")
	}
	return args
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

// environment is ours for go commands. With -trimpath they use what a clone in another folder has compiled.
func environment(more ...string) []string {
	return slices.Concat(os.Environ(), []string{"GOFLAGS=" + os.Getenv("GOFLAGS") + " -trimpath"}, more)
}

// run runs go test and writes its events. Vet has its own step; DWARF costs more time to link than tests have use for.
func (c command) run(ctx context.Context, root string, o Options, events io.Writer) (cost, error) {
	timeout := testTimeout
	if o.Nightly {
		timeout = nightlyTimeout
	}
	args := append([]string{"test", "-json", "-vet=off", "-ldflags=-s -w", "-timeout", timeout.String()}, c.flags...)
	if o.Nightly {
		args = append(args, "-shuffle=on") // results of a given order are kept by go test
	}
	if o.Run != "" {
		args = append(args, "-run", o.Run)
	}
	for _, p := range c.packages {
		args = append(args, p.ImportPath)
	}
	proc := exec.CommandContext(ctx, "go", args...)
	proc.Dir = root
	proc.Env = environment(testenv.BuiltVariable+"="+o.built, "TMPDIR="+o.temporary)
	if !o.Lenient {
		proc.Env = append(proc.Env, "TESTENV_REQUIRE=1")
	}
	if o.Nightly {
		proc.Env = append(proc.Env, "LONGSHORE_NIGHTLY=1")
	}
	if slices.Contains(c.flags, "-race") {
		// Without GORACE each test program, and each helper process that is one, sleeps for a second before it exits.
		proc.Env = append(proc.Env, "CGO_ENABLED=1", "GORACE=atexit_sleep_ms=50")
	}
	// What is under test in the process has little alive, and would be collected all the time. Programs that tests start and measure are not changed.
	if !slices.ContainsFunc(c.packages, func(p testPackage) bool { return outside(p.folder()) }) {
		proc.Env = append(proc.Env, "GOGC=400")
	}
	proc.Stderr = o.Out
	// go test does not pass a signal on to the test programs that it runs: they get it with it, as on Ctrl-C in a terminal.
	proc.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	proc.Cancel = func() error { return syscall.Kill(-proc.Process.Pid, syscall.SIGINT) }
	proc.WaitDelay = 10 * time.Second
	out, err := proc.StdoutPipe()
	if err != nil {
		return cost{name: c.name()}, err
	}
	start := time.Now()
	if err := proc.Start(); err != nil {
		return cost{name: c.name()}, fmt.Errorf("start go test: %w", err)
	}
	errRead := copyLines(events, out)
	if err := proc.Wait(); err != nil {
		errRead = errors.Join(fmt.Errorf("go test: %w", err), errRead)
	}
	return cost{c.name(), time.Since(start), proc.ProcessState.UserTime() + proc.ProcessState.SystemTime()}, errRead
}

// cost is what one command took: it tells which package to look at first when the whole takes too long.
type cost struct {
	name      string
	wall      time.Duration
	processor time.Duration // of go test and all that it waited for; daemons that outlive their parent are not in it
}

// printCosts prints the costs of the commands, the longest first.
func printCosts(out io.Writer, costs []cost) {
	slices.SortFunc(costs, func(a, b cost) int { return cmp.Compare(b.wall, a.wall) })
	for _, c := range costs {
		fmt.Fprintf(out, "%7.1f s, %7.1f s of processor time: %s\n", c.wall.Seconds(), c.processor.Seconds(), c.name)
	}
}
