package cmdline

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
)

// help writes what a command does, its commands, and its flags by category.
func (c *Context) help(d *Command) {
	out, path := c.Out, strings.TrimSpace(c.Name+" "+c.Command)
	fmt.Fprintf(out, "%s - %s\n\nUsage:\n  %s\n", path, d.Usage, strings.TrimSpace(path+" "+d.synopsis()))
	if d.About != "" {
		fmt.Fprintf(out, "\n%s\n", strings.TrimSpace(d.About))
	}
	if d.Commands != nil {
		fmt.Fprint(out, "\nCommands:\n")
		columns := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, below := range d.Commands {
			fmt.Fprintf(columns, "  %s\t%s\n", below.Name, below.Usage)
		}
		_ = columns.Flush() // as every write of a result: the error shows when out is flushed
		fmt.Fprintf(out, "\n%s COMMAND --help describes a command.\n", path)
		return
	}
	categories := []string{""}
	for _, f := range d.Flags {
		if !slices.Contains(categories, f.Category) {
			categories = append(categories, f.Category)
		}
	}
	for _, category := range categories {
		some := pflag.NewFlagSet("", pflag.ContinueOnError)
		some.SortFlags = false
		c.flags.VisitAll(func(f *pflag.Flag) {
			if own := d.Flag(f.Name); own == nil && category == "" || own != nil && own.Category == category {
				some.AddFlag(f)
			}
		})
		title := "Flags"
		if category != "" {
			title = category + " flags"
		}
		fmt.Fprintf(out, "\n%s:\n%s", title, some.FlagUsages())
	}
}

// synopsis is what follows the command's name.
func (d *Command) synopsis() string {
	if d.Commands != nil {
		return "COMMAND"
	}
	return strings.TrimSpace("[flags] " + d.Args)
}
