package suite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
	name   string
	counts Counts
	output map[string]*bytes.Buffer // by test; "" is the package's own
	failed []string                 // tests, in the order of failing
	skips  []string
}

// maxLine bounds one line of a test's output.
const maxLine = 16 << 20

// Report reads the events of go test -json and prints a line for each package, with why tests were skipped and, of what
// failed, first each test's own errors and then the end of its output.
type Report struct {
	Out    io.Writer
	Counts Counts
	Failed []Failure // in the order of failing
	// Keep is where the whole output of failed tests goes: it writes a test's and returns the file. nil: nowhere.
	Keep func(test string, output []byte) (file string, err error)
}

// Read reads until the events end.
func (r *Report) Read(events io.Reader) error {
	runs := map[string]*packageRun{}
	builds := map[string]*bytes.Buffer{}
	in := bufio.NewScanner(events)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		var e event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			fmt.Fprintf(r.Out, "%s\n", in.Bytes()) // not from the tests: go itself has something to say
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
				_, _ = b.WriteTo(r.Out)
			}
			continue
		}
		run := runs[e.Package]
		if run == nil {
			run = &packageRun{name: e.Package, output: map[string]*bytes.Buffer{}}
			runs[e.Package] = run
		}
		if run.take(e) {
			r.end(run, e)
			delete(runs, e.Package)
		}
	}
	// Packages that never ended: go test was killed.
	for name, run := range runs {
		run.counts.Failed++
		r.add(run.counts)
		fmt.Fprintf(r.Out, "FAIL  %-50s did not end\n", short(name))
		r.Failed = append(r.Failed, Failure{Package: short(name), Errors: []string{"did not end"}})
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read the output of go test: %w", err)
	}
	return nil
}

func (r *Report) add(c Counts) {
	r.Counts.Passed += c.Passed
	r.Counts.Failed += c.Failed
	r.Counts.Skipped += c.Skipped
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

// end prints what there is to say of a package that has ended with e.
func (r *Report) end(p *packageRun, e event) {
	if e.Action == "fail" && p.counts.Failed == 0 {
		p.counts.Failed = 1
	}
	if p.counts == (Counts{}) {
		return // no tests
	}
	r.add(p.counts)
	word := "ok  "
	if p.counts.Failed > 0 {
		word = "FAIL"
	}
	fmt.Fprintf(r.Out, "%s  %-50s %.1f s, %s\n", word, short(p.name), e.Elapsed, p.counts.brief())
	why := make([]string, len(p.skips))
	for i, name := range p.skips {
		why[i] = reason(p.output[name])
		delete(p.output, name)
	}
	if e.Action == "fail" {
		r.failures(p)
	}
	for i, name := range p.skips {
		fmt.Fprintf(r.Out, "      skipped %s: %s\n", name, cut(why[i]))
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
