package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// testProgram is the program, but for keys: unlockOnce has those.
func testProgram(stdout, stderr *bytes.Buffer) *program {
	p := newProgram(strings.NewReader(""), stdout, stderr, nothingSet)
	p.unlock = unlockOnce
	return p
}

func nothingSet(string) (string, bool) {
	return "", false
}

func TestArrange(t *testing.T) {
	var out, errs bytes.Buffer
	p, env := testProgram(&out, &errs), map[string]string{}
	p.lookup = func(name string) (string, bool) { value, set := env[name]; return value, set }
	app := p.app()
	cases := []struct{ name, line, env, want string }{
		{"as the flag package wants it", "sign --key k REF", "", "sign --key k -- REF"},
		{"flags behind", "sign REF --key k", "", "sign --key k -- REF"},
		{"flags before the command", "--debug -o json sign REF", "", "sign --debug --output json -- REF"},
		{"flags between the words", "state --debug push REF --device d", "", "state push --debug --device d -- REF"},
		{"joined by =", "verify REF --key=a --key=b", "", "verify --key=a --key=b -- REF"},
		{"one dash", "state push -d x REF", "", "state push --device x -- REF"},
		{"value with a dash", "state push --set A=-1 REF", "", "state push --set A=-1 -- REF"},
		{"short flags together", "check -qojson F", "", "check --quiet --output=json -- F"},
		{"a short flag and its value", "state show -dpress-07 REF -o=yaml", "", "state show --device=press-07 --output=yaml -- REF"},
		{"two dashes", "check -- --odd-name", "", "check -- --odd-name"},
		{"stdin", "check - --kind trust", "", "check --kind trust -- -"},
		{"an argument like a command", "check sign", "", "check -- sign"},
		{"variable", "sign REF", "LONGSHORE_KEY=k", "sign --key=k -- REF"},
		{"flag beats variable", "sign REF --key a", "LONGSHORE_KEY=k", "sign --key a -- REF"},
		{"alias beats variable", "state show -d a REF", "LONGSHORE_DEVICE=b", "state show --device a -- REF"},
		{"help", "help", "", "--help"},
		{"help after a word", "help state push", "", "state push --help"},
		{"help of a group", "state help", "", "state --help"},
		{"version", "--version", "", "version --"},
		{"version as JSON", "--version -o json", "", "version --output json --"},
		{"help of a command", "sign --help", "", "sign --help"},
		{"help behind arguments", "sign REF --key k --help", "", "sign --help"},
		{"the last of two formats", "check -o json -o yaml F", "", "check --output json --output yaml -- F"},
		{"nothing", "", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			clear(env)
			if name, value, ok := strings.Cut(c.env, "="); ok {
				env[name] = value
			}
			got, err := cmdline.Arrange(app, strings.Fields(c.line), p.environment)
			if diff := cmp.Diff(strings.Fields(c.want), got, cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })); diff != "" || err != nil {
				t.Errorf("arrange(%s) = %v, %v, want %s", c.line, got, err, c.want)
			}
		})
	}
}

// No word makes the program fail in another way than by an exit code.
func FuzzArrange(f *testing.F) {
	f.Add("state push -d x --set A=B REF")
	f.Add("--key sign -- --")
	f.Add("- -- --= -o")
	f.Fuzz(func(t *testing.T, line string) {
		var out, errs bytes.Buffer
		app := testProgram(&out, &errs).app()
		args := strings.Fields(line)
		got, err := cmdline.Arrange(app, args, nil)
		if err != nil || slices.Contains(got, "--help") {
			return
		}
		for _, a := range args {
			if slices.Contains([]string{"--help", "-help", "-h"}, a) {
				return // arguments go
			}
			short := len(a) > 1 && a[0] == '-' && a[1] != '-' // gets its long name
			if !short && !slices.Contains([]string{"--", "--version", "-v"}, a) && !slices.Contains(got, a) && cmdline.Find(app.Commands, a) == nil {
				t.Errorf("arrange(%q) = %q: %q is lost", args, got, a)
			}
		}
	})
}

// Every flag of every command has a variable of its own, and tells it.
func TestFlags(t *testing.T) {
	var out, errs bytes.Buffer
	var walk func(path string, all []*cli.Command)
	walk = func(path string, all []*cli.Command) {
		for _, c := range all {
			name := strings.TrimSpace(path + " " + c.Name)
			walk(name, c.Subcommands)
			if len(c.Subcommands) > 0 {
				continue
			}
			if !strings.Contains(c.Description, "Exit codes") || strings.Count(c.Description, "longshore "+name) < 2 {
				t.Errorf("%s: --help has no exit codes or not two examples:\n%s", name, c.Description)
			}
			seen := map[string]bool{}
			for _, f := range c.Flags {
				if f.Names()[0] == "help" {
					continue
				}
				d := f.(cli.DocGenerationFlag)
				if v := variable(f); seen[v] || !strings.Contains(d.GetUsage(), "[$"+v+"]") {
					t.Errorf("%s --%s: %s is taken or not told: %s", name, f.Names()[0], v, d.GetUsage())
				}
				seen[variable(f)] = true
			}
		}
	}
	walk("", testProgram(&out, &errs).app().Commands)
}

// Whatever bytes are checked as whatever kind: faults, no panic, and a code for usage.
func FuzzCheck(f *testing.F) {
	for _, name := range []string{"vision.yaml", "trust.yaml", "agent.yaml", "state.json", "capabilities.json", "status.json", "problem.json", "line-monitor/compose.yaml", "broken/what.yaml"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := cli.NewContext(nil, nil, nil)
		c.Context = t.Context()
		all := (&call{program: testProgram(&bytes.Buffer{}, &bytes.Buffer{}), flags: c}).readers()
		if kind, err := detect("document", data); err == nil && all[kind] == nil {
			t.Errorf("detect = %s, which no reader accepts", kind)
		}
		for kind, read := range all {
			if err := read("document", data); err != nil && outcome.Code(err) == outcome.Other {
				t.Errorf("%s: %v is of no kind", kind, err)
			}
		}
	})
}
