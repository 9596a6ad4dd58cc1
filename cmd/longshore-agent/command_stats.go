package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

// statsPause is the time over which a share of the CPU is measured.
const statsPause = time.Second

var statsCommand = cmdline.Command{
	Name:  "stats",
	Usage: "show resource usage of running containers",
	Args:  "[TARGET ...]",
	Offer: offerTargets,
	About: "Without TARGET all containers are shown, every second until interrupted. 100 % is one core. Memory excludes what the\n" +
		"kernel can drop at once. JSON output has one list per line.\n" + targetHelp + "\n\n" +
		"Examples:\n  longshore-agent stats --no-stream\n  longshore-agent stats line-monitor/web\n  longshore-agent stats --no-stream -o json",
	Flags: []cmdline.Flag{
		configFlag, outputFlag,
		{Name: "no-stream", Value: false, Usage: "print once; this takes a second", Env: env("NO_STREAM")},
	},
	Run: showStats,
}

func showStats(c *cmdline.Context) error {
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	var before []status.Usage
	if before, err = client.Stats(c.Context, c.Args); err != nil {
		return err
	}
	for {
		if delay.For(c.Context, statsPause) != nil {
			return c.Context.Err()
		}
		now, err := measure(c.Context, client, c.Args, before)
		if err != nil {
			return err
		}
		before = now
		if c.Bool("no-stream") {
			return c.Show(now, func(w io.Writer) { writeStats(w, now) })
		}
		switch c.String("output") {
		case "json":
			err = json.NewEncoder(c.Out).Encode(now)
		case "yaml":
			err = cmdline.Encode(c.Out, "yaml", now)
		default:
			if cmdline.Terminal(c.Out) != nil {
				fmt.Fprint(printable.Raw(c.Out), "\x1b[H\x1b[J") // from the top again
			}
			writeStats(c.Out, now)
			err = printable.Flush(c.Out)
		}
		if err != nil {
			return err
		}
	}
}

// measure looks once more and returns the share of the CPU since the look before.
func measure(ctx context.Context, client *control.Client, targets []string, before []status.Usage) ([]status.Usage, error) {
	now, err := client.Stats(ctx, targets)
	if err != nil {
		return nil, err
	}
	was := map[string]status.Usage{}
	for _, u := range before {
		was[u.ID] = u
	}
	for i, u := range now {
		old, ok := was[u.ID]
		if span := u.At.Sub(old.At).Seconds(); ok && span > 0 && u.CPUSeconds >= old.CPUSeconds {
			percent := (u.CPUSeconds - old.CPUSeconds) / span * 100
			now[i].CPUPercent = &percent
		}
	}
	return now, nil
}

func writeStats(w io.Writer, all []status.Usage) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CONTAINER\tCPU\tMEMORY\tLIMIT\tPIDS\tNET IN\tNET OUT\tDISK IN\tDISK OUT\tLOG")
	for _, u := range all {
		cpu, limit := "-", "-"
		if u.CPUPercent != nil {
			cpu = fmt.Sprintf("%.1f %%", *u.CPUPercent)
		}
		if u.MemoryLimitBytes > 0 {
			limit = printable.Bytes(u.MemoryLimitBytes)
		}
		fmt.Fprintf(t, "%s/%s-%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", u.Deployment, u.Service, u.Replica, cpu, printable.Bytes(u.MemoryBytes), limit, u.PIDs,
			printable.Bytes(u.NetworkReceivedBytes), printable.Bytes(u.NetworkTransmittedBytes), printable.Bytes(u.BlockReadBytes), printable.Bytes(u.BlockWrittenBytes), printable.Bytes(uint64(max(0, u.LogBytes))))
	}
	_ = t.Flush() // the writer's own errors show at the next Fprintf
}
