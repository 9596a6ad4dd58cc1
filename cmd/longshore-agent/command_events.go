package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

var eventsCommand = cmdline.Command{
	Name:  "events",
	Usage: "show events of the device",
	About: "The agent keeps the newest thousand events since it started: states accepted and refused, containers started, exited,\n" +
		"restarted, their health, updates and rollbacks, repairs. Security events, which may indicate an attack, and\n" +
		"decisions of people at the device are kept across restarts. JSON output has one event per line; YAML output is one list.\n\n" +
		"Examples:\n  longshore-agent events --since 1h\n  longshore-agent events --kind security\n  longshore-agent events -f -o json",
	Flags: []cmdline.Flag{
		configFlag, outputFlag,
		{Name: "follow", Value: false, Alias: "f", Usage: "continue until interrupted", Env: env("FOLLOW")},
		{Name: "kind", Usage: "only events of this `KIND`: accepted, refused, security, exited …; the error for another KIND lists all", Env: env("KIND")},
		{Name: "since", Usage: "only events since `TIME`: 10m or 3d (ago), or 2026-11-20T12:00:00Z", Env: env("SINCE")},
	},
	Run: func(c *cmdline.Context) error {
		kind := status.EventKind(c.String("kind"))
		if kinds := status.EventKinds(); kind != "" && !slices.Contains(kinds, kind) {
			return outcome.Usagef(c.Command, "--kind: %q is not one of %s", kind, strings.Trim(fmt.Sprint(kinds), "[]"))
		}
		since, err := moment(c, "since", time.Now())
		if err != nil {
			return err
		}
		client, err := clientOf(c)
		if err != nil {
			return err
		}
		return client.Events(c.Context, status.EventRequest{Kind: kind, Since: since, Follow: c.Bool("follow")}, func(e status.Event) error {
			if format := c.String("output"); format != "text" {
				return cmdline.EncodeNext(c.Out, format, e)
			}
			_, err := fmt.Fprintln(c.Out, eventLine(e))
			return err
		})
	},
}

var metricsCommand = cmdline.Command{
	Name:  "metrics",
	Usage: "print metrics in Prometheus format",
	About: "The same text is served over HTTP if agent.yaml has metrics.listen.\n\n" +
		"Examples:\n  longshore-agent metrics",
	Flags: []cmdline.Flag{configFlag},
	Run: func(c *cmdline.Context) error {
		client, err := clientOf(c)
		if err != nil {
			return err
		}
		r, err := client.Metrics(c.Context)
		if err != nil {
			return err
		}
		_, err = io.Copy(c.Out, r)
		return errors.Join(err, r.Close())
	},
}
