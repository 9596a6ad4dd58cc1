package cmdline

import (
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/cmd/internal/build"
)

// Version is the command "version" of a program, which --version runs too.
func Version(output Flag) Command {
	return Command{
		Name: "version", Usage: "print the version",
		About: "Prints the version, the commit that it was built from and its time, and the Go version.",
		Flags: []Flag{output},
		Run: func(c *Context) error {
			return c.Show(build.Read(), func(w io.Writer) { fmt.Fprintln(w, c.Name, build.Read().Text()) })
		},
	}
}

// UnitCommand is the command "unit" of a program that is a service.
func UnitCommand(unit, about string) Command {
	return FileCommand("unit", "print the systemd unit", unit, about)
}

// FileCommand is a command that prints a file.
func FileCommand(name, usage, text, about string) Command {
	return Command{
		Name: name, Usage: usage, About: about,
		Run: func(c *Context) error {
			_, err := io.WriteString(c.Out, text)
			return err
		},
	}
}
