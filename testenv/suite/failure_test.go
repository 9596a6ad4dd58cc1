package suite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// outputs are the events of a package of which one test fails and says lines.
func outputs(t *testing.T, test string, lines ...string) string {
	t.Helper()
	var events strings.Builder
	for _, e := range append(
		func() (all []event) {
			for _, line := range lines {
				all = append(all, event{Action: "output", Package: "p", Test: test, Output: line + "\n"})
			}
			return all
		}(), event{Action: "fail", Package: "p", Test: test}, event{Action: "fail", Package: "p"},
	) {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		events.Write(append(b, '\n'))
	}
	return events.String()
}

func TestFailureComesBeforeItsLongOutput(t *testing.T) {
	lines := []string{"=== RUN   TestA/case", "    a_test.go:9: states (-want +got):", "          \t[]string{", "        + \t\"b\",", "    a_test.go:12: the end"}
	for i := range 500 {
		lines = append(lines, fmt.Sprintf("    time=%d level=DEBUG msg=%s", i, strings.Repeat("x", 1000)))
	}
	var out bytes.Buffer
	dir := t.TempDir()
	r := Report{Out: &out, Keep: keepIn(dir)}
	if err := r.Read(strings.NewReader(outputs(t, "TestA/case", lines...))); err != nil {
		t.Fatal(err)
	}
	shown := strings.Split(out.String(), "\n")
	want := []string{
		"FAIL  p                                                  0.0 s, 0 passed, 1 failed",
		"      failed TestA/case",
		"          a_test.go:9: states (-want +got): []string{ + \"b\",",
		"          a_test.go:12: the end",
	}
	if diff := cmp.Diff(want, shown[:4]); diff != "" {
		t.Errorf("first lines (-want +got):\n%s", diff)
	}
	if len(shown) != 4+1+maxTail+1 || !strings.Contains(out.String(), "time=499 ") || strings.Contains(out.String(), "time=439 ") {
		t.Errorf("%d lines, want the last %d of the output", len(shown), maxTail)
	}
	for _, line := range shown {
		if len([]rune(line)) > maxWidth+150 {
			t.Errorf("a line of %d characters", len(line))
		}
	}
	_, file, ok := strings.Cut(shown[4], "whole in ")
	whole, err := os.ReadFile(strings.TrimSuffix(file, "):"))
	if !ok || err != nil || string(whole) != strings.Join(lines, "\n")+"\n" {
		t.Errorf("%q names a file with %d bytes, %v", shown[4], len(whole), err)
	}
}

func TestOutputThatCannotBeKept(t *testing.T) {
	var out bytes.Buffer
	r := Report{Out: &out, Keep: func(string, []byte) (string, error) { return "", errors.New("disk full") }}
	if err := r.Read(strings.NewReader(outputs(t, "TestA", "    a_test.go:1: no"))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "not kept: disk full") {
		t.Error(out.String())
	}
}

func TestMessages(t *testing.T) {
	tests := []struct {
		name, output string
		want         []string
	}{
		{"none", "=== RUN   TestA\n--- FAIL: TestA (0.00s)\n", nil},
		{"the log of a daemon", "    a_test.go:1: no\n    containerd.go:62: end of the log of containerd:\n        level=warning\n", []string{"a_test.go:1: no"}},
		{"a race", "WARNING: DATA RACE\nRead at 0\n    testing.go:1712: race detected\n", []string{"WARNING: DATA RACE", "testing.go:1712: race detected"}},
		{
			"many", "    a_test.go:1: 1\n    a_test.go:2: 2\n    a_test.go:3: 3\n    a_test.go:4: 4\n    a_test.go:5: 5\n    a_test.go:6: 6\n",
			[]string{"a_test.go:1: 1", "a_test.go:2: 2", "a_test.go:3: 3", "a_test.go:4: 4", "a_test.go:6: 6"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, messages(bytes.NewBufferString(tt.output))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSummaryFitsInAnEndOfTheOutput(t *testing.T) {
	var failed []string
	for i := range 40 {
		failed = append(failed, Failure{Package: "agent/x", Test: fmt.Sprintf("TestA/%d", i), Errors: []string{strings.Repeat("long ", 100)}}.String())
	}
	var out bytes.Buffer
	Summarize(&out, failed)
	if out.Len() > 4000 || !strings.Contains(out.String(), "TestA/10") || !strings.HasSuffix(out.String(), "failed: 29 more\n") {
		t.Errorf("%d bytes:\n%s", out.Len(), out.String())
	}
}
