package cmdline

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/build"
)

// Version is the command "version" of a program, which --version runs too.
func Version(w io.Writer, output cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Description: "Prints the version, the commit that it was built from and its time, and the Go version.",
		Flags:       []cli.Flag{output},
		Action: func(c *cli.Context) error {
			return Show(c, w, build.Read(), func(w io.Writer) { fmt.Fprintln(w, c.App.Name, build.Read().Text()) })
		},
	}
}

// UnitCommand is the command "unit" of a program that is a service.
func UnitCommand(w io.Writer, unit, about string) *cli.Command {
	return FileCommand(w, "unit", "print the systemd unit", unit, about)
}

// FileCommand is a command that prints a file.
func FileCommand(w io.Writer, name, usage, text, about string) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Description: about,
		Action: func(*cli.Context) error {
			_, err := io.WriteString(w, text)
			return err
		},
	}
}
