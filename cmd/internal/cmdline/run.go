package cmdline

import (
	"context"
	"maps"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Options are what our programs do not have in common.
type Options struct {
	Environment Environment // nil: the flags name their variables themselves
	Offer       Offer       // nil: only commands, flags and formats are completed
	Debug       *bool       // set by a command that was started with --debug: all causes of an error are told; nil: never
}

// Run runs one command line, which is without the program's name, and returns the exit code. app writes to writers of
// [printable.NewWriter].
func Run(ctx context.Context, app *cli.App, args []string, o Options) int {
	app.HideVersion = true                            // there is a command
	app.ExitErrHandler = func(*cli.Context, error) {} // errors are told once, below
	onUsageError(app.Commands, "")
	app.DisableSliceFlagSeparator = true
	keepValues(app.Commands)
	if o.Environment == nil {
		o.Environment = takeVariables(app.Commands).read
	}
	if len(args) > 0 && args[0] == CompleteCommand {
		Complete(ctx, app.Writer, app, args[1:], o.Offer)
		_ = printable.Flush(app.Writer) // the shell shows no errors
		return outcome.OK
	}
	line, err := Arrange(app, args, o.Environment)
	if err == nil {
		err = app.RunContext(ctx, append([]string{app.Name}, line...))
	}
	if last := printable.Flush(app.Writer); err == nil {
		err = last
	}
	if err != nil {
		outcome.Tell(app.ErrWriter, app.Name, err)
		if o.Debug != nil && *o.Debug {
			outcome.TellCauses(app.ErrWriter, err)
		}
	}
	_ = printable.Flush(app.ErrWriter) // there is nowhere else to report an error of stderr
	return outcome.Code(err)
}

// variables are those that flags name themselves.
type variables map[cli.Flag]string

func (v variables) read(f cli.Flag) (variable, value string) { return v[f], os.Getenv(v[f]) }

// takeVariables takes the variables from the flags into their descriptions: the library would read them once more, where an empty one is a
// value, and a wrong one an error even for --help and beside a flag that beats it.
func takeVariables(commands []*cli.Command) variables {
	v := variables{}
	take := func(f cli.Flag, usage *string, names *[]string) {
		if len(*names) > 0 {
			v[f] = (*names)[0]
			*usage, *names = *usage+" [$"+v[f]+"]", nil
		}
	}
	for _, c := range commands {
		maps.Copy(v, takeVariables(c.Subcommands))
		for _, f := range c.Flags {
			switch f := f.(type) {
			case *cli.StringFlag:
				take(f, &f.Usage, &f.EnvVars)
			case *cli.StringSliceFlag:
				take(f, &f.Usage, &f.EnvVars)
			case *cli.BoolFlag:
				take(f, &f.Usage, &f.EnvVars)
				f.DisableDefaultText = true
			case *cli.IntFlag:
				take(f, &f.Usage, &f.EnvVars)
			case *cli.Uint64Flag:
				take(f, &f.Usage, &f.EnvVars)
			case *cli.DurationFlag:
				take(f, &f.Usage, &f.EnvVars)
			}
		}
	}
	return v
}

// keepValues makes the values of flags that may be repeated what was typed: the library trims spaces, which belong to a password.
func keepValues(commands []*cli.Command) {
	for _, c := range commands {
		keepValues(c.Subcommands)
		for _, f := range c.Flags {
			if f, ok := f.(*cli.StringSliceFlag); ok {
				f.KeepSpace = true
			}
		}
	}
}

// onUsageError turns what only the flag package refuses into a [outcome.Usage].
func onUsageError(commands []*cli.Command, group string) {
	for _, c := range commands {
		name := group + c.Name
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return outcome.Usagef(name, "%s: %v", name, err) }
		onUsageError(c.Subcommands, name+" ")
	}
}
