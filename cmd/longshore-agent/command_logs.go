package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// targetHelp explains what names containers.
const targetHelp = "A TARGET is a service (web), one replica (web-2), either with its deployment (line-monitor/web), a deployment, or a\n" +
	"container's id or its prefix. An ambiguous name is rejected with a list of the candidates."

var logsCommand = cmdline.Command{
	Name:  "logs",
	Usage: "show the output of containers",
	Args:  "[TARGET ...]",
	Offer: offerTargets,
	About: "Without TARGET all containers are shown. With several containers each line starts with the container's name.\n" +
		"Times of output are accurate to some seconds while the agent runs, and unknown for other times: --since\n" +
		"and --until may show a few lines too many, never too few.\n" + targetHelp + "\n\n" +
		"Examples:\n  longshore-agent logs line-monitor/web\n  longshore-agent logs -f --tail 20 web broker\n  longshore-agent logs --since 10m -t",
	Flags: []cmdline.Flag{
		configFlag,
		{Name: "follow", Value: false, Alias: "f", Usage: "continue until interrupted", Env: env("FOLLOW")},
		{Name: "tail", Alias: "n", Usage: "only the last `N` lines of each container, N × 16 KiB at most; 0: none, all: every line that is kept", Value: "all", Env: env("TAIL")},
		{Name: "since", Usage: "only output since `TIME`: 10m or 3d (ago), or 2026-11-20T12:00:00Z", Env: env("SINCE")},
		{Name: "until", Usage: "only output until `TIME`", Env: env("UNTIL")},
		{Name: "timestamps", Value: false, Alias: "t", Usage: "start each line with its time, as far as known", Env: env("TIMESTAMPS")},
		{Name: "prefix", Value: false, Usage: "start each line with the container's name, also for one container", Env: env("PREFIX")},
		{Name: "raw", Value: false, Usage: "print the output unchanged, with colours and terminal sequences; default: control characters are escaped", Env: env("RAW")},
	},
	Run: showLogs,
}

func showLogs(c *cmdline.Context) error {
	tail, err := tailLines(c)
	if err != nil {
		return err
	}
	r := status.LogRequest{Targets: c.Args, Prefix: c.Bool("prefix"), LogOptions: workload.LogOptions{
		Follow: c.Bool("follow"), Tail: tail, Stamps: c.Bool("timestamps"),
	}}
	now := time.Now()
	if r.Since, err = moment(c, "since", now); err != nil {
		return err
	}
	if r.Until, err = moment(c, "until", now); err != nil {
		return err
	}
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	out, err := client.Logs(c.Context, r)
	if err != nil {
		return err
	}
	shown := c.Out
	if c.Bool("raw") {
		shown = printable.Raw(shown)
	}
	_, err = io.Copy(shown, out)
	if c.Context.Err() != nil {
		err = nil // interrupted: that is how following ends
	}
	if last := printable.Flush(shown); err == nil {
		err = last
	}
	return errors.Join(err, out.Close())
}

// tailLines reads --tail, which means what it means to docker, podman and nerdctl.
func tailLines(c *cmdline.Context) (int, error) {
	s := c.String("tail")
	if s == "all" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	switch {
	case err != nil || n < 0:
		return 0, outcome.Usagef(c.Command, "--tail: %q is neither a number of lines nor all", s)
	case n == 0:
		return workload.NoTail, nil
	}
	return n, nil
}

// moment reads a flag that is a time or a span before now.
func moment(c *cmdline.Context, flag string, now time.Time) (time.Time, error) {
	s := c.String(flag)
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := strict.ParseDuration(s); err == nil {
		return now.Add(-d.Abs()), nil
	}
	t := timeOf(s)
	if t.IsZero() {
		return t, outcome.Usagef(c.Command, "--%s: %q is neither a span like 10m or 3d nor a time like %s", flag, s, now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

// timeOf reads a time as people write it, without a zone for local time; what is none is the zero time.
func timeOf(s string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t
		}
	}
	return time.Time{}
}

// eventLine is one event for people.
func eventLine(e status.Event) string {
	what := e.Deployment
	if e.Service != "" {
		what = fmt.Sprintf("%s/%s-%d", e.Deployment, e.Service, e.Replica)
	} else if e.Container != "" {
		what = e.Container
	}
	line := fmt.Sprintf("%s  %-11s", e.Time.Local().Format(time.DateTime), e.Kind)
	if what != "" {
		line += " " + what
	}
	if e.Generation > 0 {
		line += fmt.Sprintf(" generation %d", e.Generation)
	}
	if e.ExitCode != nil {
		line += fmt.Sprintf(" code %d", *e.ExitCode)
	}
	if e.Code != "" {
		line += " (" + string(e.Code) + ")"
	}
	if e.Message != "" {
		line += " " + e.Message
	}
	if e.Count > 1 {
		line += fmt.Sprintf(" (%d times)", e.Count)
	}
	return line
}
