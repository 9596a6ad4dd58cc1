package main

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

var psCommand = cmdline.Command{
	Name:  "ps",
	Usage: "list the device's containers",
	About: "Lists running containers; with --all also those that have exited, are not created yet, or are about to be removed. Queries the\n" +
		"running agent: exit code 4 means that no agent runs.\n\n" +
		"Examples:\n  longshore-agent ps\n  longshore-agent ps -a -o json\n  longshore-agent restart $(longshore-agent ps -q)",
	Flags: []cmdline.Flag{
		configFlag, outputFlag,
		{Name: "all", Value: false, Alias: "a", Usage: "also containers that do not run", Env: env("ALL")},
		{Name: "quiet", Value: false, Alias: "q", Usage: "print only the containers' ids", Env: env("QUIET")},
	},
	Run: func(c *cmdline.Context) error { return ps(c.Bool("quiet"))(c) },
}

func ps(quiet bool) func(*cmdline.Context) error {
	return shows(clientOf, func(c *cmdline.Context, agent *control.Client) ([]status.Container, error) {
		all, err := agent.Containers(c.Context)
		if !c.Bool("all") {
			all = slices.DeleteFunc(all, func(c status.Container) bool {
				return c.State != workload.Running && c.State != workload.Paused
			})
		}
		return all, err
	}, func(w io.Writer, all []status.Container) {
		if !quiet {
			writeContainers(w, all, time.Now())
			return
		}
		for _, c := range all {
			fmt.Fprintln(w, c.ID)
		}
	})
}

var restartCommand = cmdline.Command{
	Name:  "restart",
	Usage: "stop containers and start them again",
	Args:  "TARGET ...",
	Offer: offerTargets,
	About: "Waits until the containers have started. Each gets its stop signal and its stop_grace_period; one that does not run is started at\n" +
		"once. Services with depends_on and restart: true are restarted too. If a container depends on a service that is not up, nothing is\n" +
		"stopped: name both. If a stop or start fails, the command ends with the reason, and the agent tries again. Windows and approvals do not\n" +
		"apply.\n" + targetHelp + "\n\n" +
		"Examples:\n  longshore-agent restart line-monitor/web\n  longshore-agent restart line-monitor",
	Flags: []cmdline.Flag{configFlag, outputFlag},
	Run: shows(clientOf, func(c *cmdline.Context, agent *control.Client) ([]status.Container, error) {
		if len(c.Args) == 0 {
			return nil, outcome.Usagef(c.Command, "name the containers to restart")
		}
		return agent.Restart(c.Context, c.Args)
	}, func(w io.Writer, all []status.Container) {
		for _, c := range all {
			fmt.Fprintf(w, "restarted   %s\n", c.Path())
		}
	}),
}

func writeContainers(w io.Writer, all []status.Container, now time.Time) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "DEPLOYMENT\tCOMPONENT\tSERVICE\tREPLICA\tSTATE\tHEALTH\tRESTARTS\tSINCE\tPORTS\tIMAGE")
	for _, c := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\n", c.Deployment, c.Component, c.Service, c.Replica, stateOf(c), cmp.Or(string(c.Health), "-"),
			c.Restarts, sinceOf(c, now), cmp.Or(portsOf(c.Ports), "-"), imageOf(c.Image))
	}
	_ = t.Flush() // the writer's own errors show at the next Fprintf
}

// finished is the state of a container that exited with code 0 and is not started again, for people.
const finished = "finished"

func stateOf(c status.Container) string {
	s := string(c.State)
	switch {
	case c.State == workload.Exited && c.ExitCode == 0 && c.NextStart.IsZero():
		s = finished
	case c.State == workload.Exited:
		s += " (" + strconv.FormatUint(uint64(c.ExitCode), 10) + ")"
	}
	if c.Obsolete {
		s += ", going"
	}
	return s
}

func sinceOf(c status.Container, now time.Time) string {
	at := c.StartedAt
	if c.State == workload.Exited {
		at = c.ExitedAt
	}
	if at.IsZero() {
		return "-"
	}
	return ago(now.Sub(at))
}

func portsOf(ports []status.Port) string {
	var out []string
	for _, p := range ports {
		host := strconv.Itoa(int(p.HostPort))
		if p.HostIP != "" {
			host = net.JoinHostPort(p.HostIP, host)
		}
		out = append(out, fmt.Sprintf("%s->%d/%s", host, p.ContainerPort, p.Protocol))
	}
	return strings.Join(out, ", ")
}

// imageOf is an image's last name and the beginning of its digest.
func imageOf(name string) string {
	repository, d, _ := strings.Cut(name, "@")
	return repository[strings.LastIndexByte(repository, '/')+1:] + "@" + printable.Digest(d)
}
