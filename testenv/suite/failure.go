package suite

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Bounds on what a failure prints. The whole of it is in a file.
const (
	maxErrors  = 5   // of one test, in the list
	maxTail    = 60  // lines of one test's output
	maxWidth   = 200 // characters of a line of output
	maxMessage = 260 // characters of a line of the summary
	maxSummary = 12  // lines of the summary, so that it fits where only an end of the output is kept
)

// Failure is a test that failed of its own: not only because a case of it did.
type Failure struct {
	Package string   // below the module
	Test    string   // with its case; "": the package as a whole
	Errors  []string // its own messages, "file_test.go:12: what"
}

// String is one line: which test, and what it said.
func (f Failure) String() string {
	text := f.Package
	if f.Test != "" {
		text += " " + f.Test
	}
	if len(f.Errors) > 0 {
		text += ": " + strings.Join(f.Errors, " | ")
	}
	return limit(text, maxMessage)
}

// Summarize repeats what failed. It comes last, so that an end of the output names every failure.
func Summarize(out io.Writer, failed []string) {
	for i, f := range failed {
		if i == maxSummary-1 && len(failed) > maxSummary {
			fmt.Fprintf(out, "failed: %d more\n", len(failed)-i)
			return
		}
		fmt.Fprintf(out, "failed: %s\n", f)
	}
}

// failures prints what a package's failed tests say: the errors of all of them, then their outputs.
func (r *Report) failures(p *packageRun) {
	slices.Sort(p.failed) // a test before its cases
	var found []Failure
	names := slices.Clone(p.failed)
	for i, name := range p.failed {
		f := Failure{short(p.name), name, messages(p.output[name])}
		if ofCases := i+1 < len(p.failed) && strings.HasPrefix(p.failed[i+1], name+"/"); len(f.Errors) > 0 || !ofCases {
			found = append(found, f)
		}
	}
	// Tests that neither passed nor failed: a panic, or the time limit.
	for _, name := range slices.Sorted(maps.Keys(p.output)) {
		if slices.Contains(names, name) {
			continue
		}
		names = append(names, name)
		if errs := messages(p.output[name]); len(errs) > 0 {
			found = append(found, Failure{short(p.name), name, errs})
		}
	}
	if len(found) == 0 {
		found = []Failure{{Package: short(p.name), Errors: []string{strings.TrimSpace(reason(p.output[""]))}}}
	}
	r.Failed = append(r.Failed, found...)
	for _, f := range found {
		name := f.Test
		if name == "" {
			name = "(the package)"
		}
		fmt.Fprintf(r.Out, "      failed %s\n", name)
		for _, e := range f.Errors[:min(len(f.Errors), maxErrors)] {
			fmt.Fprintf(r.Out, "          %s\n", limit(e, maxMessage))
		}
	}
	for _, name := range names {
		r.print(name, p.output[name])
	}
}

// print shows the end of a test's output and where the whole is.
func (r *Report) print(name string, b *bytes.Buffer) {
	if b == nil {
		return
	}
	var lines []string
	for line := range strings.Lines(b.String()) {
		if line = strings.TrimRight(line, "\n"); !noise(line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return
	}
	where := ""
	if r.Keep != nil {
		file, err := r.Keep(name, b.Bytes())
		if where = ", whole in " + file; err != nil {
			where = ", not kept: " + err.Error()
		}
	}
	if name == "" {
		name = "(the package)"
	}
	n := max(0, len(lines)-maxTail)
	fmt.Fprintf(r.Out, "      output of %s (%d lines, %d shown%s):\n", name, len(lines), len(lines)-n, where)
	for _, line := range lines[n:] {
		fmt.Fprintf(r.Out, "      %s\n", cut(line))
	}
}

// noise are lines that only say that something runs or ended.
func noise(line string) bool {
	t := strings.TrimSpace(line)
	return t == "" || t == "FAIL" || t == "PASS" || strings.HasPrefix(t, "=== ") || strings.HasPrefix(t, "FAIL\t") ||
		strings.HasPrefix(t, "-test.shuffle") || strings.HasPrefix(t, "exit status ")
}

// message is the first line of what a test says by t.Error, t.Fatal or t.Log, which look the same.
var message = regexp.MustCompile(`^ +([\w.-]+\.go:\d+: .*)`)

// fatal begins what the runtime says before it ends the process.
var fatal = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE|goleak: |signal: |\S.*: test timed out)`)

// messages are what a test said itself, each with the lines that belong to it in one: the first and the last ones.
func messages(b *bytes.Buffer) []string {
	if b == nil {
		return nil
	}
	var all []string
	open := false // lines that follow belong to the last message
	for line := range strings.Lines(b.String()) {
		line = strings.TrimRight(line, "\n")
		m := message.FindStringSubmatch(line)
		switch {
		case m != nil && !strings.Contains(m[1], "log of containerd"):
			all, open = append(all, m[1]), true
		case m != nil:
			open = false
		case fatal.MatchString(line):
			all, open = append(all, line), false
		case open && strings.HasPrefix(line, "        ") && len(all[len(all)-1]) < maxMessage:
			all[len(all)-1] += " " + strings.Join(strings.Fields(line), " ")
		default:
			open = false
		}
	}
	if len(all) > maxErrors {
		all = append(all[:maxErrors-1], all[len(all)-1])
	}
	return all
}

// cut shortens a line of output.
func cut(line string) string { return limit(line, maxWidth) }

func limit(line string, n int) string {
	if r := []rune(line); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return line
}

// keepIn is a Report.Keep that makes its folder when the first test fails.
func keepIn(parent string) func(test string, output []byte) (string, error) {
	dir, n := "", 0
	return func(test string, output []byte) (string, error) {
		if dir == "" {
			var err error
			if dir, err = os.MkdirTemp(parent, "longshore-failed-"); err != nil {
				return "", err
			}
		}
		n++
		name := regexp.MustCompile(`[^\w.-]+`).ReplaceAllString(test, "_")
		file := filepath.Join(dir, fmt.Sprintf("%d-%s.log", n, name[:min(len(name), 80)]))
		return file, os.WriteFile(file, output, 0o644)
	}
}
