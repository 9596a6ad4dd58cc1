package main

import (
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
		},
	}
}
