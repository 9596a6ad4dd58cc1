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
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// Options of a run.
type Options struct {
	Out   io.Writer
	Run   string        // regular expression of row names, see [choose]; "": all
	Count int           // runs of each benchmark, the median counts; 0: 3
	Span  time.Duration // how long the idle agent is watched; 0: 40 s
	Write string        // a document to put the figures into as well, between its markers; "": none
}

// row is one line of the table.
type row struct {
	name     string
	bench    string  // "agent/network.BenchmarkAttach" or with "/case"
	unit     string  // "ns/op", "MiB", or one that the benchmark reports itself; a prefix like "ours-" is not printed
	peer     string  // the benchmark of the peer in the same run; "": bench, when peerUnit is there, else none
	peerUnit string  // "": unit
	theirs   string  // what the peer is; without a peer, a figure that was published or measured elsewhere
	absent   string  // what stands there when the peer cannot be measured on this machine
	target   string  // in words
	ratio    float64 // ours/peer may be at most this; 0: no such target
	limit    float64 // ours may be at most this, in unit; 0: no such target
	least    float64 // ours must be at least this, in unit; 0: no such target
}

// sample is what one benchmark reported: the median by unit, and under the unit with [spread] before it how far its runs lie
// from that, at most, as a part of it.
type sample map[string]float64

const spread = "±"

// Run measures and prints. The error says what could not be measured; a target that is not reached is printed, no error.
func Run(ctx context.Context, o Options) error {
	o.Count, o.Span = cmp.Or(o.Count, 3), cmp.Or(o.Span, 40*time.Second)
	if o.Write != "" && o.Run != "" {
		return errors.New("a document gets all rows or none: leave out either which rows to run, or the document")
	}
	want, err := regexp.Compile(o.Run)
	if err != nil {
		return fmt.Errorf("rows to run: %w", err)
	}
	selected := choose(rows(o.Span), want)
	if len(selected) == 0 {
		return fmt.Errorf("no row matches %q", o.Run)
	}
	var figures bytes.Buffer
	both := io.MultiWriter(o.Out, &figures)
	if err := machine(ctx, both); err != nil {
		return err
	}
	samples, err := collect(ctx, o, selected)
	errs := append([]error{err}, table(both, selected, samples)...)
	if o.Write != "" {
		errs = append(errs, write(o.Write, figures.Bytes()))
	}
	return errors.Join(errs...)
}

// choose keeps the rows whose names match, and those below them that begin with "the same".
func choose(rows []row, want *regexp.Regexp) []row {
	above := false
	return slices.DeleteFunc(rows, func(r row) bool {
		matches := want.MatchString(r.name)
		if !strings.HasPrefix(r.name, "the same") {
			above = matches
		}
		return !matches && !above
	})
}

// collect takes the samples that rows ask for. Those it could take are valid with an error too.
func collect(ctx context.Context, o Options, rows []row) (samples map[string]sample, err error) {
	samples = map[string]sample{}
	var errs []error
	byPackage := packages(rows)
	for _, pkg := range slices.Sorted(maps.Keys(byPackage)) {
		fmt.Fprintf(os.Stderr, "measuring %s in %s\n", strings.Join(byPackage[pkg], ", "), pkg)
		got, err := measure(ctx, o, pkg, byPackage[pkg])
		errs = append(errs, err)
		for name, s := range got {
			samples[pkg+"."+name] = s
		}
	}
	asked := func(prefix string) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return strings.HasPrefix(r.bench, prefix) })
	}
	if asked("few ") {
		fmt.Fprintln(os.Stderr, "measuring containers of nerdctl")
		got, err := few(ctx, os.Stderr)
		if err != nil {
			fmt.Fprintln(os.Stderr, "without nerdctl:", err)
		}
		maps.Copy(samples, got)
	}
	if !asked("size of ") && !asked("idle ") && !asked("few ") && !asked("project ") && !asked("gap ") {
		return samples, errors.Join(errs...)
	}
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return samples, errors.Join(append(errs, err)...)
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	bin, err := box.Folder("bin")
	steps := []struct {
		what string
		need bool
		take func() (map[string]sample, error)
	}{
		{"our programs", true, func() (map[string]sample, error) { return sizes(ctx, bin) }},
		{"projects through the agent", asked("project "), func() (map[string]sample, error) { return through(ctx, bin, os.Stderr) }},
		{"updates through the agent", asked("gap "), func() (map[string]sample, error) { return gap(ctx, bin, os.Stderr) }},
		{"an idle agent", asked("idle ") || asked("few "), func() (map[string]sample, error) { return idle(ctx, box, bin, os.Stderr, o.Span) }},
		{"the agent for every platform", asked("size of longshore-agent for "), func() (map[string]sample, error) { return agentSizes(ctx, bin) }},
	}
	for _, s := range steps {
		if err != nil || !s.need {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s\n", s.what)
		var got map[string]sample
		got, err = s.take()
		maps.Copy(samples, got)
	}
	return samples, errors.Join(append(errs, err)...)
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
	count := o.Count
	if pkg == "testenv/scale" {
		count = 1 // minutes each, over tens of thousands of requests
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^("+strings.Join(names, "|")+")$",
		"-count", strconv.Itoa(count), "-timeout", "60m", "./"+pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "TESTENV_REQUIRE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
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
			maps.Copy(samples[name], middle(unit, v))
		}
	}
	return samples, lines.Err()
}

// middle is the median of runs, and how far they lie from it.
func middle(unit string, runs []float64) sample {
	slices.Sort(runs)
	m := runs[len(runs)/2]
	s := sample{unit: m}
	if far := max(m-runs[0], runs[len(runs)-1]-m); far > 0 {
		s[spread+unit] = far / m
	}
	return s
}

// table writes the rows, as Markdown. Its errors name the rows without a figure.
func table(out io.Writer, rows []row, samples map[string]sample) (errs []error) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| what\t| ours\t| peer\t| ratio\t| target\t| \t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range rows {
		ours, ok := samples[r.bench][r.unit]
		if !ok {
			errs = append(errs, fmt.Errorf("not measured: %s", r.name))
			fmt.Fprintf(w, "| %s\t| not measured\t| \t| \t| %s\t| \t|\n", r.name, r.target)
			continue
		}
		peer, ratio, met := cmp.Or(r.absent, r.theirs), "", (r.limit == 0 || ours <= r.limit) && ours >= r.least
		if theirs := samples[cmp.Or(r.peer, r.bench)][cmp.Or(r.peerUnit, r.unit)]; theirs > 0 && (r.peer != "" || r.peerUnit != "") {
			peer = strings.TrimSpace(samples[cmp.Or(r.peer, r.bench)].figure(cmp.Or(r.peerUnit, r.unit)) + " " + r.theirs)
			ratio = fmt.Sprintf("%.2f", ours/theirs)
			met = met && (r.ratio == 0 || ours/theirs <= r.ratio)
		}
		verdict := ""
		if r.target != "" {
			verdict = map[bool]string{true: "within", false: "**over**"}[met]
		}
		fmt.Fprintf(w, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n", r.name, samples[r.bench].figure(r.unit), peer, ratio, r.target, verdict)
	}
	return append(errs, w.Flush())
}

// figure writes a median with its spread, where runs differ by a percent and more.
func (s sample) figure(unit string) string {
	text := figure(s[unit], unit)
	if far := s[spread+unit]; far >= 0.01 {
		text += fmt.Sprintf(" ± %.0f %%", 100*far)
	}
	return text
}

// figure writes a value with three digits and a unit that people read.
func figure(v float64, unit string) string {
	if strings.HasPrefix(unit, "ns/") {
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
	switch what, per, _ := strings.Cut(unit, "/"); {
	case what == "B" && v >= 1024:
		v, unit = v/1024, "KiB"
	case per != "s" && per != "h": // which once is meant is what the row is about
		unit = what
	}
	digits := 2
	for limit := 10.0; math.Abs(v) >= limit && digits > 0; limit *= 10 {
		digits--
	}
	if v == math.Trunc(v) {
		digits = 0
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + unit
}
