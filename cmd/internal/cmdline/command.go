// Package cmdline describes the commands of our programs as data, and reads their flags with pflag, as most programs of the field do. A
// flag beats its variable, a variable beats the default, and a wrong command line is one line with exit code 2.
package cmdline

import (
	"io"
	"slices"
	"strings"
)

// Program is a program of several commands.
type Program struct {
	Name, Usage, About string
	In                 io.Reader
	Out, Err           io.Writer // of [printable.NewWriter]
	Commands           []Command
	Getenv             func(string) string // nil: os.Getenv
	Debug              *bool               // set by a command that was started with --debug: all causes of an error are told; nil: never
}

// Command is a command that does one thing, or a group of commands.
type Command struct {
	Name, Args, Usage, About string // Args "": it takes no arguments
	Flags                    []Flag
	Offer                    Offer // completes arguments
	Verbatim                 bool  // what is behind the first argument is another program's command line
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
