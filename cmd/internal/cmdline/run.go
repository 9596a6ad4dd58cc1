package cmdline

import (
	"context"
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
		o.Environment = ofFlag
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

// ofFlag is the variable that a flag names itself, and its value.
func ofFlag(f cli.Flag) (variable, value string) {
	if d, ok := f.(cli.DocGenerationFlag); ok && len(d.GetEnvVars()) > 0 {
		variable = d.GetEnvVars()[0]
	}
	return variable, os.Getenv(variable)
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
