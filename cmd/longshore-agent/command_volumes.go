package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

var volumesCommand = cmdline.Command{
	Name:  "volumes",
	Usage: "list and remove volumes",
	About: "Named volumes stay on the disk when their application is removed from the device, so that it finds its data when it is\n" +
		"installed again. These commands query the running agent.",
	Commands: []cmdline.Command{
		{
			Name: "list", Usage: "list the named volumes on the disk with their sizes",
			About: "STATE is kept for a volume that nothing on the device uses any more, neither the state that runs nor one that is\n" +
				"being loaded nor a revision that the device may go back to.\n\n" +
				"Examples:\n  longshore-agent volumes list\n  longshore-agent volumes list -o json\n\n" + outcome.Help,
			Flags: []cmdline.Flag{configFlag, outputFlag},
			Run: shows(clientOf, func(c *cmdline.Context, agent *control.Client) ([]status.Volume, error) {
				return agent.Volumes(c.Context)
			}, writeVolumes),
		},
		{
			Name: "remove", Usage: "delete volumes that nothing uses, with their data", Args: "VOLUME ...",
			About: "A VOLUME is named as list shows it, by DEPLOYMENT/VOLUME, or by its own name if there is one of that name. The data\n" +
				"cannot be restored. A volume that is in use is refused with exit code 6.\n\n" +
				"Examples:\n  longshore-agent volumes remove line-monitor/data\n\n" + outcome.Help,
			Flags: []cmdline.Flag{configFlag, outputFlag},
			Run:   removeVolumes,
		},
	},
}

func removeVolumes(c *cmdline.Context) error {
	if len(c.Args) == 0 {
		return outcome.Usagef("volumes remove", "name the volumes to remove")
	}
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	var errs []error
	removed := []status.Volume{}
	for _, name := range c.Args {
		v, err := client.RemoveVolume(c.Context, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, v)
	}
	err = c.Show(removed, func(w io.Writer) {
		for _, v := range removed {
			fmt.Fprintf(w, "removed   %s   %s\n", v.Name, printable.Bytes(v.Bytes))
		}
	})
	return errors.Join(append(errs, err)...)
}

func writeVolumes(w io.Writer, all []status.Volume) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tDEPLOYMENT\tCOMPONENT\tSIZE\tSTATE")
	for _, v := range all {
		state := "kept"
		if v.InUse {
			state = "in use"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", v.Name, cmp.Or(v.Deployment, "-"), cmp.Or(v.Component, "-"), printable.Bytes(v.Bytes), state)
	}
	_ = t.Flush() // the writer's own errors show at the next Fprintf
}
