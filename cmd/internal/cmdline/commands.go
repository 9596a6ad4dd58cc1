package cmdline

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Version is the command "version" of a program, which --version runs too.
func Version(w io.Writer) *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Description: "Prints the version, the commit that it was built from and its time, and the Go version.",
		Flags:       []cli.Flag{&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "text or json", Value: "text"}},
		Action: func(c *cli.Context) error {
			switch o := c.String("output"); o {
			case "text":
				_, err := fmt.Fprintln(w, c.App.Name, build.Read().Text())
				return err
			case "json":
				return Encode(w, o, build.Read())
			default:
				return outcome.Usagef("version", "version: --output %q is not text or json", o)
			}
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
