package main

import (
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/soak"
)

// soakCommand holds the long runs.
func soakCommand() cmdline.Command {
	return cmdline.Command{
		Name:  "soak",
		Usage: "long runs with random choices, whose seed is printed and replayable; need root",
		Commands: []cmdline.Command{
			{
				Name:  "power-cut",
				Usage: "cut a device's power at random points of pull, unpack and update, and compare what comes back",
				Flags: []cmdline.Flag{
					{Name: "rounds", Usage: "updates, each cut once or twice", Value: 200},
					{Name: "seed", Value: uint64(0), Usage: "choices of an earlier run; 0 makes new ones"},
					{Name: "containerd", Usage: "its `RELEASE`: 2.4, 1.7 or 1.6", Value: "2.4"},
				},
				Run: func(c *cmdline.Context) error {
					release, err := testenv.ParseRelease(c.String("containerd"))
					if err != nil {
						return err
					}
					_, err = soak.PowerCut(c.Context, soak.PowerCutOptions{
						Out: c.Out, Rounds: c.Int("rounds"), Seed: c.Uint64("seed"), Release: release,
					})
					return err
				},
			},
			{
				Name:  "chaos",
				Usage: "kill containers, shims, the agent and containerd at random, and look at what comes back and what leaks",
				Flags: []cmdline.Flag{
					{Name: "duration", Usage: "kill for this `TIME`", Value: time.Hour},
					{Name: "containers", Usage: "that the device runs", Value: 50},
					{Name: "rate", Usage: "kill `N` times as often as usual, which is about every 0.75 s", Value: float64(1)},
					{Name: "seed", Value: uint64(0), Usage: "choices of an earlier run; 0 makes new ones"},
				},
				Run: func(c *cmdline.Context) error {
					_, err := soak.Chaos(c.Context, soak.ChaosOptions{
						Out: c.Out, Duration: c.Duration("duration"), Containers: c.Int("containers"), Rate: c.Float64("rate"),
						Seed: c.Uint64("seed"),
					})
					return err
				},
			},
			{
				Name:  "load",
				Usage: "update a service under requests: start-first, where none may be lost, and stop-first, where the gap is measured",
				Flags: []cmdline.Flag{
					{Name: "updates", Usage: "of each order", Value: 20},
					{Name: "rate", Usage: "requests a second", Value: 200},
				},
				Run: func(c *cmdline.Context) error {
					_, err := soak.Load(c.Context, soak.LoadOptions{Out: c.Out, Updates: c.Int("updates"), Rate: c.Int("rate")})
					return err
				},
			},
			{
				Name:  "polls",
				Usage: "many devices poll one fleet manager by mutual TLS: latency, processor, memory",
				Flags: []cmdline.Flag{
					{Name: "devices", Usage: "`NUMBER` of devices", Value: 10_000},
					{Name: "every", Usage: "between two polls of a device", Value: time.Minute},
					{Name: "duration", Usage: "measure for this `TIME`", Value: 2 * time.Minute},
					{Name: "reconnect", Value: false, Usage: "a new connection for each poll"},
				},
				Run: func(c *cmdline.Context) error {
					f, err := soak.Polls(c.Context, soak.PollsOptions{
						Out: c.Out, Devices: c.Int("devices"), Every: c.Duration("every"), Duration: c.Duration("duration"), Reconnect: c.Bool("reconnect"),
					})
					if err == nil {
						_, err = fmt.Fprintln(c.Out, f)
					}
					return err
				},
			},
		},
	}
}
