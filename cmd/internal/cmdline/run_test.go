package cmdline_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// The values of a flag that may be repeated are what was typed, or the lines of its variable.
func TestRepeatedFlag(t *testing.T) {
	for _, tc := range []struct {
		name, variable string
		args, want     []string
	}{
		{"nothing", "", []string{"--set="}, []string{""}},
		{"lines of Windows", "", []string{"--set", "TEXT=a\r\nb\r\n"}, []string{"TEXT=a\r\nb\r\n"}},
		{"a comma", "", []string{"--set", "LIST=a,b", "--set=C=D"}, []string{"LIST=a,b", "C=D"}},
		{"spaces", "", []string{"--set", "PASSWORD= a b "}, []string{"PASSWORD= a b "}},
		{"lines", "", []string{"--set", "TEXT=a\n b\n"}, []string{"TEXT=a\n b\n"}},
		{"two forms", "", []string{"-s", "LIST=a,b", "--set", "C=D"}, []string{"LIST=a,b", "C=D"}},
		{"a short flag", "", []string{"-vsLIST=a,b"}, []string{"LIST=a,b"}},
		{"the variable", "LIST=a,b\r\n  PASSWORD= x \n", nil, []string{"LIST=a,b", "PASSWORD= x "}},
		{"the flag beats the variable", "A=B", []string{"-s", "LIST=a,b"}, []string{"LIST=a,b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("PROGRAM_SET", tc.variable)
			var got []string
			var out, errs bytes.Buffer
			app := &cmdline.Program{
				Name: "program", Out: printable.NewWriter(&out), Err: printable.NewWriter(&errs),
				Commands: []cmdline.Command{{
					Name: "push", Flags: []cmdline.Flag{
						{Name: "set", Value: []string(nil), Alias: "s", Env: "PROGRAM_SET"},
						{Name: "verbose", Value: false, Alias: "v"},
					},
					Run: func(c *cmdline.Context) error { got = c.StringSlice("set"); return nil },
				}},
			}
			if code := app.Run(t.Context(), append([]string{"push"}, tc.args...)); code != outcome.OK {
				t.Fatalf("exit code %d: %s", code, errs.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("want -, got +\n%s", diff)
			}
		})
	}
}

// A flag that takes one value and gets two is an error: the first would be lost.
func TestFlagGivenTwice(t *testing.T) {
	for line, want := range map[string]int{
		"push -d press-07 --device press-08": outcome.Misused, "push --device=press-07 -dpress-08": outcome.Misused,
		"push -d press-07 --device press-07": outcome.OK, "push -o json -o yaml": outcome.OK, "push -v -v --verbose=false": outcome.OK,
	} {
		var out, errs bytes.Buffer
		app := &cmdline.Program{
			Name: "program", Out: printable.NewWriter(&out), Err: printable.NewWriter(&errs),
			Commands: []cmdline.Command{{
				Name: "push", Flags: []cmdline.Flag{{Name: "device", Alias: "d", Once: true}, {Name: "output", Alias: "o"}, {Name: "verbose", Value: false, Alias: "v"}},
				Run: func(*cmdline.Context) error { return nil },
			}},
		}
		if code := app.Run(t.Context(), strings.Fields(line)); code != want || (code != outcome.OK) != strings.Contains(errs.String(), `"press-08": it takes one value, and "press-07"`) {
			t.Errorf("%s: exit code %d, want %d\n%s", line, code, want, errs.String())
		}
	}
}

// The value of a flag may look like a flag.
func TestValueLikeHelp(t *testing.T) {
	for line, want := range map[string]string{
		"reject --reason -h": "reason -h", "reject --reason --help": "reason --help", "reject --reason=-h": "reason -h",
		"--reason -h changes reject": "reason -h", "reject -h": "program reject", "reject --reason x -h": "program reject", "-h changes": "program changes",
		"--reason -h changes": "a command is missing",
	} {
		var out, errs bytes.Buffer
		reject := cmdline.Command{
			Name: "reject", Flags: []cmdline.Flag{{Name: "reason"}},
			Run: func(c *cmdline.Context) error {
				_, err := fmt.Fprint(c.Out, "reason ", c.String("reason"))
				return err
			},
		}
		app := &cmdline.Program{
			Name: "program", Out: printable.NewWriter(&out), Err: printable.NewWriter(&errs),
			Commands: []cmdline.Command{reject, {Name: "changes", Commands: []cmdline.Command{reject}}},
		}
		if app.Run(t.Context(), strings.Fields(line)); !strings.Contains(out.String()+errs.String(), want) {
			t.Errorf("%s: %s%s, want %q", line, &out, &errs, want)
		}
	}
}

// An empty variable is as none, and a wrong one is no error for --help, or beside the flag that beats it.
func TestVariables(t *testing.T) {
	for _, tc := range []struct{ variable, line, want string }{
		{"", "push", "text"},
		{"json", "push", "json"},
		{"json", "push -o yaml", "yaml"},
		{"junit", "push", `PROGRAM_OUTPUT: "junit" is not text, json or yaml`},
		{"junit", "push --output=json", "json"},
		{"", "push --output=", `--output: "" is not`},
		{"", "push --help", "FORMAT of it [$PROGRAM_OUTPUT] (default \"text\")"},
		{"soon", "push --for 3s", "3s"},
		{"soon", "push", "PROGRAM_FOR=\"soon\""},
		{"soon", "push --help", "--for"},
	} {
		for _, v := range []string{"PROGRAM_OUTPUT", "PROGRAM_FOR"} {
			if value := tc.variable; v == "PROGRAM_FOR" == (value == "soon") {
				t.Setenv(v, value)
			}
		}
		var out, errs bytes.Buffer
		app := &cmdline.Program{
			Name: "program", Out: printable.NewWriter(&out), Err: printable.NewWriter(&errs),
			Commands: []cmdline.Command{{
				Name: "push", Flags: []cmdline.Flag{
					{Name: "output", Alias: "o", Usage: "`FORMAT` of it", Value: "text", Env: "PROGRAM_OUTPUT", OneOf: []string{"text", "json", "yaml"}},
					{Name: "for", Value: time.Duration(0), Env: "PROGRAM_FOR"},
				},
				Run: func(c *cmdline.Context) error {
					_, err := fmt.Fprint(c.Out, c.String("output"), c.Duration("for"))
					return err
				},
			}},
		}
		if app.Run(t.Context(), strings.Fields(tc.line)); !strings.Contains(out.String()+errs.String(), tc.want) {
			t.Errorf("%s with %q: %s%s, want %s", tc.line, tc.variable, &out, &errs, tc.want)
		}
	}
}

// program has commands that show what they are given.
func program(out, errs io.Writer) *cmdline.Program {
	flags := []cmdline.Flag{
		{Name: "key", Alias: "k", Value: []string(nil)},
		{Name: "device", Alias: "d", Env: "PROGRAM_DEVICE"},
		{Name: "output", Alias: "o"},
		{Name: "insecure-skip-tls-verify", Alias: "insecure", Value: false},
		{Name: "debug", Value: false},
		{Name: "quiet", Alias: "q", Value: false},
		{Name: "limit", Value: 3},
	}
	show := func(c *cmdline.Context) error {
		_, err := fmt.Fprintf(c.Out, "%s: %q %q, device %q, output %q, %v %v %v, limit %d", c.Command, c.Args, c.StringSlice("key"), c.String("device"), c.String("output"), c.Bool("insecure-skip-tls-verify"), c.Bool("debug"), c.Bool("quiet"), c.Int("limit"))
		return err
	}
	return &cmdline.Program{Name: "program", Out: printable.NewWriter(out), Err: printable.NewWriter(errs), Commands: []cmdline.Command{
		{Name: "sign", Args: "REF", Flags: flags, Run: show},
		{Name: "check", Args: "FILE", Flags: flags, Run: show},
		{Name: "list", Flags: flags, Run: show},
		{Name: "exec", Args: "TARGET COMMAND ...", Verbatim: true, Flags: flags, Run: show},
		{Name: "state", Usage: "states", Commands: []cmdline.Command{{Name: "push", Args: "REF", Flags: flags, Usage: "publish it", Run: show}}},
		{Name: "bare", Run: show},
		{Name: "version", Flags: flags, Run: show},
	}}
}

// What commands are given, in every order in which people type it.
func TestLines(t *testing.T) {
	for _, tc := range []struct{ line, want string }{
		{"sign --key k REF", `sign: ["REF"] ["k"], device "", output "", false false false, limit 3`},
		{"sign REF --key a -k b --key=c", `sign: ["REF"] ["a" "b" "c"], device "", output "", false false false, limit 3`},
		{"--debug -o json sign REF", `sign: ["REF"] [], device "", output "json", false true false, limit 3`},
		{"state --debug push REF --device d", `state push: ["REF"] [], device "d", output "", false true false, limit 3`},
		{"sign REF --key -1", `sign: ["REF"] ["-1"], device "", output "", false false false, limit 3`},
		{"check -qojson F", `check: ["F"] [], device "", output "json", false false true, limit 3`},
		{"check -dpress-07 F -o=yaml --insecure", `check: ["F"] [], device "press-07", output "yaml", true false false, limit 3`},
		{"check -- --odd-name", `check: ["--odd-name"] [], device "", output "", false false false, limit 3`},
		{"check - --limit 0x10", `check: ["-"] [], device "", output "", false false false, limit 16`},
		{"check sign", `check: ["sign"] [], device "", output "", false false false, limit 3`},
		{"check -o json -o yaml F --quiet --quiet=false", `check: ["F"] [], device "", output "yaml", false false false, limit 3`},
		{"exec -q web ls -q --debug", `exec: ["web" "ls" "-q" "--debug"] [], device "", output "", false false true, limit 3`},
		{"--version -o json", `version: [] [], device "", output "json", false false false, limit 3`},
		{"help state push", "publish it"},
		{"state push --help", "publish it"},
		{"sign REF --key k -h", "program sign"},
		{"state help", "program state"},
		{"state", "program state"},
		{"", "program COMMAND"},
		{"help", "program COMMAND"},
		{"list REF", `list takes no argument, got "REF"`},
		{"state REF", `"state REF" is no command: it is one of push`},
		{"-- check --odd-name", `check: ["--odd-name"] []`},
		{"sign --help", "show help"},
		{"sign --hepl", "did you mean --help?"},
		{"bare --foo", "bare: there is no flag --foo"},
		{"--debug stat push", `"stat" is no command, did you mean "state"?`},
		{"--foo push", `"push" is no command, these are: state push`},
		{"'' state push", `"" is no command`},
		{"state '' push", `"state " is no command`},
		{"__completeNoDesc state", `"__completeNoDesc" is no command`},
		{"help push", `"push" is no command`},
		{"stat", `"stat" is no command, did you mean "state"?`},
		{"push", `"push" is no command, these are: state push`},
		{"state psh", `did you mean "state push"?`},
		{"sign --kee k", "sign: there is no flag --kee, did you mean --key?"},
		{"sign -limit 5", "there is no flag -limit, did you mean --limit?"},
		{"sign --foo", "sign: there is no flag --foo"},
		{"--foo sign REF", "sign: there is no flag --foo"},
		{"--foo", "--foo: a command is missing, or this is no flag"},
		{"sign --key", "sign: --key needs a value"},
		{"sign --limit x", `sign: --limit "x": it is no number`},
		{"sign --debug=x", `sign: --debug "x": it is neither true nor false`},
	} {
		var out, errs bytes.Buffer
		args := strings.Fields(strings.ReplaceAll(tc.line, "''", "EMPTY"))
		for i, a := range args {
			args[i] = strings.ReplaceAll(a, "EMPTY", "")
		}
		if program(&out, &errs).Run(t.Context(), args); !strings.Contains(out.String()+errs.String(), tc.want) {
			t.Errorf("%s:\n%s%s\nwant %s", tc.line, &out, &errs, tc.want)
		}
	}
}

// No word makes a program fail in another way than by an exit code, and what it rejects, it tells.
func FuzzLines(f *testing.F) {
	f.Add("state push -d x --key A=B REF")
	f.Add("--key sign -- --")
	f.Add("- -- --= -o")
	f.Add("__complete state push -")
	f.Add("__complete --key sign x")
	f.Add("__complete sign -- ")
	f.Add("__complete --key=x")
	offer := func(ctx context.Context, x *cmdline.Completion, _ string) []string {
		x.Context(ctx, os.Getenv)
		return x.Arguments()
	}
	f.Fuzz(func(t *testing.T, line string) {
		var out, errs bytes.Buffer
		p := program(&out, &errs)
		for i := range p.Commands {
			p.Commands[i].Offer = offer
			for j := range p.Commands[i].Flags {
				p.Commands[i].Flags[j].Offer = offer
			}
		}
		code := p.Run(t.Context(), strings.Fields(line))
		if code != outcome.OK && code != outcome.Misused || (code != outcome.OK) != (errs.Len() > 0) {
			t.Errorf("%q: exit code %d, errors %q", line, code, &errs)
		}
	})
}

// A flag takes days; the error for anything else names what is accepted.
func TestDurationFlag(t *testing.T) {
	for line, want := range map[string]string{"push --for 3d": "72h0m0s", "push --for=1d12h": "36h0m0s", "push": "48h0m0s", "push --for soon": "like 30s, 2h or 3d"} {
		t.Setenv("PROGRAM_FOR", "2d")
		var out, errs bytes.Buffer
		app := &cmdline.Program{
			Name: "program", Out: printable.NewWriter(&out), Err: printable.NewWriter(&errs),
			Commands: []cmdline.Command{{
				Name: "push", Flags: []cmdline.Flag{{Name: "for", Value: time.Duration(0), Env: "PROGRAM_FOR"}},
				Run: func(c *cmdline.Context) error { _, err := fmt.Fprint(c.Out, c.Duration("for")); return err },
			}},
		}
		if app.Run(t.Context(), strings.Fields(line)); !strings.Contains(out.String()+errs.String(), want) {
			t.Errorf("%s: %s%s", line, &out, &errs)
		}
	}
}
