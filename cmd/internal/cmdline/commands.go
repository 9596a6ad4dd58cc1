package cmdline

import (
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/cmd/internal/build"
)

// Version is the command "version" of a program, which --version runs too.
func Version(w io.Writer, output Flag) Command {
	return Command{
		Name: "version", Usage: "print the version",
		About: "Prints the version, the commit that it was built from and its time, and the Go version.",
		Flags: []Flag{output},
		Run: func(c *Context) error {
			return Show(c, w, build.Read(), func(w io.Writer) { fmt.Fprintln(w, c.Program, build.Read().Text()) })
		},
	}
}

// UnitCommand is the command "unit" of a program that is a service.
func UnitCommand(w io.Writer, unit, about string) Command {
	return FileCommand(w, "unit", "print the systemd unit", unit, about)
}

// FileCommand is a command that prints a file.
func FileCommand(w io.Writer, name, usage, text, about string) Command {
	return Command{
		Name: name, Usage: usage, About: about,
		Run: func(*Context) error {
			_, err := io.WriteString(w, text)
			return err
		},
	}
}
