package cmdline

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Main runs a program until it ends or is interrupted, and ends the process with its exit code.
func Main(run func(ctx context.Context) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once what does not heed the first
	code := run(ctx)
	stop()
	os.Exit(code)
}

// Run runs one command line, which is without the program's name, and returns the exit code.
func (p *Program) Run(ctx context.Context, args []string) int {
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
	if len(args) > 0 && args[0] == CompleteCommand {
		p.offer(ctx, args[1:])
		_ = printable.Flush(p.Out) // the shell shows no errors
		return outcome.OK
	}
	err := p.run(ctx, args)
	if last := printable.Flush(p.Out); err == nil {
		err = last
	}
	if err != nil {
		outcome.Tell(p.Err, p.Name, err)
		if p.Debug != nil && *p.Debug {
			outcome.TellCauses(p.Err, err)
		}
	}
	_ = printable.Flush(p.Err) // there is nowhere else to report an error of stderr
	return outcome.Code(err)
}

// run finds the command, before whose words flags may stand, reads its flags, and runs it or shows its help.
func (p *Program) run(ctx context.Context, args []string) error {
	if len(args) > 0 && (args[0] == "--version" || args[0] == "-v") {
		args = append([]string{"version"}, args[1:]...)
	}
	d, flags, help := &Command{Name: p.Name, Usage: p.Usage, About: p.About, Commands: p.Commands}, []string{}, false
	x := &Context{Program: p, Context: ctx, flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
	for len(args) > 0 && d.Commands != nil {
		word := args[0]
		args = args[1:]
		switch next := Find(d.Commands, word); {
		case next != nil:
			d, x.Command = next, strings.TrimPrefix(x.Command+" "+word, " ")
		case slices.Contains([]string{"help", "--help", "-h"}, word):
			help = true
		case len(word) < 2 || word[0] != '-':
			return p.unknown(x.Command, d.Commands, word)
		default:
			flags = append(flags, word)
			if takesValue(p.Commands, word) && len(args) > 0 {
				flags, args = append(flags, args[0]), args[1:]
			}
		}
	}
	if d.Commands != nil && len(flags) > 0 {
		return outcome.Usagef(x.Command, "%s: a command is missing, or this is no flag", flags[0])
	}
	all := append(slices.Clone(d.Flags), Flag{Name: "help", Alias: "h", Value: false, Usage: "show help"})
	define(x.flags, all)
	x.flags.SetInterspersed(!d.Verbatim)
	if err := x.flags.Parse(append(flags, args...)); err != nil {
		return flagError(x.Command, all, err)
	}
	x.Args = x.flags.Args()
	switch {
	case help || x.Bool("help") || d.Commands != nil:
		x.help(d)
		return nil
	case d.Args == "" && len(x.Args) > 0:
		return outcome.Usagef(x.Command, "%s takes no argument, got %q", x.Command, x.Args[0])
	}
	if err := x.complete(d.Flags); err != nil {
		return err
	}
	return d.Run(x)
}

// unknown is the error for a word that is no command of a group.
func (p *Program) unknown(group string, commands []Command, word string) error {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	asked := strings.TrimPrefix(group+" "+word, " ")
	if near := strict.Nearest(word, names); near != "" {
		return outcome.Usagef(group, "%q is no command, did you mean %q?", asked, strings.TrimPrefix(group+" "+near, " "))
	}
	if others := ending(p.Commands, "", word); len(others) > 0 {
		return outcome.Usagef(group, "%q is no command, these are: %s", asked, strings.Join(others, ", "))
	}
	return outcome.Usagef(group, "%q is no command: it is one of %s", asked, strings.Join(names, ", "))
}

// ending are the commands, with their groups, that end with a name.
func ending(commands []Command, group, name string) (out []string) {
	for _, c := range commands {
		if c.Name == name && c.Commands == nil {
			out = append(out, group+c.Name)
		}
		out = append(out, ending(c.Commands, group+c.Name+" ", name)...)
	}
	return out
}

// takesValue reports whether some command knows a flag with a value that is the next word.
func takesValue(commands []Command, written string) bool {
	return !strings.Contains(written, "=") && slices.ContainsFunc(commands, func(c Command) bool {
		f := c.Flag(written)
		return f != nil && f.TakesValue() || takesValue(c.Commands, written)
	})
}
