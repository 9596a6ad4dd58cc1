package docs

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = "# Title\n\n<!-- needs: registry fleet -->\n\n```console\n$ echo one \\\n    two\none two\n# false   # exit 1\n```\n\n```sh\n$ not run\n```\n"

func TestParseFindsWhatIsTyped(t *testing.T) {
	p, err := Parse("sample.md", sample)
	if err != nil {
		t.Fatal(err)
	}
	want := &Page{Name: "sample.md", Needs: []string{"registry", "fleet"}, Commands: []Command{
		{Line: 6, Text: "echo one \\\n    two"},
		{Line: 9, Text: "false   # exit 1", Exit: 1},
	}}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("Parse (-want +got):\n%s", d)
	}
	p, err = Parse("x.md", "<!-- file: a.yaml -->\n\n```yaml\na: 1\n  b: $x\n```\n\n```console\n$ cat a.yaml\n```\n")
	want = &Page{Name: "x.md", Commands: []Command{{Line: 3, Text: "cat >a.yaml <<'END-OF-FILE'\na: 1\n  b: $x\nEND-OF-FILE"}, {Line: 9, Text: "cat a.yaml"}}}
	if d := cmp.Diff(want, p); err != nil || d != "" {
		t.Errorf("Parse of a page with a file: %v (-want +got):\n%s", err, d)
	}
	if _, err := Parse("x.md", "```console\n$ a \\\n```\n"); err == nil {
		t.Error("Parse of a command without end = nil, want an error")
	}
}

func TestScriptEndsAtTheFirstBrokenPromise(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		fails      bool
	}{
		{"as promised", sample, false},
		{"fails", "```console\n$ false\n$ echo never\n```\n", true},
		{"does not fail", "```console\n$ true # exit 5\n```\n", true},
		{"stand-ins", "```console\n$ test here = there.example\n```\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := Parse("x.md", tc.text)
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "bash", "-c", p.Script(map[string]string{"there.example": "here"})).CombinedOutput()
			if (err != nil) != tc.fails || strings.Contains(string(out), "\nnever") {
				t.Errorf("script ended with %v, want failure %v\n%s", err, tc.fails, out)
			}
		})
	}
}
