// Package cmdline describes the commands of our programs as data, and runs them with cobra and pflag, as most programs of the field do. A
// flag beats its variable, a variable beats the default, and a wrong command line is one line with exit code 2.
package cmdline

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Program is a program of several commands.
type Program struct {
	Name, Usage, About string
	Out, Err           io.Writer // of [printable.NewWriter]
	Commands           []Command
}

// Command is a command that does one thing, or a group of commands.
type Command struct {
	Name, Args, Usage, About string // Args "": it takes no arguments
	Flags                    []Flag
	Verbatim                 bool // what is behind the first argument is another program's command line
	Run                      func(c *Context) error
	Commands                 []Command // of a group, which has nothing but these
}

// Find finds a command by its name.
func Find(commands []Command, name string) *Command {
	if i := slices.IndexFunc(commands, func(c Command) bool { return c.Name == name }); i >= 0 {
		return &commands[i]
	}
	return nil
}

// Flag finds a flag by a word of the command line: "--key=k", "-o".
func (c *Command) Flag(written string) *Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(written, "-"), "=")
	if i := slices.IndexFunc(c.Flags, func(f Flag) bool { return name != "" && (f.Name == name || f.Alias == name) }); i >= 0 {
		return &c.Flags[i]
	}
	return nil
}

// tree makes cobra's commands.
func (p *Program) tree(getenv func(string) string) *cobra.Command {
	root := &cobra.Command{
		Use: p.Name, SilenceErrors: true, SilenceUsage: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args: cobra.ArbitraryArgs, RunE: func(c *cobra.Command, args []string) error { return p.group(c, p.Commands, args) },
	}
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		p.help(c, Command{About: p.About, Usage: p.Usage, Commands: p.Commands})
	})
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return flagError(pathOf(c), nil, err) })
	root.InitDefaultHelpFlag() // cobra has to know that it takes no value, before it looks for the command
	p.add(root, p.Commands, getenv)
	return root
}

func (p *Program) add(parent *cobra.Command, commands []Command, getenv func(string) string) {
	for _, d := range commands {
		c := &cobra.Command{Use: d.Name, Short: d.Usage, Args: cobra.ArbitraryArgs}
		c.SetHelpFunc(func(c *cobra.Command, _ []string) { p.help(c, d) })
		parent.AddCommand(c)
		if d.Commands != nil {
			c.RunE = func(c *cobra.Command, args []string) error { return p.group(c, d.Commands, args) }
			p.add(c, d.Commands, getenv)
			continue
		}
		flags := append(slices.Clone(d.Flags), Flag{Name: "help", Alias: "h", Value: false, Usage: "show help"})
		define(c.Flags(), flags)
		c.Flags().SetInterspersed(!d.Verbatim)
		c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return flagError(pathOf(c), flags, err) })
		c.RunE = func(c *cobra.Command, args []string) error {
			x := &Context{Context: c.Context(), Program: p.Name, Command: pathOf(c), Args: args, Out: p.Out, flags: c.Flags()}
			if d.Args == "" && len(args) > 0 {
				return outcome.Usagef(x.Command, "%s takes no argument, got %q", x.Command, args[0])
			}
			if err := x.complete(d.Flags, getenv); err != nil {
				return err
			}
			return d.Run(x)
		}
	}
}

// pathOf is a command's whole name without the program's: "state push".
func pathOf(c *cobra.Command) string {
	_, path, _ := strings.Cut(c.CommandPath(), " ")
	return path
}

// group is what a group of commands does itself: without one of them it shows its help.
func (p *Program) group(c *cobra.Command, commands []Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	var names []string
	for _, below := range commands {
		names = append(names, below.Name)
	}
	path := pathOf(c)
	asked := strings.TrimPrefix(path+" "+args[0], " ")
	if near := strict.Nearest(args[0], names); near != "" {
		return outcome.Usagef(path, "%q is no command, did you mean %q?", asked, strings.TrimPrefix(path+" "+near, " "))
	}
	if others := ending(p.Commands, "", args[0]); len(others) > 0 {
		return outcome.Usagef(path, "%q is no command, these are: %s", asked, strings.Join(others, ", "))
	}
	return outcome.Usagef(path, "%q is no command: it is one of %s", asked, strings.Join(names, ", "))
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
