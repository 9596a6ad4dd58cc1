// Command testenv prepares real containerd, registries and images, and runs the demo, the tests and the benchmarks.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/testenv/bench"
	"github.com/longshore-dev/longshore/testenv/demo"
	"github.com/longshore-dev/longshore/testenv/suite"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // a reader that goes away must not keep us from cleaning up
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := app().Run(ctx, os.Args[1:])
	stop()
	os.Exit(min(code, 1)) // as the help of conform says
}

func app() *cmdline.Program {
	return &cmdline.Program{
		Name: "testenv", Out: os.Stdout, Err: os.Stderr,
		Usage: "real containerd, registries and images: demo, tests, benchmarks",
		About: "Everything is built from the Go module proxy and from Debian packages, once, into a cache:\n" +
			"$LONGSHORE_TESTENV_CACHE, else longshore/testenv in your cache folder. What is installed is said before.",
		Commands: []cmdline.Command{
			{
				Name:  "demo",
				Usage: "run the demo on real servers; needs root",
				Flags: []cmdline.Flag{
					{Name: "keep", Value: false, Usage: "leave everything running until Ctrl-C, and print how to inspect it"},
					{Name: "record", Usage: "also write the output as an animated picture into this SVG `FILE`"},
				},
				Run: func(c *cmdline.Context) error {
					return demo.Run(c.Context, demo.Options{Out: c.Out, Keep: c.Bool("keep"), Record: c.String("record")})
				},
			},
			{
				Name:  "picture",
				Usage: "write a PNG of the fleet page with four devices; needs root and Debian, whose chromium it installs",
				Args:  "FILE",
				Run: func(c *cmdline.Context) error {
					if len(c.Args) != 1 {
						return errors.New("picture: name the file to write")
					}
					return demo.Picture(c.Context, c.Out, c.Arg())
				},
			},
			{
				Name:  "test",
				Usage: "check everything: formatting, vet, staticcheck, and all tests on real programs",
				Args:  "[PACKAGE...]",
				Flags: []cmdline.Flag{
					{Name: "run", Usage: "only tests that match this `REGEXP`"},
					{Name: "no-lint", Value: false, Usage: "skip formatting, vet and staticcheck"},
					{Name: "no-race", Value: false, Usage: "run without the race detector"},
					{Name: "nightly", Value: false, Usage: "at full length: every release of containerd, all rounds, large fleets; hours"},
					{Name: "lenient", Value: false, Usage: "skip what this machine lacks instead of failing"},
				},
				Run: test,
			},
			{
				Name:  "panel",
				Usage: "write panel-360.png and panel-1280.png, the page for a machine's panel; needs root and Debian, whose chromium it installs",
				Args:  "FOLDER",
				Run: func(c *cmdline.Context) error {
					if len(c.Args) != 1 {
						return errors.New("panel: name the folder for the pictures")
					}
					return demo.PanelPictures(c.Context, c.Out, c.Arg())
				},
			},
			{
				Name:  "prepare",
				Usage: "build and download everything that the other commands need",
				Run:   func(c *cmdline.Context) error { return suite.Prepare(c.Context, c.Out, false) },
			},
			{
				Name:  "bench",
				Usage: "run the benchmarks on this machine; needs root",
				Flags: []cmdline.Flag{
					{Name: "run", Usage: "only rows that match this `REGEXP`"},
					{Name: "count", Usage: "take the median of `N` runs", Value: 3},
					{Name: "span", Usage: "watch the idle agent for this `TIME`", Value: 40 * time.Second},
					{Name: "write", Usage: "put the figures into this `FILE` too, between its markers"},
				},
				Run: func(c *cmdline.Context) error {
					return bench.Run(c.Context, bench.Options{
						Out: c.Out, Run: c.String("run"), Count: c.Int("count"), Span: c.Duration("span"), Write: c.String("write"),
					})
				},
			},
			conformCommand(),
			soakCommand(),
			releaseCommand(),
			{
				Name:  "up",
				Usage: "a playground: registries, a device with a running agent and a fleet endpoint; prints what to type, stays until Ctrl-C; needs root",
				Run:   func(c *cmdline.Context) error { return demo.Up(c.Context, c.Out) },
			},
		},
	}
}

func test(c *cmdline.Context) error {
	return suite.Run(c.Context, suite.Options{
		Out: c.Out, Packages: c.Args, Run: c.String("run"),
		NoLint: c.Bool("no-lint"), NoRace: c.Bool("no-race"), Lenient: c.Bool("lenient"), Nightly: c.Bool("nightly"),
	})
}
