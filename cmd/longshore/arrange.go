package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// arrange brings a command line into the order that the flag package wants: the command, its flags, its arguments. It
// lets flags stand anywhere, and fills in from the environment what is not there: a flag beats its variable.
func arrange(commands []*cli.Command, args []string, getenv func(string) string) ([]string, error) {
	var path, rest []string
	var command *cli.Command
	all := commands
	for i := 0; i < len(args); i++ {
		a := args[i]
		if strings.HasPrefix(a, "-") && a != "-" {
			rest = append(rest, a)
			if anyTakesValue(all, a) && i+1 < len(args) {
				i++
				rest = append(rest, args[i])
			}
			continue
		}
		next := find(commands, a)
		if next == nil {
			if command == nil || len(command.Subcommands) > 0 {
				if a == "help" || a == "h" || slices.Contains(rest, "--help") || slices.Contains(rest, "-h") {
					return args, nil
				}
				return nil, unknownCommand(path, commands, a)
			}
			rest = append(rest, args[i:]...)
			break
		}
		path, command, commands = append(path, next.Name), next, next.Subcommands
		if len(commands) == 0 {
			rest = append(rest, args[i+1:]...)
			break
		}
	}
	if command == nil || len(command.Subcommands) > 0 {
		return append(path, rest...), nil
	}
	flags, arguments := split(command, rest)
	flags = append(flags, fromEnvironment(command, flags, getenv)...)
	line := append(path, flags...)
	return append(append(line, "--"), arguments...), nil
}

func unknownCommand(path []string, commands []*cli.Command, name string) error {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return outcome.Usagef(strings.Join(path, " "), "%q is no command: it is one of %s", strings.Join(append(path, name), " "), strings.Join(names, ", "))
}

func find(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// split parts flags, each with its value, from arguments. What is no known flag stays a flag, to be refused by name.
func split(c *cli.Command, args []string) (flags, arguments []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return flags, append(arguments, args[i+1:]...)
		case !strings.HasPrefix(a, "-") || a == "-":
			arguments = append(arguments, a)
			continue
		}
		flags = append(flags, a)
		f := flagNamed(c, a)
		if f != nil && takesValue(f) && !strings.Contains(a, "=") && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	return flags, arguments
}

func flagNamed(c *cli.Command, written string) cli.Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(written, "-"), "=")
	for _, f := range c.Flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// anyTakesValue tells whether a flag before its command is known to some command with a value that is the next word.
func anyTakesValue(commands []*cli.Command, written string) bool {
	if strings.Contains(written, "=") {
		return false
	}
	return slices.ContainsFunc(commands, func(c *cli.Command) bool {
		f := flagNamed(c, written)
		return f != nil && takesValue(f) || anyTakesValue(c.Subcommands, written)
	})
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// variable is the environment variable of a flag. Private and public keys have one each.
func variable(f cli.Flag) string {
	if _, ok := f.(*cli.StringSliceFlag); ok && f.Names()[0] == "key" {
		return "LONGSHORE_PUBLIC_KEY"
	}
	return "LONGSHORE_" + strings.ToUpper(strings.ReplaceAll(f.Names()[0], "-", "_"))
}

// fromEnvironment makes flags of the variables of those that were not given. A flag that may be repeated takes one value
// from each line of its variable.
func fromEnvironment(c *cli.Command, given []string, getenv func(string) string) []string {
	var out []string
	for _, f := range c.Flags {
		value := getenv(variable(f))
		if value == "" || slices.ContainsFunc(given, func(a string) bool {
			return strings.HasPrefix(a, "-") && flagNamed(c, a) == f
		}) {
			continue
		}
		values := []string{value}
		if d, ok := f.(cli.DocGenerationSliceFlag); ok && d.IsSliceFlag() {
			values = strings.Split(strings.TrimSpace(value), "\n")
		}
		for _, v := range values {
			out = append(out, "--"+f.Names()[0]+"="+v)
		}
	}
	return out
}

// completeCommand is what the completion scripts ask: longshore __complete WORD... LAST.
const completeCommand = "__complete"

// complete writes what LAST may become, one a line. Where files belong it writes nothing, and the shell offers them.
func complete(app *cli.App, words []string, w io.Writer) {
	last := ""
	if len(words) > 0 {
		last, words = words[len(words)-1], words[:len(words)-1]
	}
	commands := app.Commands
	var command *cli.Command
	for _, word := range words {
		if next := find(commands, word); next != nil {
			command, commands = next, next.Subcommands
		}
	}
	if strings.HasPrefix(last, "-") {
		if command == nil {
			return
		}
		for _, f := range command.Flags {
			if name := "--" + f.Names()[0]; strings.HasPrefix(name, last) {
				fmt.Fprintln(w, name)
			}
		}
		return
	}
	for _, c := range commands {
		if !c.Hidden && strings.HasPrefix(c.Name, last) {
			fmt.Fprintln(w, c.Name)
		}
	}
}
