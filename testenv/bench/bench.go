// Package bench measures what this repository promises to be fast and small at, on this machine, and prints it as one
// table: what was measured, the peer's figure from the same run where there is one, their ratio, the target.
//
// A row names Go benchmarks; [Run] runs them through go test, so each lives beside the code that it measures and can be
// run alone. Figures of one machine at one time compare with each other, with nothing else.
package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/longshore-dev/longshore/testenv"
)

// Options of a run.
type Options struct {
	Out   io.Writer
	Run   string // regular expression of row names; "": all
	Count int    // runs of each benchmark, the median counts; 0: 3
}

// row is one line of the table.
type row struct {
	name     string
	bench    string  // "agent/network.BenchmarkAttach" or with "/case"
	unit     string  // "ns/op", "MiB", or one that the benchmark reports itself; a prefix like "ours-" is not printed
	peer     string  // the benchmark of the peer in the same run; "": bench, when peerUnit is there, else none
	peerUnit string  // "": unit
	theirs   string  // a figure that was published or measured elsewhere, as text
	target   string  // in words
	ratio    float64 // ours/peer may be at most this; 0: no such target
	limit    float64 // ours may be at most this, in unit; 0: no such target
	least    float64 // ours must be at least this, in unit; 0: no such target
}

// sample is what one benchmark reported: the median by unit.
type sample map[string]float64

// Run measures and prints. Its error tells which rows could not be measured; a missed target is printed, not an error.
func Run(ctx context.Context, o Options) error {
	if o.Count == 0 {
		o.Count = 3
	}
	want, err := regexp.Compile(o.Run)
	if err != nil {
		return fmt.Errorf("rows to run: %w", err)
	}
	selected := slices.DeleteFunc(rows(), func(r row) bool { return !want.MatchString(r.name) })
	machine(ctx, o.Out)
	samples, err := sizes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	byPackage := packages(selected)
	for _, pkg := range slices.Sorted(maps.Keys(byPackage)) {
		got, err := measure(ctx, o, pkg, byPackage[pkg])
		errs = append(errs, err)
		for name, s := range got {
			samples[pkg+"."+name] = s
		}
	}
	table(o.Out, selected, samples)
	return errors.Join(errs...)
}

// packages groups the benchmarks of rows by package.
func packages(rows []row) map[string][]string {
	all := map[string][]string{}
	for _, r := range rows {
		for _, b := range []string{r.bench, r.peer} {
			pkg, name, ok := strings.Cut(b, ".Benchmark")
			name, _, _ = strings.Cut(name, "/")
			if name = "Benchmark" + name; ok && !slices.Contains(all[pkg], name) {
				all[pkg] = append(all[pkg], name)
			}
		}
	}
	return all
}

// measure runs a package's benchmarks.
func measure(ctx context.Context, o Options, pkg string, names []string) (map[string]sample, error) {
	root, err := testenv.Root()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^("+strings.Join(names, "|")+")$",
		"-count", strconv.Itoa(o.Count), "-timeout", "30m", "./"+pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "TESTENV_REQUIRE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("benchmarks of %s: %w\n%s", pkg, err, out.String())
	}
	return parse(&out)
}

// parse reads the lines of go test -bench.
func parse(in io.Reader) (map[string]sample, error) {
	values := map[string]map[string][]float64{}
	lines := bufio.NewScanner(in)
	suffix := regexp.MustCompile(`-\d+$`) // GOMAXPROCS
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := suffix.ReplaceAllString(f[0], "")
		if values[name] == nil {
			values[name] = map[string][]float64{}
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return nil, fmt.Errorf("benchmark line %q: %w", lines.Text(), err)
			}
			values[name][f[i+1]] = append(values[name][f[i+1]], v)
		}
	}
	samples := map[string]sample{}
	for name, units := range values {
		samples[name] = sample{}
		for unit, v := range units {
			slices.Sort(v)
			samples[name][unit] = v[len(v)/2]
		}
	}
	return samples, lines.Err()
}

// sizes builds our programs as a release does and weighs them.
func sizes(ctx context.Context) (map[string]sample, error) {
	root, err := testenv.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "longshore-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	samples := map[string]sample{}
	for _, program := range []string{"longshore", "longshore-agent", "longshore-fleet"} {
		if _, err := os.Stat(filepath.Join(root, "cmd", program, "main.go")); err != nil {
			continue
		}
		file := filepath.Join(dir, program)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "./cmd/"+program)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", program, err, text)
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		samples["size of "+program] = sample{"MiB": float64(info.Size()) / (1 << 20)}
	}
	return samples, nil
}

// table writes the rows, as Markdown, which docs/benchmarks.md takes as it is.
func table(out io.Writer, rows []row, samples map[string]sample) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| what\t| ours\t| peer\t| ratio\t| target\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range rows {
		ours, ok := samples[r.bench][r.unit]
		if !ok {
			fmt.Fprintf(w, "| %s\t| not measured\t| \t| \t| %s\t|\n", r.name, r.target)
			continue
		}
		peer, ratio, met := r.theirs, "", (r.limit == 0 || ours <= r.limit) && ours >= r.least
		if theirs := samples[cmp.Or(r.peer, r.bench)][cmp.Or(r.peerUnit, r.unit)]; theirs > 0 && (r.peer != "" || r.peerUnit != "") {
			peer = figure(theirs, cmp.Or(r.peerUnit, r.unit))
			if r.theirs != "" {
				peer += " (" + r.theirs + ")"
			}
			ratio = fmt.Sprintf("%.2f", ours/theirs)
			met = met && (r.ratio == 0 || ours/theirs <= r.ratio)
		}
		target := r.target
		if !met {
			target += " **missed**"
		}
		fmt.Fprintf(w, "| %s\t| %s\t| %s\t| %s\t| %s\t|\n", r.name, figure(ours, r.unit), peer, ratio, target)
	}
	_ = w.Flush()
}

// figure writes a value with three digits and a unit that people read.
func figure(v float64, unit string) string {
	if unit == "ns/op" {
		switch {
		case v >= 1e9:
			v, unit = v/1e9, "s"
		case v >= 1e6:
			v, unit = v/1e6, "ms"
		case v >= 1e3:
			v, unit = v/1e3, "µs"
		default:
			unit = "ns"
		}
	}
	if _, after, ok := strings.Cut(unit, "-"); ok {
		unit = after
	}
	digits := 2
	for limit := 10.0; v >= limit && digits > 0; limit *= 10 {
		digits--
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + unit
}

// machine says where the figures come from.
func machine(ctx context.Context, out io.Writer) {
	model, memory := "unknown processor", ""
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(data); m != nil {
			model = string(m[1])
		}
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		if m := regexp.MustCompile(`MemTotal:\s*(\d+) kB`).FindSubmatch(data); m != nil {
			kib, _ := strconv.Atoi(string(m[1]))
			memory = fmt.Sprintf(", %d GiB", (kib+1<<19)>>20)
		}
	}
	kernel, _ := exec.CommandContext(ctx, "uname", "-r").Output()
	load, _ := os.ReadFile("/proc/loadavg")
	before, _, _ := strings.Cut(string(load), " ")
	fmt.Fprintf(out, "%s, %d cores%s, Linux %s, %s, load %s at the start\n\n", model, runtime.NumCPU(), memory,
		strings.TrimSpace(string(kernel)), runtime.Version(), before)
	if busy, err := strconv.ParseFloat(before, 64); err == nil && busy > float64(runtime.NumCPU())/2 {
		fmt.Fprint(out, "Something else keeps this machine busy: compare only ratios of figures of one row.\n\n")
	}
}
