package cmdline

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// help writes what a command does, its commands, and its flags by category.
func (p *Program) help(c *cobra.Command, d Command) {
	out := c.OutOrStdout()
	fmt.Fprintf(out, "%s - %s\n\nUsage:\n  %s\n", c.CommandPath(), d.Usage, strings.TrimSpace(c.CommandPath()+" "+d.synopsis()))
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
		fmt.Fprintf(out, "\n%s COMMAND --help describes a command.\n", c.CommandPath())
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
		c.Flags().VisitAll(func(f *pflag.Flag) {
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
