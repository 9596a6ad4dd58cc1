package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

// completeLimit is how long the agent may take to tell its containers while somebody holds the tab key.
const completeLimit = time.Second

var completionCommand = cmdline.ScriptCommand(" If an agent runs, services and containers are completed too.\n\n" +
	"Examples:\n  longshore-agent completion bash >/etc/bash_completion.d/longshore-agent")

// offerTargets completes the names of services and containers.
func offerTargets(ctx context.Context, x *cmdline.Completion, _ string) []string {
	arguments := x.Arguments()
	if strings.HasPrefix(x.Command.Args, "TARGET") && len(arguments) > 0 {
		return nil
	}
	out := targetNames(containersOf(ctx, x), x.Command.Name)
	return slices.DeleteFunc(out, func(o string) bool { return slices.Contains(arguments, o) })
}

// containersOf asks the agent that a command line means; none when it does not answer.
func containersOf(ctx context.Context, x *cmdline.Completion) []status.Container {
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	c := x.Context(ctx, os.Getenv)
	if c == nil {
		return nil
	}
	client, err := clientOf(c)
	if err != nil {
		return nil
	}
	all, _ := client.Containers(ctx)
	return all
}

// targetNames are the shortest names of containers, and longer ones where those are ambiguous.
func targetNames(all []status.Container, command string) []string {
	var out []string
	for _, c := range all {
		if command != "logs" && c.State != workload.Running {
			continue
		}
		for _, name := range []string{c.Service, c.Name(), c.Deployment + "/" + c.Service, c.Path(), c.Deployment + "/" + c.Component + "/" + c.Name()} {
			_, err := status.Select(all, name)
			if command == "exec" {
				_, err = status.One(all, name)
			}
			if err == nil {
				out = append(out, name)
				break
			}
		}
		out = append(out, c.Path())
	}
	slices.Sort(out)
	return slices.Compact(out)
}
