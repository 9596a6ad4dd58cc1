// Command testenv prepares real containerd, registries and images, and runs the demo, the tests and the benchmarks.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/testenv/bench"
	"github.com/longshore-dev/longshore/testenv/demo"
	"github.com/longshore-dev/longshore/testenv/suite"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // a reader that goes away must not keep us from cleaning up
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := app().RunContext(ctx, os.Args)
	switch {
	case err == nil:
		return
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "testenv: interrupted")
		if !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "testenv:", err)
		}
	default:
		fmt.Fprintln(os.Stderr, "testenv:", err)
	}
	os.Exit(1)
}

func app() *cli.App {
	return &cli.App{
		Name:            "testenv",
		Usage:           "real containerd, registries and images: demo, tests, benchmarks",
		HideHelpCommand: true,
		Description: "Everything is built from the Go module proxy and from Debian packages, once, into a cache:\n" +
			"$LONGSHORE_TESTENV_CACHE, else longshore/testenv in your cache folder. What is installed is said before.",
		Commands: []*cli.Command{
			{
				Name:  "demo",
				Usage: "run the demo on real servers; needs root",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "keep", Usage: "leave everything running until Ctrl-C, and print how to inspect it"},
					&cli.StringFlag{Name: "record", Usage: "also write the output as an animated picture into this SVG `FILE`"},
				},
				Action: func(c *cli.Context) error {
					return demo.Run(c.Context, demo.Options{Out: c.App.Writer, Keep: c.Bool("keep"), Record: c.String("record")})
				},
			},
			{
				Name:      "picture",
				Usage:     "write a PNG of the fleet page with four devices; needs root and Debian, whose chromium it installs",
				ArgsUsage: "FILE",
				Action: func(c *cli.Context) error {
					if c.NArg() != 1 {
						return errors.New("picture: name the file to write")
					}
					return demo.Picture(c.Context, c.App.Writer, c.Args().First())
				},
			},
			{
				Name:      "test",
				Usage:     "check everything: formatting, vet, staticcheck, and all tests on real programs",
				ArgsUsage: "[PACKAGE...]",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "run", Usage: "only tests that match this `REGEXP`"},
					&cli.BoolFlag{Name: "no-lint", Usage: "skip formatting, vet and staticcheck"},
					&cli.BoolFlag{Name: "no-race", Usage: "run without the race detector"},
					&cli.BoolFlag{Name: "nightly", Usage: "at full length: every release of containerd, all rounds, large fleets; hours"},
					&cli.BoolFlag{Name: "lenient", Usage: "skip what this machine lacks instead of failing"},
				},
				Action: test,
			},
			{
				Name:      "panel",
				Usage:     "write panel-360.png and panel-1280.png, the page for a machine's panel; needs root and Debian, whose chromium it installs",
				ArgsUsage: "FOLDER",
				Action: func(c *cli.Context) error {
					if c.NArg() != 1 {
						return errors.New("panel: name the folder for the pictures")
					}
					return demo.PanelPictures(c.Context, c.App.Writer, c.Args().First())
				},
			},
			{
				Name:   "prepare",
				Usage:  "build and download everything that the other commands need",
				Action: func(c *cli.Context) error { return suite.Prepare(c.Context, c.App.Writer, false) },
			},
			{
				Name:  "bench",
				Usage: "run the benchmarks on this machine; needs root",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "run", Usage: "only rows that match this `REGEXP`"},
					&cli.IntFlag{Name: "count", Usage: "take the median of `N` runs", Value: 3},
					&cli.DurationFlag{Name: "span", Usage: "watch the idle agent for this `TIME`", Value: 40 * time.Second},
					&cli.StringFlag{Name: "write", Usage: "put the figures into this `FILE` too, between its markers"},
				},
				Action: func(c *cli.Context) error {
					return bench.Run(c.Context, bench.Options{
						Out: c.App.Writer, Run: c.String("run"), Count: c.Int("count"), Span: c.Duration("span"), Write: c.String("write"),
					})
				},
			},
			conformCommand(),
			soakCommand(),
			releaseCommand(),
			{
				Name:   "up",
				Usage:  "a playground: registries, a device with a running agent and a fleet endpoint; prints what to type, stays until Ctrl-C; needs root",
				Action: func(c *cli.Context) error { return demo.Up(c.Context, c.App.Writer) },
			},
		},
	}
}

func test(c *cli.Context) error {
	return suite.Run(c.Context, suite.Options{
		Out: c.App.Writer, Packages: c.Args().Slice(), Run: c.String("run"),
		NoLint: c.Bool("no-lint"), NoRace: c.Bool("no-race"), Lenient: c.Bool("lenient"), Nightly: c.Bool("nightly"),
	})
}
