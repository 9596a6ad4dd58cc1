package cmdline_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

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
			app := &cli.App{
				Name: "program", Writer: printable.NewWriter(&out), ErrWriter: printable.NewWriter(&errs),
				Commands: []*cli.Command{{
					Name: "push", Flags: []cli.Flag{
						&cli.StringSliceFlag{Name: "set", Aliases: []string{"s"}, EnvVars: []string{"PROGRAM_SET"}},
						&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}},
					},
					Action: func(c *cli.Context) error { got = c.StringSlice("set"); return nil },
				}},
			}
			if code := cmdline.Run(t.Context(), app, append([]string{"push"}, tc.args...), cmdline.Options{}); code != outcome.OK {
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
		app := &cli.App{
			Name: "program", Writer: printable.NewWriter(&out), ErrWriter: printable.NewWriter(&errs), Metadata: map[string]any{cmdline.Single: []string{"device"}},
			Commands: []*cli.Command{{
				Name: "push", Flags: []cli.Flag{&cli.StringFlag{Name: "device", Aliases: []string{"d"}}, &cli.StringFlag{Name: "o"}, &cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}}},
				Action: func(*cli.Context) error { return nil },
			}},
		}
		if code := cmdline.Run(t.Context(), app, strings.Fields(line), cmdline.Options{}); code != want || (code != outcome.OK) != strings.Contains(errs.String(), `"press-07" and "press-08"`) {
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
		reject := &cli.Command{
			Name: "reject", Flags: []cli.Flag{&cli.StringFlag{Name: "reason"}},
			Action: func(c *cli.Context) error {
				_, err := fmt.Fprint(c.App.Writer, "reason ", c.String("reason"))
				return err
			},
		}
		app := &cli.App{
			Name: "program", Writer: printable.NewWriter(&out), ErrWriter: printable.NewWriter(&errs),
			Commands: []*cli.Command{reject, {Name: "changes", Subcommands: []*cli.Command{reject}}},
		}
		if cmdline.Run(t.Context(), app, strings.Fields(line), cmdline.Options{}); !strings.Contains(out.String()+errs.String(), want) {
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
		{"", "push --help", "FORMAT of it [$PROGRAM_OUTPUT] (default: \"text\")"},
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
		app := &cli.App{
			Name: "program", Writer: printable.NewWriter(&out), ErrWriter: printable.NewWriter(&errs),
			Commands: []*cli.Command{{
				Name: "push", Flags: []cli.Flag{
					&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` of it", Value: "text", EnvVars: []string{"PROGRAM_OUTPUT"}},
					&cli.DurationFlag{Name: "for", EnvVars: []string{"PROGRAM_FOR"}},
				},
				Action: func(c *cli.Context) error {
					_, err := fmt.Fprint(c.App.Writer, c.String("output"), c.Duration("for"))
					return err
				},
			}},
		}
		if cmdline.Run(t.Context(), app, strings.Fields(tc.line), cmdline.Options{}); !strings.Contains(out.String()+errs.String(), tc.want) {
			t.Errorf("%s with %q: %s%s, want %s", tc.line, tc.variable, &out, &errs, tc.want)
		}
	}
}

// A flag takes days; the error for anything else names what is accepted.
func TestDurationFlag(t *testing.T) {
	for line, want := range map[string]string{"push --for 3d": "72h0m0s", "push --for=1d12h": "36h0m0s", "push": "48h0m0s", "push --for soon": "like 30s, 2h or 3d"} {
		t.Setenv("PROGRAM_FOR", "2d")
		var out, errs bytes.Buffer
		app := &cli.App{
			Name: "program", Writer: printable.NewWriter(&out), ErrWriter: printable.NewWriter(&errs),
			Commands: []*cli.Command{{
				Name: "push", Flags: []cli.Flag{&cli.DurationFlag{Name: "for", EnvVars: []string{"PROGRAM_FOR"}}},
				Action: func(c *cli.Context) error { _, err := fmt.Fprint(c.App.Writer, c.Duration("for")); return err },
			}},
		}
		if cmdline.Run(t.Context(), app, strings.Fields(line), cmdline.Options{}); !strings.Contains(out.String()+errs.String(), want) {
			t.Errorf("%s: %s%s", line, &out, &errs)
		}
	}
}
