package suite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Counts are of tests and their cases. A package that does not build, or whose process ends badly without a failed test,
// is one failure.
type Counts struct {
	Passed  int
	Failed  int
	Skipped int
}

// String is the last line of a run.
func (c Counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

// brief leaves out what is zero.
func (c Counts) brief() string {
	text := fmt.Sprintf("%d passed", c.Passed)
	if c.Failed > 0 {
		text += fmt.Sprintf(", %d failed", c.Failed)
	}
	if c.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", c.Skipped)
	}
	return text
}

// event is one line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64
}

// packageRun collects what one package's tests say until they have ended.
type packageRun struct {
	counts Counts
	output map[string]*bytes.Buffer // by test; "" is the package's own
	failed []string                 // tests, in the order of failing
	skips  []string
}

// maxLine bounds one line of a test's output.
const maxLine = 16 << 20

// Count reads the events of go test -json and prints a line for each package, with the output of what failed or why tests were
// skipped.
func Count(events io.Reader, out io.Writer) (Counts, error) {
	var total Counts
	runs := map[string]*packageRun{}
	builds := map[string]*bytes.Buffer{}
	in := bufio.NewScanner(events)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		var e event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			fmt.Fprintf(out, "%s\n", in.Bytes()) // not from the tests: go itself has something to say
			continue
		}
		if e.Action == "build-output" {
			if builds[e.ImportPath] == nil {
				builds[e.ImportPath] = &bytes.Buffer{}
			}
			builds[e.ImportPath].WriteString(e.Output)
			continue
		}
		if e.Action == "build-fail" {
			if b := builds[e.ImportPath]; b != nil {
				_, _ = b.WriteTo(out)
			}
			continue
		}
		run := runs[e.Package]
		if run == nil {
			run = &packageRun{output: map[string]*bytes.Buffer{}}
			runs[e.Package] = run
		}
		if run.take(e) {
			run.report(out, e)
			total.Passed += run.counts.Passed
			total.Failed += run.counts.Failed
			total.Skipped += run.counts.Skipped
			delete(runs, e.Package)
		}
	}
	// Packages that never ended: go test was killed.
	for name, run := range runs {
		total.Passed += run.counts.Passed
		total.Failed += run.counts.Failed + 1
		fmt.Fprintf(out, "FAIL  %-50s did not end\n", short(name))
	}
	if err := in.Err(); err != nil {
		return total, fmt.Errorf("read the output of go test: %w", err)
	}
	return total, nil
}

// take notes an event and tells whether it was the package's last.
func (p *packageRun) take(e event) bool {
	switch e.Action {
	case "output":
		if p.output[e.Test] == nil {
			p.output[e.Test] = &bytes.Buffer{}
		}
		p.output[e.Test].WriteString(e.Output)
	case "pass":
		if e.Test == "" {
			return true
		}
		p.counts.Passed++
		delete(p.output, e.Test)
	case "fail":
		if e.Test == "" {
			return true
		}
		p.counts.Failed++
		p.failed = append(p.failed, e.Test)
	case "skip":
		if e.Test == "" {
			return true // no tests here
		}
		p.counts.Skipped++
		p.skips = append(p.skips, e.Test)
	}
	return false
}

// report prints the line of a package that has ended with e.
func (p *packageRun) report(out io.Writer, e event) {
	if e.Action == "fail" && p.counts.Failed == 0 {
		p.counts.Failed = 1
	}
	if p.counts == (Counts{}) {
		return // no tests
	}
	word := "ok  "
	if p.counts.Failed > 0 {
		word = "FAIL"
	}
	fmt.Fprintf(out, "%s  %-50s %.1f s, %s\n", word, short(e.Package), e.Elapsed, p.counts.brief())
	for _, name := range p.skips {
		fmt.Fprintf(out, "      skipped %s: %s\n", name, reason(p.output[name]))
	}
	if e.Action != "fail" {
		return
	}
	slices.Sort(p.failed) // a test before its cases
	for _, name := range p.failed {
		p.print(out, p.output[name])
		delete(p.output, name)
	}
	p.print(out, p.output[""])
	delete(p.output, "")
	for _, b := range p.output { // tests that neither passed nor failed: a panic or the time limit
		p.print(out, b)
	}
}

// print shows a test's output without the lines that only say that it runs.
func (p *packageRun) print(out io.Writer, b *bytes.Buffer) {
	if b == nil {
		return
	}
	for line := range strings.Lines(b.String()) {
		t := strings.TrimSpace(line)
		if strings.HasPrefix(t, "=== ") || strings.HasPrefix(t, "FAIL\t") || t == "FAIL" || t == "PASS" || strings.HasPrefix(t, "-test.shuffle") {
			continue
		}
		fmt.Fprint(out, "      ", strings.TrimRight(line, "\n"), "\n")
	}
}

// reason is why a test was skipped: the line before the last.
func reason(b *bytes.Buffer) string {
	if b == nil {
		return ""
	}
	why := ""
	for line := range strings.Lines(b.String()) {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "=== ") && !strings.HasPrefix(t, "--- ") {
			why = t
		}
	}
	return why
}

// short leaves out what all packages of this module share.
func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/longshore-dev/longshore/")
}
