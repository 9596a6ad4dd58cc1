package cmdline

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Version is the command "version" of a program, which --version runs too.
func Version(program string, w io.Writer) *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Description: "Prints the version, the commit that it was built from and its time, and the Go version.",
		Flags:       []cli.Flag{&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "text or json", Value: "text"}},
		Action: func(c *cli.Context) error {
			if n := c.Args().Len(); n > 0 {
				return outcome.Usagef("version", "version takes no argument, not %d", n)
			}
			var err error
			switch o := c.String("output"); o {
			case "text":
				_, err = fmt.Fprintln(w, program, build.Read().Text())
			case "json":
				e := json.NewEncoder(w)
				e.SetIndent("", "  ")
				err = e.Encode(build.Read())
			default:
				err = outcome.Usagef("version", "version: --output %q is not text or json", o)
			}
			return err
		},
	}
}
