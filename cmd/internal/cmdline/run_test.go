package cmdline_test

import (
	"bytes"
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
