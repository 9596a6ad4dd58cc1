package cmdline

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Options are what our programs do not have in common.
type Options struct {
	Getenv func(string) string // nil: os.Getenv
	Offer  Offer               // nil: only commands, flags and formats are completed
	Debug  *bool               // set by a command that was started with --debug: all causes of an error are told; nil: never
}

// Run runs one command line, which is without the program's name, and returns the exit code.
func Run(ctx context.Context, p *Program, args []string, o Options) int {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if len(args) > 0 && args[0] == CompleteCommand {
		Complete(ctx, p, args[1:], o.Offer)
		_ = printable.Flush(p.Out) // the shell shows no errors
		return outcome.OK
	}
	root := p.tree(o.Getenv)
	root.SetArgs(p.arrange(args))
	err := root.ExecuteContext(ctx)
	if last := printable.Flush(p.Out); err == nil {
		err = last
	}
	if err != nil {
		outcome.Tell(p.Err, p.Name, err)
		if o.Debug != nil && *o.Debug {
			outcome.TellCauses(p.Err, err)
		}
	}
	_ = printable.Flush(p.Err) // there is nowhere else to report an error of stderr
	return outcome.Code(err)
}

// arrange puts the words of the command before its flags, and makes the word help a flag, wherever they stand: cobra takes a word behind a flag
// that it does not know yet as the flag's value. The result is never nil, for which cobra takes the arguments of the process.
func (p *Program) arrange(args []string) []string {
	if len(args) > 0 && (args[0] == "--version" || args[0] == "-v") {
		args = append([]string{"version"}, args[1:]...)
	}
	path, flags, commands := []string{}, []string{}, p.Commands
	for len(args) > 0 && len(commands) > 0 {
		if next := Find(commands, args[0]); next != nil {
			path, commands, args = append(path, args[0]), next.Commands, args[1:]
			continue
		}
		if args[0] == "help" {
			flags, args = append(flags, "--help"), args[1:]
			continue
		}
		if len(args[0]) < 2 || args[0][0] != '-' { // no command: behind -- it is neither a flag's value nor a command of cobra's own
			return append(path, "--", args[0])
		}
		words := 1
		if takesValue(p.Commands, args[0]) {
			words = min(2, len(args))
		}
		flags, args = append(flags, args[:words]...), args[words:]
	}
	return slices.Concat(path, flags, args)
}

// takesValue reports whether some command knows a flag with a value that is the next word.
func takesValue(commands []Command, written string) bool {
	return !strings.Contains(written, "=") && slices.ContainsFunc(commands, func(c Command) bool {
		f := c.Flag(written)
		return f != nil && f.TakesValue() || takesValue(c.Commands, written)
	})
}
