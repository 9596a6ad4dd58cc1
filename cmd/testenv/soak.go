package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/soak"
)

// soakCommand holds the long runs.
func soakCommand() *cli.Command {
	return &cli.Command{
		Name:  "soak",
		Usage: "long runs with random choices, whose seed is printed and replayable; need root",
		Subcommands: []*cli.Command{
			{
				Name:  "power-cut",
				Usage: "cut a device's power at random points of pull, unpack and update, and compare what comes back",
				Flags: []cli.Flag{
					&cli.IntFlag{Name: "rounds", Usage: "updates, each cut once or twice", Value: 200},
					&cli.Uint64Flag{Name: "seed", Usage: "choices of an earlier run; 0 makes new ones"},
					&cli.StringFlag{Name: "containerd", Usage: "its `RELEASE`: 2.4, 1.7 or 1.6", Value: "2.4"},
				},
				Action: func(c *cli.Context) error {
					release, err := testenv.ParseRelease(c.String("containerd"))
					if err != nil {
						return err
					}
					_, err = soak.PowerCut(c.Context, soak.PowerCutOptions{
						Out: c.App.Writer, Rounds: c.Int("rounds"), Seed: c.Uint64("seed"), Release: release,
					})
					return err
				},
			},
			{
				Name:  "chaos",
				Usage: "kill containers, shims, the agent and containerd at random, and look at what comes back and what leaks",
				Flags: []cli.Flag{
					&cli.DurationFlag{Name: "duration", Usage: "kill for this `TIME`", Value: time.Hour},
					&cli.IntFlag{Name: "containers", Usage: "that the device runs", Value: 50},
					&cli.Float64Flag{Name: "rate", Usage: "kill `N` times as often as usual, which is about every 0.75 s", Value: 1},
					&cli.Uint64Flag{Name: "seed", Usage: "choices of an earlier run; 0 makes new ones"},
				},
				Action: func(c *cli.Context) error {
					_, err := soak.Chaos(c.Context, soak.ChaosOptions{
						Out: c.App.Writer, Duration: c.Duration("duration"), Containers: c.Int("containers"), Rate: c.Float64("rate"),
						Seed: c.Uint64("seed"),
					})
					return err
				},
			},
			{
				Name:  "load",
				Usage: "update a service under requests: start-first, where none may be lost, and stop-first, where the gap is measured",
				Flags: []cli.Flag{
					&cli.IntFlag{Name: "updates", Usage: "of each order", Value: 20},
					&cli.IntFlag{Name: "rate", Usage: "requests a second", Value: 200},
				},
				Action: func(c *cli.Context) error {
					_, err := soak.Load(c.Context, soak.LoadOptions{Out: c.App.Writer, Updates: c.Int("updates"), Rate: c.Int("rate")})
					return err
				},
			},
			{
				Name:  "polls",
				Usage: "many devices poll one fleet manager by mutual TLS: latency, processor, memory",
				Flags: []cli.Flag{
					&cli.IntFlag{Name: "devices", Usage: "`NUMBER` of devices", Value: 10_000},
					&cli.DurationFlag{Name: "every", Usage: "between two polls of a device", Value: time.Minute},
					&cli.DurationFlag{Name: "duration", Usage: "measure for this `TIME`", Value: 2 * time.Minute},
					&cli.BoolFlag{Name: "reconnect", Usage: "a new connection for each poll"},
				},
				Action: func(c *cli.Context) error {
					f, err := soak.Polls(c.Context, soak.PollsOptions{
						Out: c.App.Writer, Devices: c.Int("devices"), Every: c.Duration("every"), Duration: c.Duration("duration"), Reconnect: c.Bool("reconnect"),
					})
					if err == nil {
						_, err = fmt.Fprintln(c.App.Writer, f)
					}
					return err
				},
			},
		},
	}
}
